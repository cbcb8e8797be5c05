// What an optimizer is to the planner: a record, which its room defines (engine/optim/<room>/).
//
//   const OptimizerDefinition& definition = optim::DefinitionOf(group.optimizer);
//   for (int i = 0; i < definition.StateCount(); ++i) ... definition.states[i] ...   // "m", "v"
//
// A new optimizer is a room and a line in optimizers.inc. One without a definition, or without a
// record for the CPU or for a GPU (<room>_cpu.cc, <room>_cuda.cc), does not link.
#ifndef MILEPOST_ENGINE_OPTIM_OPTIMIZER_DEFINITION_H_
#define MILEPOST_ENGINE_OPTIM_OPTIMIZER_DEFINITION_H_

#include <array>
#include <cstdint>

#include "engine/ops/contract/optimizer_states.h"

namespace milepost::optim {

enum class Optimizer : uint8_t {
#define MP_OPTIMIZER(name, type) k##name,
#include "engine/optim/optimizers.inc"
#undef MP_OPTIMIZER
};

// What a step needs to know before it can change an element.
enum class StepNeeds : uint8_t {
  kElement,        // the element's own gradient and states: one pass
  kTensorNorms,    // norms over the whole tensor, after the states: kUpdateNorms comes first
  kWholeMatrices,  // the orthogonalised momentum of the whole matrix: kOrthogonalize comes first
};

// Which parameters it updates. AdamW updates the others.
enum class Updates : uint8_t {
  kAll,
  kMatrices,        // those of two and more dimensions
  kHiddenMatrices,  // the matrices of layers: no embedding, no head. Others take `adamw_lr`
};

struct OptimizerDefinition {
  const char* name = nullptr;  // as the job spec writes it
  // What it keeps of each parameter beside the parameter, as checkpoints call it; null: no more.
  std::array<const char*, kernels::kMaxStates> states = {"m"};
  // The states are codes of 8 bits; kQuantizedBlock elements share a scale.
  bool quantized = false;
  StepNeeds needs = StepNeeds::kElement;
  Updates updates = Updates::kAll;

  constexpr int StateCount() const {
    int count = 0;
    while (count < kernels::kMaxStates && states[count] != nullptr) ++count;
    return count;
  }
};

const OptimizerDefinition& DefinitionOf(Optimizer optimizer);

#define MP_OPTIMIZER(name, type) extern const OptimizerDefinition k##name;
#include "engine/optim/optimizers.inc"
#undef MP_OPTIMIZER

}  // namespace milepost::optim

#endif  // MILEPOST_ENGINE_OPTIM_OPTIMIZER_DEFINITION_H_
