// How much scratch each op needs on a GPU (workspace.h): a pure model of the CUDA kernels'
// ...WorkspaceBytes functions and of what is reserved for NVIDIA's libraries, so that plans are the
// same on machines without CUDA.
#ifndef MILEPOST_ENGINE_PLAN_CUDA_WORKSPACE_H_
#define MILEPOST_ENGINE_PLAN_CUDA_WORKSPACE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/plan/step_plan.h"

namespace milepost::plan {

// Of a product: kernels::cuda::CublasOptions has the same.
inline constexpr int64_t kCudaProductScratch = int64_t{32} << 20;

// How many packed documents the library's attention is planned for, over a micro-batch: four a
// sequence, and one for every 128 positions. A micro-batch with more takes the own kernels.
constexpr int64_t PlannedDocuments(int64_t batch, int64_t sequence) {
  return batch * std::min(sequence, 4 + (sequence + 127) / 128);
}
// Whether it is taken for heads so wide, at all and with documents: then cuDNN's scratch would grow
// with their number but for multiples of 16.
constexpr bool LibraryTakesHeads(int64_t head_dim, bool documents) {
  return head_dim <= 128 && head_dim % (documents ? 16 : 8) == 0;
}

// Bytes of `op`'s workspace, a multiple of 256; 0: none.
int64_t CudaWorkspaceBytes(const graph::Graph& graph, const std::vector<FlatGroup>& groups,
                           const graph::Op& op, const PlanOptions& options);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_CUDA_WORKSPACE_H_
