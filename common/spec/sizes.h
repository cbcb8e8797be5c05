// With how many ranks an elastic job can run: resources.min_ranks to resources.max_ranks.
//
//   for (int ranks : PossibleSizes(spec)) plan(WithRanks(spec, ranks));
//
// The global batch is the same at every size: a rank does more micro-steps where there are fewer.
#ifndef MILEPOST_COMMON_SPEC_SIZES_H_
#define MILEPOST_COMMON_SPEC_SIZES_H_

#include <vector>

#include "milepost/v1/job_spec.pb.h"

namespace milepost {

// resources.ranks where there is no other bound.
int LeastRanks(const v1::ResourceSpec& resources);
int MostRanks(const v1::ResourceSpec& resources);

// The global batch is a whole number of micro-batches per rank, and ranks are whole shard groups.
bool IsPossibleSize(const v1::JobSpec& normalized, int ranks);

// Those of a valid, normalised spec; ascending, resources.ranks is among them.
std::vector<int> PossibleSizes(const v1::JobSpec& normalized);

// What `ranks` ranks are to do: a possible size.
v1::JobSpec WithRanks(v1::JobSpec spec, int ranks);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_SIZES_H_
