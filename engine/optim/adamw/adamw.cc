// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019).
#include "engine/optim/optimizer_definition.h"

namespace milepost::optim {

constinit const OptimizerDefinition kAdamW = {.name = "adamw", .states = {"m", "v"}};

}  // namespace milepost::optim
