// Products of 8-bit codes (Micikevicius et al. 2022): what rounds to codes, and what scales them.
#include "engine/ops/op_definition.h"

namespace milepost::ops {

// `parts` matrices [Ri,C] as one [R,C], bf16; scaling -> codes[R,C]|kNoValue, turned
// codes[C,R]|kNoValue, amax|kNoValue, scaling|kNoValue. codes = round(scale x) in 8 bits; amax of
// x. In any phase.
constinit const OpDefinition kQuantize = {};

// Every tensor's largest magnitude in the step, of all ranks.
constinit const OpDefinition kGatherAmaxes = {.cost = NoCost};

// From those, every tensor's scaling in the next step, if this one updates.
constinit const OpDefinition kUpdateScalings = {.cost = NoCost};

}  // namespace milepost::ops
