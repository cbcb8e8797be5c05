// Whom a device waits for in vain: asked over the hosts' own communicator, once a collective
// between devices is overdue, since NCCL does not tell.
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

// A collective: ranks that wait for their devices all come here, and those that do not are the ones
// that are missing. `position` grows in every rank by the same steps. Empty for a world of one;
// else "; " and what was found. Blocks for the communicator's time-out at most, and may poison it.
std::string MissingRanks(Communicator& ranks, int64_t position);

// The same, of positions that are known, by rank.
std::string DescribePositions(absl::Span<const int64_t> positions);

}  // namespace milepost::comm

#endif  // MILEPOST_ENGINE_COMM_MISSING_RANKS_H_
