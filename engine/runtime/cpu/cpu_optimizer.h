// Internal to the CPU's backend and to the rooms of optimizers: what the CPU does for each
// optimizer.
//
//   constinit const CpuOptimizer kLion = MP_CPU_OPTIMIZER(LionUpdate);   // lion/lion_cpu.cc
//
// An optimizer without one does not link.
#ifndef MILEPOST_ENGINE_RUNTIME_CPU_CPU_OPTIMIZER_H_
#define MILEPOST_ENGINE_RUNTIME_CPU_CPU_OPTIMIZER_H_

#include <array>
#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/optim/optimizer_definition.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/group_ops.h"
#include "engine/runtime/executor/step_context.h"

namespace milepost::runtime {

// One call: elements [0, n), which are updated alike. Addresses are those of its first one.
template <typename T>
struct CpuUpdate {
  const StepContext& step;
  const plan::FlatGroup& group;
  const Segment& segment;
  int64_t n = 0;
  float* master = nullptr;
  // The optimizer's, in its definition's order; null: it keeps no more. Where they are quantized
  // `codes` and `scales` are set instead, and the first element begins a block.
  std::array<float*, kernels::kMaxStates> states = {};
  const float* gradient = nullptr;
  T* copy = nullptr;  // null: the parameter is its own master
  std::array<uint8_t*, kernels::kMaxStates> codes = {};
  std::array<float*, kernels::kMaxStates> scales = {};
  const double* norms = nullptr;  // StepNeeds::kTensorNorms: a pair for each tensor of the group

  float LearningRate() const { return segment.LearningRate(step); }
  float WeightDecay() const { return segment.WeightDecay(step); }
};

struct CpuOptimizer {
  void (*f32)(const CpuUpdate<float>& update) = nullptr;
  void (*bf16)(const CpuUpdate<milepost::bf16>& update) = nullptr;
  void (*f16)(const CpuUpdate<milepost::f16>& update) = nullptr;

  void operator()(const CpuUpdate<float>& update) const { f32(update); }
  void operator()(const CpuUpdate<milepost::bf16>& update) const { bf16(update); }
  void operator()(const CpuUpdate<milepost::f16>& update) const { f16(update); }
};
// Of a template over the parameter's type.
#define MP_CPU_OPTIMIZER(update) \
  { .f32 = update<float>, .bf16 = update<::milepost::bf16>, .f16 = update<::milepost::f16> }

}  // namespace milepost::runtime

namespace milepost::optim::cpu {

using runtime::CpuOptimizer;
using runtime::CpuUpdate;

#define MP_OPTIMIZER(name, type) extern const CpuOptimizer k##name;
#include "engine/optim/optimizers.inc"
#undef MP_OPTIMIZER

}  // namespace milepost::optim::cpu

#endif  // MILEPOST_ENGINE_RUNTIME_CPU_CPU_OPTIMIZER_H_
