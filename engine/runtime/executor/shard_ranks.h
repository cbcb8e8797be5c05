// Internal: the ranks among which a rank's shards are cut.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_SHARD_RANKS_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_SHARD_RANKS_H_

#include "engine/comm/communicator.h"
#include "engine/plan/step_plan.h"

namespace milepost::runtime {

// Neighbours that together hold each shard once; everyone where nothing is sharded.
inline comm::RankSet ShardRanks(const plan::PlanOptions& options, int rank) {
  const int shards = options.Shards();
  return shards == 1 ? comm::RankSet{} : comm::RankSet{rank / shards * shards, shards, 1};
}

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_SHARD_RANKS_H_
