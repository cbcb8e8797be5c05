// Internal to gpu/backend and to the rooms of ops: what a GPU does for each kind of op.
//
//   constinit const CudaOp kSwiGlu = {.bind = BindSwiGlu};   // engine/ops/swiglu/swiglu_cuda.cc
//
// A kind without one does not link.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_CUDA_OP_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_CUDA_OP_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kernels/cuda/libraries/product_layout.h"
#include "engine/ops/contract/alignment.h"
#include "engine/runtime/executor/backend.h"
#include "engine/runtime/executor/op_binding.h"
#include "engine/runtime/executor/randomness.h"
#include "engine/runtime/gpu/backend/cuda_backend.h"

namespace milepost::runtime {

// What a binder is given.
struct CudaBinding : OpBinding {
  const CudaServices& services;
  const CudaMemoryOfStep& memory;
  // kAttention, kAttentionBackward: services.graphs has both passes. Otherwise the own kernels.
  bool graph_attention = false;

  cudaStream_t stream() const { return memory.streams[static_cast<int>(planned.stream)]; }
  // In device memory: for addresses of its fields, not for their values.
  const StepControl* control() const {
    return reinterpret_cast<const StepControl*>(memory.control);
  }
  // Of the op's micro-batch; likewise.
  const kernels::cuda::StepPosition* position() const {
    if (attributes().micro_batch == 0) return &control()->position;
    const int64_t at = ControlLayoutOf(plan, rank).PositionOf(attributes().micro_batch);
    return reinterpret_cast<const kernels::cuda::StepPosition*>(memory.control + at);
  }
  // Numbers of an input that the host has read before the op is enqueued: HostNumbers::NeededFor.
  // For what they are then, not for what they are now.
  const int32_t* OnHost(int input) const {
    return memory.numbers->Of(program, planned.op.inputs[static_cast<size_t>(input)]);
  }
  // Of the op's dropout, over rows `width` wide.
  kernels::cuda::DropoutArgs Dropout(int64_t width) const {
    const OwnElements own = ElementsOfRows(InputShape(0)[0], width);
    return {.p = static_cast<float>(attributes().dropout),
            .seed = memory.seed,
            .stream = RandomStream(RandomPurpose::kDropout, attributes().dropout_tag),
            .position = position(),
            .elements_per_sample =
                static_cast<uint64_t>(attributes().sequence * plan.options.context * width),
            .own_begin = static_cast<uint64_t>(own.first),
            .own_elements = static_cast<uint64_t>(own.run)};
  }
};

// What a GPU does for one kind of op: the op's room defines it (engine/ops/<room>/<room>_cuda.cc).
struct CudaOp {
  // Resolves addresses and sizes once, and returns what enqueues it; null: the device's executor
  // copies, not the backend.
  absl::StatusOr<BoundOp> (*bind)(const CudaBinding& b) = nullptr;
  // The matrix products that it makes; null: none.
  std::vector<kernels::cuda::Product> (*products)(const plan::StepPlan& plan,
                                                  const plan::Program& program,
                                                  const graph::Op& op) = nullptr;
};

// What an op asks the libraries for, before anything is bound.
std::vector<kernels::cuda::Product> ProductsOf(const plan::StepPlan& plan,
                                               const plan::Program& program, const graph::Op& op);

}  // namespace milepost::runtime

namespace milepost::ops::gpu {

using runtime::CudaOp;

#define MP_OP(kind, name) extern const CudaOp k##kind;
#include "engine/graph/op_kinds.inc"
#undef MP_OP

}  // namespace milepost::ops::gpu

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_CUDA_OP_H_
