// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023).
#include "engine/optim/optimizer_definition.h"

namespace milepost::optim {

constinit const OptimizerDefinition kLion = {.name = "lion"};

}  // namespace milepost::optim
