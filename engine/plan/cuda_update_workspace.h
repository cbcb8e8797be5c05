// How much scratch norms and optimizers need on a GPU: a part of cuda_workspace.h.
#ifndef MILEPOST_ENGINE_PLAN_CUDA_UPDATE_WORKSPACE_H_
#define MILEPOST_ENGINE_PLAN_CUDA_UPDATE_WORKSPACE_H_

#include <cstdint>
#include <vector>

#include "engine/plan/step_plan.h"

namespace milepost::plan {

// 0 for other ops.
int64_t CudaUpdateWorkspaceBytes(const std::vector<FlatGroup>& groups, const graph::Op& op,
                                 const PlanOptions& options);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_CUDA_UPDATE_WORKSPACE_H_
