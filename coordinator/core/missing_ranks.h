// Which ranks of a script did not come to a collective call that others waited for.
//
//   MissingRanks({{0, "workers/a", position}, ...}, /*failed=*/0)
//       == "3 ranks waited in all_reduce of Float[4, 3] (call 57 of default_pg) for rank 2 on "
//          "workers/b, which was at data.py:40 (batches)"
//
// Pure and thread-safe.
#ifndef MILEPOST_COORDINATOR_CORE_MISSING_RANKS_H_
#define MILEPOST_COORDINATOR_CORE_MISSING_RANKS_H_

#include <string>
#include <vector>

#include "milepost/v1/worker.pb.h"

namespace milepost::coordinator {

struct RankWhere {
  int rank = 0;
  std::string worker;
  v1::RankPosition position;
};

// One line. Empty: no call took too long, or the rank that `failed` first is one of those that did
// not come, so that its own message says why. Ranks that called another operation than the others
// are named too.
std::string MissingRanks(const std::vector<RankWhere>& ranks, int failed);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_MISSING_RANKS_H_
