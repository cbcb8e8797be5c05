// LAMB (You et al., "Large Batch Optimization for Deep Learning", 2020).
#include "engine/optim/optimizer_definition.h"

namespace milepost::optim {

constinit const OptimizerDefinition kLamb = {
    .name = "lamb", .states = {"m", "v"}, .needs = StepNeeds::kTensorNorms};

}  // namespace milepost::optim
