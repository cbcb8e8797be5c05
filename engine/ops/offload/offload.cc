// Copies between the device's memory, its host's and a disk, where something is offloaded.
#include "engine/ops/op_definition.h"

namespace milepost::ops {

// This rank's shard of one group's reduced gradient -> its place on the host.
constinit const OpDefinition kGradientsToHost = {.cost = NoCost};

// The step's reduced scalars -> a copy on the host, whose kOptimizer they tell whether and how to
// update.
constinit const OpDefinition kScalarsToHost = {.cost = NoCost};

// One group's parameters, as the host's kOptimizer made them -> the shard.
constinit const OpDefinition kParametersToDevice = {.cost = NoCost};

// Where a group's state lies on disk between updates: its master, m and v, from the disk to their
// place on the host.
constinit const OpDefinition kReadState = {.cost = NoCost};

// kReadState's other way, after the group's kOptimizer.
constinit const OpDefinition kWriteState = {.cost = NoCost};

// x -> x, on the host.
constinit const OpDefinition kCopyToHost = {};

// x, on the host -> x.
constinit const OpDefinition kCopyToDevice = {};

}  // namespace milepost::ops
