// Internal: sets of ranks: those among which a rank's shards are cut, and others of a mesh.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_SHARD_RANKS_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_SHARD_RANKS_H_

#include "engine/comm/communicator.h"
#include "engine/plan/step_plan.h"

namespace milepost::runtime {

// All ranks of the island of `rank` (of the job).
inline comm::RankSet IslandRanks(const plan::PlanOptions& options, int rank) {
  return {options.IslandOf(rank) * options.Ranks(), options.Ranks(), 1};
}

// Those of other islands, and itself, that have what `rank` (of the job) has.
inline comm::RankSet AmongIslands(const plan::PlanOptions& options, int rank) {
  return {rank % options.Ranks(), options.islands, options.Ranks()};
}

// Data ranks as ranks of the job, of which each has island, tensor rank and stage of `rank`, which
// is one of the job.
inline comm::RankSet AmongAllRanks(const plan::PlanOptions& options,
                                   const comm::RankSet& data_ranks, int rank) {
  const int model = options.ModelRanks();
  const int first =
      IslandRanks(options, rank).first + options.stage * options.tensor + options.TensorRank(rank);
  return {first + data_ranks.first * model, data_ranks.count, data_ranks.stride * model};
}

// All data ranks that have island, tensor rank and stage of `rank` (of the job).
inline comm::RankSet DataRanks(const plan::PlanOptions& options, int rank) {
  return AmongAllRanks(options, {0, options.world, 1}, rank);
}

// Those with data and tensor rank of `rank` (of the job) in the first and the last stage.
inline comm::RankSet OuterStages(const plan::PlanOptions& options, int rank) {
  const int first = rank / options.ModelRanks() * options.ModelRanks();
  return {first + options.TensorRank(rank), 2, (options.pipeline - 1) * options.tensor};
}

// Of data rank `rank`: those that train on the same samples.
inline comm::RankSet ContextRanks(const plan::PlanOptions& options, int rank) {
  return {rank / options.context * options.context, options.context, 1};
}

// Of data rank `rank`: those that share out the model's experts with it.
inline comm::RankSet ExpertRanks(const plan::PlanOptions& options, int rank) {
  return {rank / options.expert * options.expert, options.expert, 1};
}

// Of data rank `rank`: neighbours that together hold each shard once; none where nothing is
// sharded.
inline comm::RankSet ShardRanks(const plan::PlanOptions& options, int rank) {
  const int shards = options.Shards();
  return shards == 1 ? comm::RankSet{} : comm::RankSet{rank / shards * shards, shards, 1};
}

// The same of a group that the rank has; where nothing is sharded, all that have it.
inline comm::RankSet ShardRanks(const plan::PlanOptions& options, const plan::FlatGroup& group,
                                int rank) {
  if (group.of_experts) return {rank % options.expert, group.Ranks(options), options.expert};
  const comm::RankSet shards = ShardRanks(options, rank);
  return shards.count == 0 ? comm::RankSet{0, options.world, 1} : shards;
}

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_SHARD_RANKS_H_
