// The numbers of ranks with which an elastic job can run: resources.min_ranks to
// resources.max_ranks. Pure and thread-safe.
//
//   for (int ranks : PossibleSizes(spec)) plan(WithRanks(spec, ranks));
//
// The global batch is the same at every size. With fewer ranks each rank does more micro-steps.
#ifndef MILEPOST_COMMON_SPEC_SIZES_H_
#define MILEPOST_COMMON_SPEC_SIZES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "milepost/v1/job_spec.pb.h"

namespace milepost {

// Both are resources.ranks where the job sets no other bound.
int LeastRanks(const v1::ResourceSpec& resources);
int MostRanks(const v1::ResourceSpec& resources);

// At least 1: neighbouring ranks that divide each layer among them (resources.mesh.tensor); stages
// of such groups, which divide the blocks (resources.mesh.pipeline); such groups that divide the
// tokens of a sequence (resources.mesh.context); ranks that train on the same samples together,
// which are all of these; and groups of such ranks, each of which has samples of its own.
int TensorRanks(const v1::ResourceSpec& resources);
int PipelineStages(const v1::ResourceSpec& resources);
int ContextRanks(const v1::ResourceSpec& resources);
// Runs of blocks that each stage of an interleaved pipeline has (resources.mesh.chunks); else 1.
int PipelineChunks(const v1::ResourceSpec& resources);
// Micro-batches of a rank that are trained side by side, at most (train.batch.side_by_side).
int SideBySide(const v1::BatchSpec& batch);
// That a pipeline takes in a step: a stage's program has all of them in it.
inline constexpr int64_t kMaxMicroBatches = 256;
int ModelRanks(const v1::ResourceSpec& resources);
int DataRanks(const v1::ResourceSpec& resources);
// At least 1: neighbours among data and context ranks, each of which has some of the model's
// experts (resources.mesh.expert).
int ExpertRanks(const v1::ResourceSpec& resources);
// Of data ranks times context ranks, how many there are.
int StateRanks(const v1::ResourceSpec& resources);
// At least 1: into how many islands of ranks that train apart these are divided (train.sync).
int Islands(const v1::JobSpec& spec);
// As messages call ModelRanks: "resources.mesh.tensor", "resources.mesh.tensor * pipeline".
std::string ModelRanksName(const v1::ResourceSpec& resources);
// The same as divisors of ranks: "ranks", "(ranks / tensor / pipeline)".
std::string DataRanksName(const v1::ResourceSpec& resources);

// The numbers of tensor ranks that the spec may have besides what it has (docs/use/parallelism.md),
// ascending; 1 among them. Whether the batch can be cut accordingly is not looked at.
std::vector<int> PossibleTensors(const v1::JobSpec& normalized);

// The same of context ranks, beside the tensor ranks and stages that it has.
std::vector<int> PossibleContexts(const v1::JobSpec& normalized);

// The same of expert ranks, beside all that it has; 1 alone where the model has no experts.
std::vector<int> PossibleExperts(const v1::JobSpec& normalized);

// Whether so many context ranks divide the heads of a tensor rank; those of keys may be shared.
// Else neighbours share queries.
bool ContextDividesHeads(const v1::JobSpec& normalized, int context);

// True when the global batch is a whole number of micro-batches per data rank, and the ranks
// form whole shard groups, stages, tensor ranks and groups of expert ranks.
bool IsPossibleSize(const v1::JobSpec& normalized, int ranks);

// The possible sizes of a valid, normalised spec, ascending. resources.ranks is among them.
std::vector<int> PossibleSizes(const v1::JobSpec& normalized);

// The spec for `ranks` ranks, which must be a possible size.
v1::JobSpec WithRanks(v1::JobSpec spec, int ranks);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_SIZES_H_
