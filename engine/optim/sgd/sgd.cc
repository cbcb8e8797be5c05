// SGD with momentum, as torch.optim.SGD has it.
#include "engine/optim/optimizer_definition.h"

namespace milepost::optim {

constinit const OptimizerDefinition kSgd = {.name = "sgd"};

}  // namespace milepost::optim
