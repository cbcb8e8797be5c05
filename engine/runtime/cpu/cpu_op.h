// Internal to cpu_backend and to the rooms of ops: what the CPU does for each kind of op.
//
//   constinit const CpuOp kSwiGlu = {.bind = BindSwiGlu};   // engine/ops/swiglu/swiglu_cpu.cc
//
// A kind without one does not link.
#ifndef MILEPOST_ENGINE_RUNTIME_CPU_CPU_OP_H_
#define MILEPOST_ENGINE_RUNTIME_CPU_CPU_OP_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cpu/matmul.h"
#include "engine/kernels/cpu/random.h"
#include "engine/ops/contract/alignment.h"
#include "engine/ops/convolution/convolution_cpu_kernel.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/backend.h"
#include "engine/runtime/executor/op_binding.h"
#include "engine/runtime/executor/stage_transfers.h"

namespace milepost::comm {
class Communicator;
}

namespace milepost::runtime {

// What a binder is given.
struct Binding : OpBinding {
  kernels::MatmulCache& matmuls;
  kernels::ConvolutionCache& convolutions;
  comm::Communicator* communicator;  // null: world 1
  StageTransfers transfers;
  int threads;
};

// A dropout mask's parameters for the rows of the current micro-batch.
struct DropoutBinding {
  explicit DropoutBinding(const Binding& binding, int64_t width);
  kernels::DropoutParams At(const StepContext& context) const;

  double p;
  uint32_t tag;
  int64_t elements_per_sample;
  int64_t samples_before;
  OpBinding::OwnElements own;
};

// What the CPU does for one kind of op: the op's room defines it (engine/ops/<room>/<room>_cpu.cc).
struct CpuOp {
  // Resolves addresses and sizes once, and returns the call; null: the CPU has no kernel.
  absl::StatusOr<BoundOp> (*bind)(const Binding& b) = nullptr;
  // The matrix products that it makes, for the workspace check; null: none.
  std::vector<kernels::MatmulSpec> (*products)(const plan::StepPlan& plan,
                                               const plan::Program& program,
                                               const graph::Op& op) = nullptr;
  // What oneDNN needs for a convolution; null: it is none.
  absl::StatusOr<int64_t> (*convolution_bytes)(const graph::Graph& graph, const graph::Op& op,
                                               kernels::ConvolutionCache& convolutions) = nullptr;
};

}  // namespace milepost::runtime

namespace milepost::ops::cpu {

using runtime::CpuOp;

#define MP_OP(kind, name) extern const CpuOp k##kind;
#include "engine/graph/op_kinds.inc"
#undef MP_OP

}  // namespace milepost::ops::cpu

#endif  // MILEPOST_ENGINE_RUNTIME_CPU_CPU_OP_H_
