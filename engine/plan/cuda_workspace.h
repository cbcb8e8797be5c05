// How much scratch each op needs on a GPU (workspace.h): a pure model of the CUDA kernels'
// ...WorkspaceBytes functions and of what is reserved for NVIDIA's libraries, so that plans are the
// same on machines without CUDA.
#ifndef MILEPOST_ENGINE_PLAN_CUDA_WORKSPACE_H_
#define MILEPOST_ENGINE_PLAN_CUDA_WORKSPACE_H_

#include <cstdint>
#include <vector>

#include "common/round_up.h"
#include "engine/plan/step_plan.h"

namespace milepost::plan {

// Of a product: kernels::cuda::CublasOptions has the same.
inline constexpr int64_t kCudaProductScratch = int64_t{32} << 20;

// What the device's allocations and parts of workspaces take: whole multiples of 256 bytes.
constexpr int64_t DeviceAligned(int64_t bytes) { return RoundUp(bytes, 256); }

// Bytes of `op`'s workspace, a multiple of 256; 0: none.
int64_t CudaWorkspaceBytes(const graph::Graph& graph, const std::vector<FlatGroup>& groups,
                           const graph::Op& op, const PlanOptions& options);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_CUDA_WORKSPACE_H_
