// Finds the first op whose result on a device is not the CPU's. A step's ops run one after the
// other on both, each from the same bytes, the CPU's: errors do not add up, so the op that differs
// is the one that is wrong.
//
//   SessionOptions options;
//   options.engine = [&](const StepEngineArguments& arguments) {
//     return DiffEngine(arguments, std::move(parts), [&](const OpDiff& op) {
//       if (op.Differs()) std::puts(Describe(op).c_str());
//     });
//   };
//   MP_ASSIGN_OR_RETURN(auto session, TrainingSession::Create(spec, options, &one_rank));
//   MP_RETURN_IF_ERROR(session->InitializeParameters());
//   MP_RETURN_IF_ERROR(session->Step(false).status());
//
// The session's state and reports are the CPU's. Both memories are held, and every op is waited
// for: it is slow. Evaluation is not compared.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DIFF_ENGINE_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DIFF_ENGINE_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/runtime/executor/step_engine.h"
#include "engine/runtime/gpu/backend/cuda_step_engine.h"
#include "engine/runtime/gpu/backend/op_diff.h"

namespace milepost::runtime {

// `report` is called for each op, in the session's calls. INVALID_ARGUMENT for several ranks, or
// where something is offloaded: what the host computes is the CPU's anyway. Else as CudaStepEngine.
absl::StatusOr<std::unique_ptr<StepEngine>> DiffEngine(const StepEngineArguments& arguments,
                                                       CudaEngineParts parts,
                                                       std::function<void(const OpDiff&)> report);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DIFF_ENGINE_H_
