#include "engine/data/dataset.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace milepost::data {

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
  return std::shared_ptr<const TokenDataset>(new TokenDataset(std::move(file), options));
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
  return file_->Read(begin + length, options_.vocabulary, absl::MakeSpan(targets + length - 1, 1));
}

absl::Status TokenDataset::FetchBatch(const SampleOrder& order, int64_t first, int64_t count,
                                      absl::Span<int32_t> tokens,
                                      absl::Span<int32_t> targets) const {
  const int64_t length = options_.sequence_length;
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
    MP_RETURN_IF_ERROR(FetchSample((*permutation)(global % samples_), tokens.data() + i * length,
                                   targets.data() + i * length));
  }
  return absl::OkStatus();
}

absl::Status TokenDataset::FetchInOrder(int64_t first, int64_t count, absl::Span<int32_t> tokens,
                                        absl::Span<int32_t> targets) const {
  const int64_t length = options_.sequence_length;
  MP_CHECK(first >= 0 && first + count <= samples_) << first << "+" << count << " of " << samples_;
  MP_CHECK(static_cast<int64_t>(tokens.size()) == count * length &&
           tokens.size() == targets.size());
  for (int64_t i = 0; i < count; ++i) {
    MP_RETURN_IF_ERROR(
        FetchSample(first + i, tokens.data() + i * length, targets.data() + i * length));
  }
  return absl::OkStatus();
}

std::vector<Field> TokenFields(int64_t sequence_length) {
  const int64_t bytes = sequence_length * static_cast<int64_t>(sizeof(int32_t));
  return {{.name = "tokens", .sample_bytes = bytes},
          {.name = "targets", .sample_bytes = bytes, .targets = sequence_length}};
}

TokensInOrder::TokensInOrder(std::shared_ptr<const TokenDataset> dataset)
    : dataset_(std::move(dataset)), fields_(TokenFields(dataset_->sequence_length())) {}

absl::Status TokensInOrder::Fetch(int64_t first, int64_t count,
                                  absl::Span<char* const> into) const {
  const auto size = static_cast<size_t>(count * dataset_->sequence_length());
  return dataset_->FetchInOrder(first, count, {reinterpret_cast<int32_t*>(into[0]), size},
                                {reinterpret_cast<int32_t*>(into[1]), size});
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
