// Adds to token ids what a model needs beyond them: tokens to find again, and the bounds of
// documents, segments and padding. It wraps a source of "tokens" and "targets", T each, and perhaps
// of labels. Labels stay with their tokens; those of padding become -1.
//
//   TextOptions options{.vocabulary = 30522, .seed = 7};
//   options.masking =
//       Masking{.probability = 0.15, .mask_token = 103, .special_tokens = {101, 102}};
//   auto source = std::make_shared<TextSource>(tokens, options);
//   source->fields();   // "tokens", "targets", and what the options ask for beyond them
//
// With masking: each token is chosen with the given probability, independently of others.
// Separators, padding and special tokens are never chosen. A chosen token is its own target, and
// all other targets are -1. Of 10 chosen tokens 8 become mask_token, 1 becomes a random id below
// the vocabulary, and 1 stays, on average (Devlin et al. 2018).
//
// The draw depends only on (seed, pass, sample, position). The sample is its number in the source's
// order. So training draws anew in each epoch, and validation draws the same every time. The values
// never change, because resumed runs rely on them.
//
// With documents (a separator or padding is given): "documents" holds an id for each position,
// which grows by one where a document begins. "positions" holds the place within the document. A
// separator ends its own document. A run of padding is a document. Without masking, a target
// becomes -1 when it is padding or lies in another document than its input.
//
// With segments (a separator is given): "segments" holds the number of segment separators before a
// position in its document, at most segments - 1.
//
// Immutable and thread-safe.
#ifndef MILEPOST_ENGINE_DATA_TEXT_SOURCE_H_
#define MILEPOST_ENGINE_DATA_TEXT_SOURCE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/sample_source.h"

namespace milepost::data {

struct Masking {
  double probability = 0.15;
  int32_t mask_token = 0;
  std::vector<int32_t> special_tokens;
};

enum class MaskingPass : uint8_t { kTraining, kValidation };

struct TextOptions {
  int64_t vocabulary = 0;
  uint64_t seed = 0;
  MaskingPass pass = MaskingPass::kTraining;
  std::optional<Masking> masking;
  std::optional<int32_t> document_separator;
  std::optional<int32_t> padding;
  std::optional<int32_t> segment_separator;
  int64_t segments = 1;
  // With documents: adds the field "pairs", i32, for losses over pairs of documents: two that
  // follow each other in a sample and both have a target. It is 0 at the first position of each
  // pair, and -1 elsewhere. Fetch then refuses a sample that ends within a document.
  bool pairs = false;

  bool Documents() const { return document_separator.has_value() || padding.has_value(); }
  bool Segments() const { return segment_separator.has_value(); }
  // True when the options ask for anything.
  bool Any() const { return masking.has_value() || Documents() || Segments(); }
};

class TextSource : public SampleSource {
 public:
  // `tokens` has the fields "tokens" and "targets", i32, in this order, then fields of labels.
  TextSource(std::shared_ptr<const SampleSource> tokens, const TextOptions& options);

  const std::vector<Field>& fields() const override { return fields_; }
  int64_t samples() const override { return tokens_->samples(); }
  absl::Status Fetch(int64_t first, int64_t count, absl::Span<char* const> into) const override;
  // Both read the samples.
  absl::StatusOr<int64_t> CountTargets(size_t field, int64_t first, int64_t count) const override;
  absl::StatusOr<int64_t> CountDocuments(int64_t first, int64_t count) const override;
  absl::Status AddTo(Fingerprint* print) const override { return tokens_->AddTo(print); }

 private:
  struct Sample;

  bool Begins(int32_t before, int32_t token) const;
  void Mark(const Sample& sample) const;
  void Mask(int64_t number, const Sample& sample) const;
  int32_t InsteadOf(int32_t token, uint32_t what, uint32_t random) const;
  void CutTargets(const Sample& sample) const;
  absl::Status Pair(int64_t number, const Sample& sample) const;
  bool Maskable(int32_t token) const;
  void CutLabels(const int32_t* tokens, int32_t* labels) const;

  const std::shared_ptr<const SampleSource> tokens_;
  const TextOptions options_;
  const int64_t length_;  // T
  const size_t given_;    // number of fields of `tokens_`
  std::vector<Field> fields_;
  std::vector<int32_t> unmaskable_;  // sorted
  uint32_t threshold_ = 0;           // a token is chosen when a random word is below it
  bool always_ = false;              // probability 1
};

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_TEXT_SOURCE_H_
