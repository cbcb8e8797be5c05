// The CPU as a training session drives it.
//
//   MP_ASSIGN_OR_RETURN(auto engine, CpuStepEngine({spec, threads, data, communicator}));
#ifndef MILEPOST_ENGINE_RUNTIME_CPU_CPU_STEP_ENGINE_H_
#define MILEPOST_ENGINE_RUNTIME_CPU_CPU_STEP_ENGINE_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/backend.h"
#include "engine/runtime/executor/step_engine.h"

namespace milepost::runtime {

// A StepEngineFactory. Plans for this CPU, and allocates. INVALID_ARGUMENT, RESOURCE_EXHAUSTED with
// the figures.
absl::StatusOr<std::unique_ptr<StepEngine>> CpuStepEngine(const StepEngineArguments& arguments);

// The same, where a step runs what `wrap` makes of each op of the training program: for benchmarks,
// which time them. `op` lives as long as the engine.
using OpWrapper = std::function<BoundOp(const plan::PlannedOp& op, BoundOp run)>;
absl::StatusOr<std::unique_ptr<StepEngine>> WrappedCpuStepEngine(
    const StepEngineArguments& arguments, const OpWrapper& wrap);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_CPU_CPU_STEP_ENGINE_H_
