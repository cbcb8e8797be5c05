// Muon (Jordan et al., 2024).
#include "engine/optim/optimizer_definition.h"

namespace milepost::optim {

constinit const OptimizerDefinition kMuon = {
    .name = "muon", .needs = StepNeeds::kWholeMatrices, .updates = Updates::kHiddenMatrices};

}  // namespace milepost::optim
