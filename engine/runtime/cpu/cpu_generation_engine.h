// The CPU as a Generator drives it.
//
//   MP_ASSIGN_OR_RETURN(auto engine, CpuGenerationEngine(model, options));
#ifndef MILEPOST_ENGINE_RUNTIME_CPU_CPU_GENERATION_ENGINE_H_
#define MILEPOST_ENGINE_RUNTIME_CPU_CPU_GENERATION_ENGINE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/runtime/executor/generation_engine.h"

namespace milepost::runtime {

// A GenerationEngineFactory, whose errors these are.
absl::StatusOr<std::unique_ptr<GenerationEngine>> CpuGenerationEngine(
    const v1::ModelSpec& model, const plan::PlanOptions& options);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_CPU_CPU_GENERATION_ENGINE_H_
