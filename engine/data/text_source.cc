#include "engine/data/text_source.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/philox.h"
#include "common/status_macros.h"

namespace milepost::data {
namespace {

// Streams of common/philox.h; engine/runtime/executor/randomness.h has those below 2^40.
constexpr uint64_t kTrainingStream = uint64_t{1} << 40;
constexpr uint64_t kValidationStream = uint64_t{2} << 40;

constexpr double kWords = 4294967296.0;

// Of the chosen tokens, in tenths.
constexpr uint32_t kReplaced = 8;
constexpr uint32_t kRandom = 9;

}  // namespace

// One sample's arrays; those that are not wanted are null.
struct TextSource::Sample {
  int32_t* tokens;
  int32_t* targets;
  int32_t* documents = nullptr;
  int32_t* positions = nullptr;
  int32_t* segments = nullptr;
  int32_t* pairs = nullptr;
};

TextSource::TextSource(std::shared_ptr<const SampleSource> tokens, const TextOptions& options)
    : tokens_(std::move(tokens)),
      options_(options),
      length_(tokens_->fields()[0].sample_bytes / static_cast<int64_t>(sizeof(int32_t))),
      given_(tokens_->fields().size()),
      fields_(tokens_->fields()) {
  MP_CHECK(given_ >= 2 && fields_[0].name == "tokens" && fields_[1].name == "targets");
  const int64_t bytes = fields_[0].sample_bytes;
  if (options_.masking || options_.Documents()) fields_[1].targets = kVaries;
  if (options_.Documents()) {
    fields_.push_back({.name = "documents", .sample_bytes = bytes});
    fields_.push_back({.name = "positions", .sample_bytes = bytes});
  }
  if (options_.pairs) {
    MP_CHECK(options_.Documents()) << "pairs are of documents";
    fields_.push_back({.name = "pairs", .sample_bytes = bytes, .targets = kVaries});
  }
  if (options_.Segments()) fields_.push_back({.name = "segments", .sample_bytes = bytes});
  if (!options_.masking) return;
  always_ = options_.masking->probability >= 1;
  if (!always_) threshold_ = static_cast<uint32_t>(options_.masking->probability * kWords);
  unmaskable_ = options_.masking->special_tokens;
  for (const auto& token :
       {options_.document_separator, options_.padding, options_.segment_separator}) {
    if (token) unmaskable_.push_back(*token);
  }
  std::sort(unmaskable_.begin(), unmaskable_.end());
}

bool TextSource::Maskable(int32_t token) const {
  return !std::binary_search(unmaskable_.begin(), unmaskable_.end(), token);
}

// Whether a document begins with `token`.
bool TextSource::Begins(int32_t before, int32_t token) const {
  return before == options_.document_separator ||
         (options_.padding && (before == *options_.padding) != (token == *options_.padding));
}

void TextSource::Mark(const Sample& sample) const {
  int32_t document = 0;
  int32_t position = 0;
  int32_t segment = 0;
  for (int64_t t = 0; t < length_; ++t) {
    const int32_t token = sample.tokens[t];
    if (t > 0) {
      const int32_t before = sample.tokens[t - 1];
      const bool begins = Begins(before, token);
      document += begins ? 1 : 0;
      position = begins ? 0 : position + 1;
      if (begins) {
        segment = 0;
      } else if (before == options_.segment_separator && segment + 1 < options_.segments) {
        ++segment;
      }
    }
    if (sample.documents != nullptr) {
      sample.documents[t] = document;
      sample.positions[t] = position;
    }
    if (sample.segments != nullptr) sample.segments[t] = segment;
  }
}

// What a token that is a target is replaced by. `what` and `random`: drawn.
int32_t TextSource::InsteadOf(int32_t token, uint32_t what, uint32_t random) const {
  const auto tenth = static_cast<uint32_t>(uint64_t{what} * 10 >> 32);
  if (tenth < kReplaced) return options_.masking->mask_token;
  if (tenth >= kRandom) return token;
  return static_cast<int32_t>(random * static_cast<uint64_t>(options_.vocabulary) >> 32);
}

// Counter: (position, 0, sample). Words: whether it is chosen, what becomes of it, the random id.
void TextSource::Mask(int64_t number, const Sample& sample) const {
  const bool training = options_.pass == MaskingPass::kTraining;
  const auto key = PhiloxKey(options_.seed, training ? kTrainingStream : kValidationStream);
  const auto wide = static_cast<uint64_t>(number);
  for (int64_t t = 0; t < length_; ++t) {
    const int32_t token = sample.tokens[t];
    sample.targets[t] = -1;
    const auto words = Philox4x32({static_cast<uint32_t>(t), 0, static_cast<uint32_t>(wide),
                                   static_cast<uint32_t>(wide >> 32)},
                                  key);
    if ((!always_ && words[0] >= threshold_) || !Maskable(token)) continue;
    sample.targets[t] = token;
    sample.tokens[t] = InsteadOf(token, words[1], words[2]);
  }
}

void TextSource::CutTargets(const Sample& sample) const {
  for (int64_t t = 0; t < length_; ++t) {
    const bool ends = sample.tokens[t] == options_.document_separator;
    const bool padded = options_.padding && (sample.tokens[t] == *options_.padding ||
                                             sample.targets[t] == *options_.padding);
    if (ends || padded) sample.targets[t] = -1;
  }
}

void TextSource::CutLabels(const int32_t* tokens, int32_t* labels) const {
  for (int64_t t = 0; t < length_; ++t) {
    if (tokens[t] == options_.padding) labels[t] = -1;
  }
}

absl::Status TextSource::Pair(int64_t number, const Sample& sample) const {
  const int32_t last = sample.tokens[length_ - 1];
  if (last != options_.document_separator && last != options_.padding) {
    return absl::InvalidArgumentError(
        absl::StrCat("sample ", number,
                     " ends within a document, and so may cut a pair in two: give the "
                     "data.sequence_length that `dataset tokenize` packed the pairs for, and its "
                     "document_separator"));
  }
  constexpr int64_t kNoPlace = -1;
  int64_t begin = 0;         // of this document
  int64_t first = kNoPlace;  // of one before it that has targets and is in no pair
  bool learns = false;
  for (int64_t t = 0; t < length_; ++t) {
    sample.pairs[t] = -1;
    learns |= sample.targets[t] >= 0;
    if (t + 1 < length_ && sample.documents[t + 1] == sample.documents[t]) continue;
    if (learns && first != kNoPlace) sample.pairs[first] = 0;
    first = learns && first == kNoPlace ? begin : kNoPlace;
    begin = t + 1;
    learns = false;
  }
  return absl::OkStatus();
}

absl::Status TextSource::Fetch(int64_t first, int64_t count, absl::Span<char* const> into) const {
  MP_CHECK(into.size() == fields_.size());
  MP_RETURN_IF_ERROR(tokens_->Fetch(first, count, into.subspan(0, given_)));
  absl::InlinedVector<int32_t*, kInlineFields> arrays;
  for (char* field : into) arrays.push_back(reinterpret_cast<int32_t*>(field));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = i * length_;
    Sample sample{arrays[0] + at, arrays[1] + at};
    if (options_.Documents()) {
      sample.documents = arrays[given_] + at;
      sample.positions = arrays[given_ + 1] + at;
    }
    if (options_.pairs) sample.pairs = arrays[given_ + 2] + at;
    if (options_.Segments()) sample.segments = arrays.back() + at;
    for (size_t labels = 2; options_.padding && labels < given_; ++labels) {
      CutLabels(sample.tokens, arrays[labels] + at);
    }
    if (options_.Documents() || options_.Segments()) Mark(sample);
    options_.masking ? Mask(first + i, sample) : CutTargets(sample);
    if (options_.pairs) MP_RETURN_IF_ERROR(Pair(first + i, sample));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> TextSource::CountTargets(size_t field, int64_t first, int64_t count) const {
  if (fields_[field].targets != kVaries) return tokens_->CountTargets(field, first, count);
  return CountByFetching(*this, field, first, count);
}

absl::StatusOr<int64_t> TextSource::CountDocuments(int64_t first, int64_t count) const {
  if (!options_.Documents()) return 0;
  // Kept by the thread: this is part of steps, which allocate nothing.
  static thread_local std::vector<char> scratch;
  int64_t all = 0;
  for (size_t field = 0; field < given_; ++field) all += fields_[field].sample_bytes;
  scratch.resize(std::max(scratch.size(), static_cast<size_t>(all)));
  absl::InlinedVector<char*, kInlineFields> into;
  char* next = scratch.data();
  for (size_t field = 0; field < given_; ++field) {
    into.push_back(next);
    next += fields_[field].sample_bytes;
  }
  const auto* tokens = reinterpret_cast<const int32_t*>(scratch.data());
  int64_t documents = 0;
  for (int64_t number = first; number < first + count; ++number) {
    MP_RETURN_IF_ERROR(tokens_->Fetch(number, 1, absl::MakeSpan(into)));
    ++documents;
    for (int64_t t = 1; t < length_; ++t) documents += Begins(tokens[t - 1], tokens[t]) ? 1 : 0;
  }
  return documents;
}

}  // namespace milepost::data
