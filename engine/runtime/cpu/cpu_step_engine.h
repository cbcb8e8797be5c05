// The CPU as a training session drives it.
//
//   MP_ASSIGN_OR_RETURN(auto engine, CpuStepEngine({spec, threads, data, communicator}));
#ifndef MILEPOST_ENGINE_RUNTIME_CPU_CPU_STEP_ENGINE_H_
#define MILEPOST_ENGINE_RUNTIME_CPU_CPU_STEP_ENGINE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/runtime/executor/step_engine.h"

namespace milepost::runtime {

// A StepEngineFactory. Plans for this CPU, and allocates. INVALID_ARGUMENT, RESOURCE_EXHAUSTED with
// the figures.
absl::StatusOr<std::unique_ptr<StepEngine>> CpuStepEngine(const StepEngineArguments& arguments);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_CPU_CPU_STEP_ENGINE_H_
