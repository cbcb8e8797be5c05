// Finds the ranks for which a device waits in vain. NCCL does not name them. So once a collective
// between devices is overdue, the hosts ask each other over their own communicator.
//
//   absl::DeadlineExceededError(absl::StrCat("the GPU's work is not done after 1m",
//                                            MissingRanks(*communicator, micro_step)));
#ifndef MILEPOST_ENGINE_COMM_MISSING_RANKS_H_
#define MILEPOST_ENGINE_COMM_MISSING_RANKS_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "engine/comm/communicator.h"

namespace milepost::comm {

// A collective. All ranks that wait for their devices call it, and a rank that does not is missing.
// `position` grows by the same steps in every rank. Returns "; " and what was found; empty for a
// world of one. Blocks for at most the communicator's time-out, and may poison the communicator.
std::string MissingRanks(Communicator& ranks, int64_t position);

// Does the same for known positions, by rank.
std::string DescribePositions(absl::Span<const int64_t> positions);

}  // namespace milepost::comm

#endif  // MILEPOST_ENGINE_COMM_MISSING_RANKS_H_
