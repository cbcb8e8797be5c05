#include "engine/runtime/gpu/backend/device_plan.h"

#include <limits>

#include "common/status_macros.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/gpu/backend/cuda_backend.h"

namespace milepost::runtime {

// What the libraries want is known only once they have been asked, for the plan's ops.
absl::StatusOr<plan::StepPlan> PlanOnDevice(const v1::JobSpec& spec, plan::PlanOptions options,
                                            kernels::cuda::DeviceProducts& products,
                                            kernels::cuda::NeuralGraphs& graphs) {
  options.device = plan::DeviceKind::kCuda;  // whatever the spec says, as tests do
  options.fuse_gelu = true;
  MP_ASSIGN_OR_RETURN(plan::StepPlan plan, plan::PlanTraining(spec, options));
  CudaBackend libraries({.products = &products, .graphs = &graphs});
  CudaScratch needed;
  const absl::Status enough = libraries.Prepare(plan, &needed);
  if (enough.ok()) return plan;
  if (!absl::IsResourceExhausted(enough)) return enough;
  options.min_attention_workspace_bytes = needed.attention;
  options.min_convolution_workspace_bytes = needed.convolution;
  MP_ASSIGN_OR_RETURN(plan, plan::PlanTraining(spec, options));
  MP_RETURN_IF_ERROR(libraries.Prepare(plan));
  return plan;
}

std::vector<int64_t> MostTargets(const plan::Program& program) {
  std::vector<int64_t> most(program.graph.losses.size(), std::numeric_limits<int64_t>::max());
  for (const plan::PlannedOp& planned : program.ops) {
    const graph::Op& op = planned.op;
    if (op.kind != graph::OpKind::kLmHeadLossBackward || !op.attributes.gathers) continue;
    most[op.attributes.head] = op.attributes.chunk_rows;
  }
  return most;
}

}  // namespace milepost::runtime
