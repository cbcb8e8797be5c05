#include "engine/data/dataset.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace milepost::data {
namespace {

constexpr int64_t kPlaceTokens = 1024;  // looked at for a fingerprint
constexpr int64_t kAnyId = int64_t{1} << 31;

absl::Status InMask(const absl::Status& status) {
  return Annotate(status, "loss mask, which has 1 for a target, and 0 or -1 for none");
}

// Among the targets of the first `inputs` tokens.
absl::Status CheckAnyTarget(const LabelFile& mask, int64_t inputs, const std::string& path) {
  const auto any = mask.Holds(1, 1, inputs);  // the first token has no input
  if (!any.ok()) return InMask(any.status());
  if (*any) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path,
                   ": no token is a target, so there is nothing to learn or to be measured "
                   "by; write 1 for those that are to be predicted"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TokenDataset>> TokenDataset::Open(
    const std::string& path, const DatasetOptions& options) {
  MP_CHECK(options.sequence_length >= 1 && options.vocabulary >= 1);
  MP_ASSIGN_OR_RETURN(std::shared_ptr<const TokenFile> file, TokenFile::Open(path));
  const int64_t least = options.sequence_length + (options.next_token ? 1 : 0);
  if (file->size() < least) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": ", file->size(), " tokens; a sequence of ", options.sequence_length, " needs ",
        least,
        ": the sequence is longer than the file. Use more data or a smaller data.sequence_length"));
  }
  std::shared_ptr<TokenDataset> dataset(new TokenDataset(std::move(file), options));
  for (const LabelOptions& wanted : options.labels) {
    MP_ASSIGN_OR_RETURN(auto labels, LabelFile::Open(wanted.path, wanted.classes));
    if (labels->size() != dataset->file().size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(wanted.path, ": ", labels->size(), " labels, but ", path, " has ",
                       dataset->file().size(), " tokens: give one label for each, -1 for none"));
    }
    MP_RETURN_IF_ERROR(
        labels->CheckAnyLabel(dataset->samples() * options.sequence_length, wanted.head));
    dataset->labels_.push_back(std::move(labels));
  }
  MP_RETURN_IF_ERROR(dataset->OpenLossMask());
  return dataset;
}

absl::Status TokenDataset::OpenLossMask() {
  const std::string& path = options_.loss_mask;
  if (path.empty()) return absl::OkStatus();
  MP_CHECK(options_.next_token) << "a loss mask of what is its own target";
  auto mask = LabelFile::Open(path, kMaskClasses);
  if (!mask.ok()) return InMask(mask.status());
  loss_mask_ = *std::move(mask);
  if (loss_mask_->size() != file_->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", loss_mask_->size(), " numbers, but ", file_->path(), " has ",
                     file_->size(), " tokens: give one for each, 1 for a target and 0 for none"));
  }
  return CheckAnyTarget(*loss_mask_, samples_ * options_.sequence_length, path);
}

TokenDataset::TokenDataset(std::shared_ptr<const TokenFile> file, const DatasetOptions& options)
    : file_(std::move(file)),
      options_(options),
      samples_((file_->size() - (options.next_token ? 1 : 0)) / options.sequence_length) {}

absl::Status TokenDataset::FetchSample(int64_t sample, int32_t* tokens, int32_t* targets) const {
  // The targets are the inputs shifted by one: read T tokens, move them, read the last one.
  const int64_t length = options_.sequence_length;
  const int64_t begin = sample * length;
  MP_RETURN_IF_ERROR(file_->Read(begin, options_.vocabulary, absl::MakeSpan(tokens, length)));
  if (!options_.next_token) {
    std::memcpy(targets, tokens, length * sizeof(int32_t));
    return absl::OkStatus();
  }
  std::memcpy(targets, tokens + 1, (length - 1) * sizeof(int32_t));
  MP_RETURN_IF_ERROR(
      file_->Read(begin + length, options_.vocabulary, absl::MakeSpan(targets + length - 1, 1)));
  return loss_mask_ == nullptr ? absl::OkStatus() : MaskTargets(sample, targets);
}

// The target at a place is the token behind it.
absl::Status TokenDataset::MaskTargets(int64_t sample, int32_t* targets) const {
  constexpr int64_t kAtOnce = 256;
  int32_t mask[kAtOnce];
  const int64_t length = options_.sequence_length;
  for (int64_t t = 0; t < length; t += kAtOnce) {
    const int64_t count = std::min(kAtOnce, length - t);
    MP_RETURN_IF_ERROR(InMask(loss_mask_->Read(sample * length + t + 1,
                                               absl::MakeSpan(mask, static_cast<size_t>(count)))));
    for (int64_t i = 0; i < count; ++i) {
      if (mask[i] != 1) targets[t + i] = -1;
    }
  }
  return absl::OkStatus();
}

absl::Status TokenDataset::FetchLabels(int64_t sample, int64_t place,
                                       absl::Span<int32_t* const> labels) const {
  const int64_t length = options_.sequence_length;
  for (size_t i = 0; i < labels.size(); ++i) {
    MP_RETURN_IF_ERROR(
        labels_[i]->Read(sample * length, absl::MakeSpan(labels[i] + place * length, length)));
  }
  return absl::OkStatus();
}

