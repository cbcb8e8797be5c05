// Samples for next-token prediction out of a token file, and which of them belong to which rank.
//
//   MP_ASSIGN_OR_RETURN(auto dataset, TokenDataset::Open("train.npy", {.sequence_length = 256,
//                                                                      .vocabulary = 256}));
//   SampleOrder order(dataset->samples(), seed);
//   MP_RETURN_IF_ERROR(dataset->FetchBatch(order, first_global_sample, count, tokens, targets));
//
// Sample i covers tokens [i*T, i*T + T + 1) of the file: inputs are the first T, targets the last
// T.
#ifndef MILEPOST_ENGINE_DATA_DATASET_H_
#define MILEPOST_ENGINE_DATA_DATASET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/fingerprint.h"
#include "engine/data/label_file.h"
#include "engine/data/sample_source.h"
#include "engine/data/sampler.h"
#include "engine/data/token_file.h"

namespace milepost::data {

struct DatasetOptions {
  int64_t sequence_length = 0;  // T, at least 1
  int64_t vocabulary = 0;       // ids must be below it; 1 to 2^31
  // Targets are the tokens one on. False: the tokens themselves; sample i is tokens [i*T, i*T + T).
  bool next_token = true;
  // Further fields: the labels of each token, T of a sample. Not shifted by one as targets are.
  std::vector<LabelOptions> labels;
};

// Which global samples a rank works on. Step s (counted from 0) uses [s*G, (s+1)*G) of the global
// order, G = micro_batch * accumulation * world; micro-step a of it is [a*micro*world, ...) of
// those, and rank r has the r-th `micro_batch` samples of the micro-step. The samples of a step
// therefore do not depend on the world size, as long as G does not.
struct BatchLayout {
  int64_t micro_batch = 1;
  int64_t accumulation = 1;
  int rank = 0;
  int world = 1;

  int64_t GlobalBatch() const { return micro_batch * accumulation * world; }
  // The first of the `micro_batch` global samples of (step, micro-step) when the step starts at
  // global sample `step_first` (= s*G, or samples_consumed of a restored state).
  int64_t FirstSample(int64_t step_first, int64_t micro_step) const {
    return step_first + (micro_step * world + rank) * micro_batch;
  }
};

// Immutable and thread-safe.
class TokenDataset {
 public:
  // TokenFile::Open's errors and LabelFile::Open's, and INVALID_ARGUMENT when the file holds too
  // few tokens for one sample, labels are not as many as tokens, or all of them are -1.
  static absl::StatusOr<std::shared_ptr<const TokenDataset>> Open(const std::string& path,
                                                                  const DatasetOptions& options);

  int64_t samples() const { return samples_; }  // of one epoch: as many as the file holds
  int64_t sequence_length() const { return options_.sequence_length; }
  int64_t vocabulary() const { return options_.vocabulary; }
  const TokenFile& file() const { return *file_; }

  // Samples [first, first + count) of the global order, row-major [count, T] int32 each. Blocks on
  // the disk when pages are not in memory. INVALID_ARGUMENT, naming file, position, id and
  // vocabulary, for an id outside the vocabulary. `labels`: of each of the options', [count, T].
  absl::Status FetchBatch(const SampleOrder& order, int64_t first, int64_t count,
                          absl::Span<int32_t> tokens, absl::Span<int32_t> targets,
                          absl::Span<int32_t* const> labels = {}) const;

  // Samples [first, first + count) in the file's own order: validation.
  absl::Status FetchInOrder(int64_t first, int64_t count, absl::Span<int32_t> tokens,
                            absl::Span<int32_t> targets,
                            absl::Span<int32_t* const> labels = {}) const;

  // "tokens" and "targets", i32 each, every target valid; then those of the labels.
  std::vector<Field> fields() const;

  // Of tokens and labels at that many places at most. SampleSource::AddTo.
  absl::Status AddTo(Fingerprint* print, int64_t most_places) const;

 private:
  TokenDataset(std::shared_ptr<const TokenFile> file, const DatasetOptions& options);
  absl::Status FetchSample(int64_t sample, int32_t* tokens, int32_t* targets) const;
  absl::Status FetchLabels(int64_t sample, int64_t place, absl::Span<int32_t* const> labels) const;

  std::shared_ptr<const TokenFile> file_;
  DatasetOptions options_;
  std::vector<std::shared_ptr<const LabelFile>> labels_;
  int64_t samples_;
};

// A file's samples in its own order: validation.
class TokensInOrder : public SampleSource {
 public:
  explicit TokensInOrder(std::shared_ptr<const TokenDataset> dataset);

  const std::vector<Field>& fields() const override { return fields_; }
  int64_t samples() const override { return dataset_->samples(); }
  absl::Status Fetch(int64_t first, int64_t count, absl::Span<char* const> into) const override;
  absl::StatusOr<int64_t> CountTargets(size_t field, int64_t first, int64_t count) const override;
  absl::Status AddTo(Fingerprint* print) const override;

 private:
  std::shared_ptr<const TokenDataset> dataset_;
  std::vector<Field> fields_;
};

// The part [first, first + count) of `total` validation samples that `rank` evaluates, in whole
// batches where possible: ranks take turns of `micro_batch` samples; the last turns may be short or
// empty. Every sample belongs to exactly one rank.
struct ValidationShare {
  int64_t first = 0;
  int64_t count = 0;  // 0: nothing in this turn, but a rank with collectives still takes part
};
// `turns` = ceil(total / (micro_batch * world)); `turn` in [0, turns).
int64_t ValidationTurns(int64_t total, const BatchLayout& layout);
ValidationShare ValidationShareOf(int64_t total, const BatchLayout& layout, int64_t turn);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_DATASET_H_
