// Chooses for each sample of a run which of several sets it comes from, and fetches the samples.
//
//   MP_ASSIGN_OR_RETURN(auto data, TokenMixture::Open({{"web.npy", 7}, {"code.bin", 3}}, options,
//                                                     seed));
//   MP_RETURN_IF_ERROR(data->FetchBatch(first_global_sample, count, tokens, targets));
//
// The choice is computed from (weights, seed, number of the sample) and never stored. It is the
// same at any world size and after any restart. Immutable and thread-safe.
#ifndef MILEPOST_ENGINE_DATA_MIXTURE_H_
#define MILEPOST_ENGINE_DATA_MIXTURE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/dataset.h"
#include "engine/data/sample_source.h"
#include "engine/data/sampler.h"

namespace milepost::data {

// Cuts the run into blocks of kBlock samples. Each set has the same number of places in every
// block: its weight's share, rounded by largest remainders. Each block shuffles the places by its
// own permutation. So a sample's set is known at once, and also how many samples that set has had
// before. Checkpoints rely on these values for the data order, so they never change.
class MixtureOrder {
 public:
  static constexpr int64_t kBlock = 1 << 20;

  struct Pick {
    size_t set = 0;
    int64_t index = 0;  // number of this set's earlier samples in the run
  };

  // INVALID_ARGUMENT: there are no weights, or one is not above 0 or is below a millionth of their
  // sum.
  static absl::StatusOr<MixtureOrder> Create(absl::Span<const double> weights, uint64_t seed);

  // global_sample >= 0. O(log sets).
  Pick At(int64_t global_sample) const;
  // The number of places of a set in each block.
  int64_t PlacesOf(size_t set) const { return ends_[set] - (set == 0 ? 0 : ends_[set - 1]); }

 private:
  MixtureOrder() = default;

  uint64_t seed_ = 0;
  std::vector<int64_t> ends_;  // ends of the sets' places before shuffling
};

struct WeightedPath {
  std::string path;
  double weight = 1;
  std::string loss_mask = {};  // DatasetOptions::loss_mask of this path
};

class TokenMixture : public SampleSource {
 public:
  // Errors are those of TokenDataset::Open and MixtureOrder::Create. With one path the samples have
  // the order of SampleOrder(samples, seed).
  static absl::StatusOr<std::shared_ptr<const TokenMixture>> Open(
      const std::vector<WeightedPath>& paths, const DatasetOptions& options, uint64_t seed);
  static std::shared_ptr<const TokenMixture> Of(std::shared_ptr<const TokenDataset> dataset,
                                                const SampleOrder& order);

  int64_t sequence_length() const { return sets_[0].dataset->sequence_length(); }

  // "tokens" and "targets", and the options' labels (only with one path). samples() counts all
  // sets.
  const std::vector<Field>& fields() const override { return fields_; }
  int64_t samples() const override;
  absl::Status Fetch(int64_t first, int64_t count, absl::Span<char* const> into) const override;
  absl::StatusOr<int64_t> CountTargets(size_t field, int64_t first, int64_t count) const override;
  absl::Status AddTo(Fingerprint* print) const override;

  // Reads samples [first, first + count) of the run, row-major [count, T] each. Like
  // TokenDataset::FetchBatch.
  absl::Status FetchBatch(int64_t first, int64_t count, absl::Span<int32_t> tokens,
                          absl::Span<int32_t> targets) const;

 private:
  struct Set {
    std::shared_ptr<const TokenDataset> dataset;
    SampleOrder order;
  };

  TokenMixture() = default;

  std::vector<Field> fields_;
  std::vector<Set> sets_;
  std::vector<MixtureOrder> order_;  // has one element if there are several sets
};

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_MIXTURE_H_
