#include "engine/optim/optimizer_definition.h"

namespace milepost::optim {

const OptimizerDefinition& DefinitionOf(Optimizer optimizer) {
  static constexpr const OptimizerDefinition* kDefinitions[] = {
#define MP_OPTIMIZER(name, type) &k##name,
#include "engine/optim/optimizers.inc"
#undef MP_OPTIMIZER
  };
  return *kDefinitions[static_cast<int>(optimizer)];
}

}  // namespace milepost::optim
