// Exponential moving averages of the trained parameters. These work on flat groups
// (plan::FlatGroup), not on values.
#include "engine/ops/op_definition.h"

namespace milepost::ops {

// After the update, where the step makes one; one group's shard: master, average -> average.
constinit const OpDefinition kAverageParameters = {.cost = NoCost};

// One group's shard: the parameters become the average, or what they were. Where the parameters are
// their own master, the average's bytes hold them meanwhile.
constinit const OpDefinition kExchangeAverages = {.cost = NoCost};

}  // namespace milepost::ops
