// Internal to cuda_backend: one binder per op family, as cpu_ops.h has them.
#ifndef MILEPOST_ENGINE_RUNTIME_CUDA_BACKEND_CUDA_OPS_H_
#define MILEPOST_ENGINE_RUNTIME_CUDA_BACKEND_CUDA_OPS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/runtime/backend.h"
#include "engine/runtime/cuda_backend/cuda_backend.h"
#include "engine/runtime/op_binding.h"
#include "engine/runtime/randomness.h"

namespace milepost::runtime {

// What a binder is given.
struct CudaBinding : OpBinding {
  const CudaServices& services;
  const CudaMemoryOfStep& memory;

  cudaStream_t stream() const { return memory.streams[static_cast<int>(planned.stream)]; }
  // In device memory: for addresses of its fields, not for their values.
  const StepControl* control() const {
    return reinterpret_cast<const StepControl*>(memory.control);
  }
  // Of the op's dropout, over rows `width` wide.
  kernels::cuda::DropoutArgs Dropout(int64_t width) const {
    return {.p = static_cast<float>(attributes().dropout),
            .seed = memory.seed,
            .stream = RandomStream(RandomPurpose::kDropout, attributes().dropout_tag),
            .position = &control()->position,
            .elements_per_sample = static_cast<uint64_t>(attributes().sequence * width)};
  }
};

// cuda_ops_pointwise.cc, cuda_ops_norm.cc
absl::StatusOr<BoundOp> BindEmbedding(const CudaBinding& b);
absl::StatusOr<BoundOp> BindEmbeddingBackward(const CudaBinding& b);
absl::StatusOr<BoundOp> BindNorm(const CudaBinding& b);          // all four forward kinds
absl::StatusOr<BoundOp> BindNormBackward(const CudaBinding& b);  // all three
absl::StatusOr<BoundOp> BindGelu(const CudaBinding& b);          // forward and backward
absl::StatusOr<BoundOp> BindSwiGlu(const CudaBinding& b);        // forward and backward
absl::StatusOr<BoundOp> BindDropout(const CudaBinding& b);       // forward and backward
absl::StatusOr<BoundOp> BindQkNorm(const CudaBinding& b);
absl::StatusOr<BoundOp> BindQkNormBackward(const CudaBinding& b);
absl::StatusOr<BoundOp> BindRopeTable(const CudaBinding& b);
absl::StatusOr<BoundOp> BindRope(const CudaBinding& b);  // forward and backward

// cuda_ops_linear.cc, cuda_ops_head.cc, cuda_ops_attention.cc
absl::StatusOr<BoundOp> BindLinear(const CudaBinding& b);
absl::StatusOr<BoundOp> BindLinearBackwardInput(const CudaBinding& b);
absl::StatusOr<BoundOp> BindLinearBackwardWeight(const CudaBinding& b);
absl::StatusOr<BoundOp> BindLmHeadLoss(const CudaBinding& b);  // forward only, and with backward
absl::StatusOr<BoundOp> BindLmHeadLogits(const CudaBinding& b);
absl::StatusOr<BoundOp> BindAttention(const CudaBinding& b);
absl::StatusOr<BoundOp> BindAttentionBackward(const CudaBinding& b);
absl::StatusOr<BoundOp> BindCachedAttention(const CudaBinding& b);

// cuda_ops_images.cc: UNIMPLEMENTED for a kind that is none of its.
absl::StatusOr<BoundOp> BindImageOp(const CudaBinding& b);
// cuda_ops_update.cc, cuda_ops_optimizers.cc: norms, updates and what goes with them; the same.
absl::StatusOr<BoundOp> BindUpdateOp(const CudaBinding& b);
// cuda_ops_collectives.cc: everything of the communication stream; the same.
absl::StatusOr<BoundOp> BindCollective(const CudaBinding& b);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_CUDA_BACKEND_CUDA_OPS_H_
