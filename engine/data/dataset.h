// Samples for next-token prediction from a token file, and the split of samples among ranks.
//
//   MP_ASSIGN_OR_RETURN(auto dataset, TokenDataset::Open("train.npy", {.sequence_length = 256,
//                                                                      .vocabulary = 256}));
//   SampleOrder order(dataset->samples(), seed);
//   MP_RETURN_IF_ERROR(dataset->FetchBatch(order, first_global_sample, count, tokens, targets));
//
// Sample i covers tokens [i*T, i*T + T + 1) of the file. Inputs are the first T of them, targets
// the last T.
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
  // True: a token's target is the next token. False: it is the token itself, and sample i is tokens
  // [i*T, i*T + T).
  bool next_token = true;
  // Further fields: the labels of each token, T for a sample. Unlike targets, they are not shifted
  // by one.
  std::vector<LabelOptions> labels;
  // A LabelFile with 1 for each token that is a target, and 0 or -1 for the others. The targets of
  // the others become -1. Empty: all tokens are targets. Only with next_token.
  std::string loss_mask = {};
};

// Which global samples a rank works on. Step s (counted from 0) uses [s*G, (s+1)*G) of the global
// order, with G = micro_batch * accumulation * world. Micro-step a uses [a*micro*world, ...) of
// these. Rank r has the r-th `micro_batch` samples of the micro-step. So the samples of a step do
// not depend on the world size, as long as G does not.
struct BatchLayout {
  int64_t micro_batch = 1;
  int64_t accumulation = 1;
  int rank = 0;
  int world = 1;
  // Of neighbouring ranks that train apart: each has its part of a step's samples in one piece, at
  // any number of ranks. Divides world.
  int islands = 1;

  int64_t GlobalBatch() const { return micro_batch * accumulation * world; }
  // The first of the `micro_batch` global samples of (step, micro-step). `step_first` is the global
  // sample at which the step starts: s*G, or samples_consumed of a restored state.
  int64_t FirstSample(int64_t step_first, int64_t micro_step) const {
    const int ranks = world / islands;
    const int64_t of_island = rank / ranks * accumulation * ranks;
    return step_first + (of_island + micro_step * ranks + rank % ranks) * micro_batch;
  }
};

// Immutable and thread-safe.
class TokenDataset {
 public:
  // Errors: those of TokenFile::Open and LabelFile::Open. INVALID_ARGUMENT: the file holds too few
  // tokens for one sample, there are not as many labels as tokens, or all labels are -1; or the
  // same of the loss mask, or no token of it is a target.
  static absl::StatusOr<std::shared_ptr<const TokenDataset>> Open(const std::string& path,
                                                                  const DatasetOptions& options);

  int64_t samples() const { return samples_; }  // of one epoch: as many as the file holds
  int64_t sequence_length() const { return options_.sequence_length; }
  int64_t vocabulary() const { return options_.vocabulary; }
  const TokenFile& file() const { return *file_; }

  // Reads samples [first, first + count) of the global order, row-major [count, T] int32 each.
  // Blocks on the disk when pages are not in memory. INVALID_ARGUMENT names file, position, id and
  // vocabulary: an id is outside the vocabulary. `labels` has one destination [count, T] for each
  // of the options' labels.
  absl::Status FetchBatch(const SampleOrder& order, int64_t first, int64_t count,
                          absl::Span<int32_t> tokens, absl::Span<int32_t> targets,
                          absl::Span<int32_t* const> labels = {}) const;

  // Does the same in the file's own order, for validation.
  absl::Status FetchInOrder(int64_t first, int64_t count, absl::Span<int32_t> tokens,
                            absl::Span<int32_t> targets,
                            absl::Span<int32_t* const> labels = {}) const;

  // "tokens" and "targets", i32 each, with every target valid unless there is a loss mask; then the
  // fields of the labels.
  std::vector<Field> fields() const;

  // SampleSource::AddTo, for tokens, labels and loss mask at no more than `most_places` places.
  absl::Status AddTo(Fingerprint* print, int64_t most_places) const;

 private:
  TokenDataset(std::shared_ptr<const TokenFile> file, const DatasetOptions& options);
  absl::Status FetchSample(int64_t sample, int32_t* tokens, int32_t* targets) const;
  absl::Status OpenLossMask();
  absl::Status MaskTargets(int64_t sample, int32_t* targets) const;
  absl::Status FetchLabels(int64_t sample, int64_t place, absl::Span<int32_t* const> labels) const;

  std::shared_ptr<const TokenFile> file_;
  DatasetOptions options_;
  std::vector<std::shared_ptr<const LabelFile>> labels_;
  std::shared_ptr<const LabelFile> loss_mask_;  // null: all tokens are targets
  int64_t samples_;
};

// A file's samples in its own order, for validation.
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

// The part [first, first + count) of `total` validation samples that `rank` evaluates in a turn.
// Ranks take turns of `micro_batch` samples, in whole batches where possible. The last turns may be
// short or empty. Every sample belongs to exactly one rank.
struct ValidationShare {
  int64_t first = 0;
  int64_t count = 0;  // 0: no sample in this turn, but collectives still need the rank
};
// `turns` = ceil(total / (micro_batch * world)); `turn` in [0, turns).
int64_t ValidationTurns(int64_t total, const BatchLayout& layout);
ValidationShare ValidationShareOf(int64_t total, const BatchLayout& layout, int64_t turn);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_DATASET_H_
