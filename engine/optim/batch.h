// The batch triple: global = micro * accumulation * ranks.
//
//   MP_ASSIGN_OR_RETURN(BatchTriple batch, DeriveBatch({.global = 64, .micro = 8}, /*ranks=*/2));
//   // batch.accumulation == 4
#ifndef MILEPOST_ENGINE_OPTIM_BATCH_H_
#define MILEPOST_ENGINE_OPTIM_BATCH_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"

namespace milepost::optim {

struct BatchRequest {
  std::optional<int64_t> global;
  std::optional<int64_t> micro;
  std::optional<int64_t> accumulation;
};

struct BatchTriple {
  int64_t global = 0;        // sequences of one optimizer step, over all ranks
  int64_t micro = 0;         // sequences of one forward and backward of one rank
  int64_t accumulation = 0;  // micro-steps of one optimizer step

  friend bool operator==(const BatchTriple&, const BatchTriple&) = default;
};

// Any two derive the third; all three must agree. One alone is completed: micro or accumulation
// with 1 for the other; global alone with accumulation 1. INVALID_ARGUMENT names the fields
// (train.batch.*), the contradiction and the nearest values that are valid. ranks >= 1. Pure.
absl::StatusOr<BatchTriple> DeriveBatch(const BatchRequest& request, int64_t ranks);

}  // namespace milepost::optim

#endif  // MILEPOST_ENGINE_OPTIM_BATCH_H_
