// Outer steps of islands that train apart (train.sync; Douillard et al., "DiLoCo", 2023). These
// work on flat groups (plan::FlatGroup), not on values.
//
// With I islands, and anchors that are the parameters after the outer step before:
//   d = anchor - mean of the islands' masters;  b = momentum b + d;
//   anchor -= lr (d + momentum b), or lr b where it is not Nesterov's;  the masters are the anchor.
// The optimizer's states become the islands' means.
#include "engine/ops/op_definition.h"

namespace milepost::ops {

// One group's shard, before the first step behind an outer one: master -> anchor.
constinit const OpDefinition kKeepAnchors = {.cost = NoCost};

// All-reduce (sum) over the islands of one state of a group's shard.
constinit const OpDefinition kAverageIslands = {.cost = NoCost};

// One group's shard: sums of masters and of states, anchor, momentum -> all of these, parameters.
constinit const OpDefinition kOuterUpdate = {.cost = NoCost};

}  // namespace milepost::ops
