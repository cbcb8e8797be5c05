// What expert ranks exchange: how a rank's rows lie before and behind it.
#ifndef MILEPOST_ENGINE_OPS_EXPERT_PARALLEL_EXPERT_PARALLEL_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_EXPERT_PARALLEL_EXPERT_PARALLEL_CONTRACT_H_

#include <algorithm>
#include <cstdint>

namespace milepost::kernels {

// Of one rank. Its own rows lie by expert. So those for the experts of one rank follow each other.
// What it gets lies by rank and, of one rank, by expert.
struct ExpertRowsShape {
  int64_t ranks = 1;
  int64_t experts = 1;  // of all ranks; each has as many neighbouring ones
  int64_t rows = 0;     // own
  int64_t row_bytes = 0;

  int64_t OwnExperts() const { return experts / ranks; }
};

// Rows that a rank may get: of each token, which picks `per_token` experts, one for each expert
// that the rank has. `tokens`: of one rank.
inline int64_t MostExpertRows(int64_t tokens, int64_t per_token, int64_t experts, int64_t ranks) {
  return ranks * tokens * std::min(per_token, experts / ranks);
}

// kExpertSegments' workspace: how many rows go to each expert, and behind that how many come for
// each own one of each rank. Both i32[E], of each rank E / R.
inline int64_t ExpertCountsBytes(int64_t experts) {
  return experts * static_cast<int64_t>(sizeof(int32_t));
}

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_EXPERT_PARALLEL_EXPERT_PARALLEL_CONTRACT_H_
