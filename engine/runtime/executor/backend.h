// A device as the executor sees it: something that turns a planned op into a callable bound to its
// buffers. Choosing kernels, checking sizes and resolving addresses all happen in Bind, once; what
// is left for a step is the call.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_BACKEND_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_BACKEND_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/step_context.h"

namespace milepost::runtime {

// Runs the op on the calling thread's stream and returns when it may be considered issued in order;
// on the CPU, when it is done. Allocates nothing.
using BoundOp = std::function<absl::Status(const StepContext&)>;

class Backend {
 public:
  virtual ~Backend() = default;
  // `plan`, `program` and `planned` (one of the program's ops) must outlive the result. INTERNAL
  // when the planned buffers do not fit what the kernel needs; UNIMPLEMENTED for an op kind that
  // this backend has no kernel for.
  virtual absl::StatusOr<BoundOp> Bind(const plan::StepPlan& plan, const plan::Program& program,
                                       const plan::PlannedOp& planned) = 0;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_BACKEND_H_
