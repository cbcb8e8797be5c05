// The plan of a training job on a GPU, once its libraries have said what they need.
//
//   MP_ASSIGN_OR_RETURN(const plan::StepPlan plan, PlanOnDevice(spec, options, products,
//                                                       graphs));
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DEVICE_PLAN_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DEVICE_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kernels/cuda/libraries/device_products.h"
#include "engine/kernels/cuda/libraries/neural_graphs.h"
#include "engine/plan/step_plan.h"

namespace milepost::v1 {
class JobSpec;
}

namespace milepost::runtime {

// `options` as OptionsFromSpec has them; what a GPU's plan has otherwise is set here. All products
// and graphs of the plan are prepared. Errors are the planner's and the libraries'.
absl::StatusOr<plan::StepPlan> PlanOnDevice(const v1::JobSpec& spec, plan::PlanOptions options,
                                            kernels::cuda::DeviceProducts& products,
                                            kernels::cuda::NeuralGraphs& graphs);

// By loss head: how many rows with a target one chunk of a head that gathers rows takes.
std::vector<int64_t> MostTargets(const plan::Program& program);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DEVICE_PLAN_H_
