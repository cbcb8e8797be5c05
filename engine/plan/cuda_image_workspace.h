// How much scratch ops on images need on a GPU: a part of cuda_workspace.h.
#ifndef MILEPOST_ENGINE_PLAN_CUDA_IMAGE_WORKSPACE_H_
#define MILEPOST_ENGINE_PLAN_CUDA_IMAGE_WORKSPACE_H_

#include <cstdint>

#include "engine/plan/step_plan.h"

namespace milepost::plan {

// 0 for other ops.
int64_t CudaImageWorkspaceBytes(const graph::Graph& graph, const graph::Op& op,
                                const PlanOptions& options);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_CUDA_IMAGE_WORKSPACE_H_