std::vector<Field> TokenDataset::fields() const {
  const int64_t length = options_.sequence_length;
  const int64_t bytes = length * static_cast<int64_t>(sizeof(int32_t));
  std::vector<Field> fields = {{.name = "tokens", .sample_bytes = bytes},
                               {.name = "targets",
                                .sample_bytes = bytes,
                                .targets = loss_mask_ == nullptr ? length : kVaries}};
  for (const LabelOptions& labels : options_.labels) {
    fields.push_back({.name = labels.field, .sample_bytes = bytes, .targets = kVaries});
  }
  return fields;
}

// Of any id, and of labels that are none too: training may never come to them.
absl::Status TokenDataset::AddTo(Fingerprint* print, int64_t most_places) const {
  const int64_t size = file_->size();
  const int64_t length = std::min(size, kPlaceTokens);
  const std::vector<int64_t> places = Fingerprint::Places(size - length + 1, most_places);
  for (const int64_t begin : places) file_->WillNeed(begin, length);
  std::vector<int32_t> part(static_cast<size_t>(length));
  print->Add(size);
  for (const int64_t begin : places) {
    MP_RETURN_IF_ERROR(file_->Read(begin, kAnyId, absl::MakeSpan(part)));
    print->Add(part);
    for (const auto& labels : labels_) {
      if (labels->Read(begin, absl::MakeSpan(part)).ok()) print->Add(part);
    }
    if (loss_mask_ != nullptr && loss_mask_->Read(begin, absl::MakeSpan(part)).ok()) {
      print->Add(part);
    }
  }
  return absl::OkStatus();
}

absl::Status TokenDataset::FetchBatch(const SampleOrder& order, int64_t first, int64_t count,
                                      absl::Span<int32_t> tokens, absl::Span<int32_t> targets,
                                      absl::Span<int32_t* const> labels) const {
  const int64_t length = options_.sequence_length;
  MP_CHECK(labels.size() == labels_.size()) << labels.size();
  MP_CHECK(order.samples() == samples_) << "the order is of another dataset";
  MP_CHECK(static_cast<int64_t>(tokens.size()) == count * length &&
           tokens.size() == targets.size());
  int64_t epoch = -1;
  std::optional<Permutation> permutation;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t global = first + i;
    if (order.EpochOf(global) != epoch) {
      epoch = order.EpochOf(global);
      permutation.emplace(order.PermutationOf(epoch));
    }
    const int64_t sample = (*permutation)(global % samples_);
    MP_RETURN_IF_ERROR(
        FetchSample(sample, tokens.data() + i * length, targets.data() + i * length));
    MP_RETURN_IF_ERROR(FetchLabels(sample, i, labels));
  }
  return absl::OkStatus();
}

absl::Status TokenDataset::FetchInOrder(int64_t first, int64_t count, absl::Span<int32_t> tokens,
                                        absl::Span<int32_t> targets,
                                        absl::Span<int32_t* const> labels) const {
  const int64_t length = options_.sequence_length;
  MP_CHECK(labels.size() == labels_.size()) << labels.size();
  MP_CHECK(first >= 0 && first + count <= samples_) << first << "+" << count << " of " << samples_;
  MP_CHECK(static_cast<int64_t>(tokens.size()) == count * length &&
           tokens.size() == targets.size());
  for (int64_t i = 0; i < count; ++i) {
    MP_RETURN_IF_ERROR(
        FetchSample(first + i, tokens.data() + i * length, targets.data() + i * length));
    MP_RETURN_IF_ERROR(FetchLabels(first + i, i, labels));
  }
  return absl::OkStatus();
}

TokensInOrder::TokensInOrder(std::shared_ptr<const TokenDataset> dataset)
    : dataset_(std::move(dataset)), fields_(dataset_->fields()) {}

absl::Status TokensInOrder::Fetch(int64_t first, int64_t count,
                                  absl::Span<char* const> into) const {
  const auto size = static_cast<size_t>(count * dataset_->sequence_length());
  absl::InlinedVector<int32_t*, kInlineFields> arrays;
  for (char* field : into) arrays.push_back(reinterpret_cast<int32_t*>(field));
  return dataset_->FetchInOrder(first, count, {arrays[0], size}, {arrays[1], size},
                                absl::MakeSpan(arrays).subspan(2));
}

absl::StatusOr<int64_t> TokensInOrder::CountTargets(size_t field, int64_t first,
                                                    int64_t count) const {
  if (fields_[field].targets == kVaries) return CountByFetching(*this, field, first, count);
  return SampleSource::CountTargets(field, first, count);
}

absl::Status TokensInOrder::AddTo(Fingerprint* print) const {
  return dataset_->AddTo(print, kFingerprintPlaces);
}

int64_t ValidationTurns(int64_t total, const BatchLayout& layout) {
  const int64_t per_turn = layout.micro_batch * layout.world;
  return (total + per_turn - 1) / per_turn;
}

ValidationShare ValidationShareOf(int64_t total, const BatchLayout& layout, int64_t turn) {
  const int64_t first = std::min(total, (turn * layout.world + layout.rank) * layout.micro_batch);
  return {first, std::min(layout.micro_batch, total - first)};
}

}  // namespace milepost::data
