// What an optimizer is to the planner: a record, which its room defines (engine/optim/<room>/).
//
//   const OptimizerDefinition& definition = optim::DefinitionOf(group.optimizer);
//   if (definition.moments > 1) ...   // it keeps v beside m
//
// A new optimizer is a room and a line in optimizers.inc. One without a definition, or without a
// record for the CPU or for a GPU (<room>_cpu.cc, <room>_cuda.cc), does not link.
#ifndef MILEPOST_ENGINE_OPTIM_OPTIMIZER_DEFINITION_H_
#define MILEPOST_ENGINE_OPTIM_OPTIMIZER_DEFINITION_H_

#include <cstdint>

namespace milepost::optim {

enum class Optimizer : uint8_t {
#define MP_OPTIMIZER(name, type) k##name,
#include "engine/optim/optimizers.inc"
#undef MP_OPTIMIZER
};

// What a step needs to know before it can change an element.
enum class StepNeeds : uint8_t {
  kElement,        // the element's own gradient and moments: one pass
  kTensorNorms,    // norms over the whole tensor, after the moments: kUpdateNorms comes first
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
  int moments = 1;             // state beside the parameters: m; of two, m and v
  // m and v are codes of 8 bits; kQuantizedBlock elements share a scale.
  bool quantized = false;
  StepNeeds needs = StepNeeds::kElement;
  Updates updates = Updates::kAll;
};

const OptimizerDefinition& DefinitionOf(Optimizer optimizer);

#define MP_OPTIMIZER(name, type) extern const OptimizerDefinition k##name;
#include "engine/optim/optimizers.inc"
#undef MP_OPTIMIZER

}  // namespace milepost::optim

#endif  // MILEPOST_ENGINE_OPTIM_OPTIMIZER_DEFINITION_H_
