// Internal to cuda_backend: one binder per op family, as cpu_op.h has them.
#ifndef MILEPOST_ENGINE_RUNTIME_CUDA_BACKEND_CUDA_OPS_H_
#define MILEPOST_ENGINE_RUNTIME_CUDA_BACKEND_CUDA_OPS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kernels/cpu/convolution.h"
#include "engine/kernels/cuda/libraries/attention_graph.h"
#include "engine/kernels/cuda/libraries/product_layout.h"
#include "engine/plan/library_attention.h"
#include "engine/runtime/backend.h"
#include "engine/runtime/cuda_backend/cuda_backend.h"
#include "engine/runtime/op_binding.h"
#include "engine/runtime/randomness.h"

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
  // Of the op's dropout, over rows `width` wide.
  kernels::cuda::DropoutArgs Dropout(int64_t width) const {
    return {.p = static_cast<float>(attributes().dropout),
            .seed = memory.seed,
            .stream = RandomStream(RandomPurpose::kDropout, attributes().dropout_tag),
            .position = &control()->position,
            .elements_per_sample = static_cast<uint64_t>(attributes().sequence * width)};
  }
};

// The pieces of a workspace begin at multiples of it (plan/cuda_workspace.h).
constexpr int64_t AlignScratch(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// What an op asks the libraries for, before anything is bound: matrix products, and how many bytes
// of its workspace lie in front of their scratch.
std::vector<kernels::cuda::Product> ProductsOf(const plan::StepPlan& plan,
                                               const plan::Program& program, const graph::Op& op);
int64_t BytesBeforeScratch(const plan::StepPlan& plan, const plan::Program& program,
                           const graph::Op& op);
// Their parts: kLinear*; kLmHead*; kOrthogonalize.
std::vector<kernels::cuda::Product> LinearProducts(const plan::Program& program,
                                                   const graph::Op& op);
int64_t LinearBytesBeforeScratch(const plan::Program& program, const graph::Op& op);
std::vector<kernels::cuda::Product> Fp8LayerProducts(const plan::Program& program,
                                                     const graph::Op& op);
int64_t Fp8BytesBeforeScratch(const plan::Program& program, const graph::Op& op);
std::vector<kernels::cuda::Product> HeadProducts(const graph::Graph& graph, const graph::Op& op);
int64_t HeadBytesBeforeScratch(const graph::Graph& graph, const graph::Op& op);
std::vector<kernels::cuda::Product> OrthogonalizeProducts(const plan::FlatGroup& group);
int64_t OrthogonalizeBytesBeforeScratch(const plan::FlatGroup& group);
// Of a kConvolution*, and what of its workspace lies in front of the library's.
kernels::ConvolutionSpec ConvolutionSpecOf(const graph::Graph& graph, const graph::Op& op);
kernels::ConvolutionPass ConvolutionPassOf(graph::OpKind kind);
int64_t ConvolutionBytesBeforeScratch(const graph::Graph& graph, const graph::Op& op);
// Of a kAttention or kAttentionBackward, all of it; what of it is the library's, and what one call
// of its backward computes.
kernels::cuda::AttentionGraph AttentionGraphOf(const graph::Graph& graph, const graph::Op& op);
plan::LibraryAttention LibraryAttentionOf(const kernels::cuda::AttentionGraph& graph,
                                          const plan::PlanOptions& options);
kernels::cuda::AttentionGraph BackwardCallOf(const kernels::cuda::AttentionGraph& graph,
                                             const plan::LibraryAttention& library, bool exact);

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

// cuda_ops_fp8.cc: kLinear* with `fp8`, and what makes codes and scalings.
absl::StatusOr<BoundOp> BindFp8Layer(const CudaBinding& b);
absl::StatusOr<BoundOp> BindQuantize(const CudaBinding& b);
absl::StatusOr<BoundOp> BindGatherAmaxes(const CudaBinding& b);
absl::StatusOr<BoundOp> BindUpdateScalings(const CudaBinding& b);

// cuda_ops_images.cc: UNIMPLEMENTED for a kind that is none of its.
absl::StatusOr<BoundOp> BindImageOp(const CudaBinding& b);
// cuda_ops_update.cc, cuda_ops_optimizers.cc: norms, updates and what goes with them, the scalars
// and their collective too; the same.
absl::StatusOr<BoundOp> BindUpdateOp(const CudaBinding& b);
absl::StatusOr<BoundOp> BindOptimizer(const CudaBinding& b);
absl::StatusOr<BoundOp> BindUpdateNorms(const CudaBinding& b);
absl::StatusOr<BoundOp> BindMuonMomentum(const CudaBinding& b);
absl::StatusOr<BoundOp> BindOrthogonalize(const CudaBinding& b);
// cuda_ops_collectives.cc: everything of the communication stream; the same.
absl::StatusOr<BoundOp> BindCollective(const CudaBinding& b);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_CUDA_BACKEND_CUDA_OPS_H_
