// AdamW with m and v in 8 bits (Dettmers et al., 2022).
#include "engine/optim/optimizer_definition.h"

namespace milepost::optim {

constinit const OptimizerDefinition kAdamW8Bit = {
    .name = "adamw_8bit", .states = {"m", "v"}, .quantized = true, .updates = Updates::kMatrices};

}  // namespace milepost::optim
