// Adan (Xie et al., "Adan: Adaptive Nesterov Momentum Algorithm for Faster Optimizing Deep Models",
// 2022). Its states: the averages of gradients (m), of their changes (v) and of squares (n); the
// gradient of the update before (g).
#include "engine/optim/optimizer_definition.h"

namespace milepost::optim {

constinit const OptimizerDefinition kAdan = {.name = "adan", .states = {"m", "v", "n", "g"}};

}  // namespace milepost::optim
