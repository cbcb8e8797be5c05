#include "engine/runtime/cpu/host_optimizer.h"

#include <omp.h>

#include <utility>

#include "common/status_macros.h"
#include "engine/runtime/executor/group_ops.h"
#include "engine/runtime/executor/step_engine.h"

namespace milepost::runtime {

absl::StatusOr<BoundOp> BindDecidingHostOptimizer(const OpBinding& b, int threads) {
  MP_ASSIGN_OR_RETURN(BoundOp update, BindHostOptimizer(b));
  const absl::Span<const double> scalars(BufferOf<double>(b, b.plan.host_scalars),
                                         static_cast<size_t>(b.plan.ReducedScalars()));
#ifdef MILEPOST_TSAN
  threads = 1;  // libgomp is not instrumented
#endif
  return [update = std::move(update), scalars, threads](const StepContext& context) {
    omp_set_num_threads(threads);
    const optim::ClipResult clip = ClipOf(scalars, context);
    StepContext decided = context;
    decided.skip_update = !clip.finite;
    decided.clip_factor = static_cast<float>(clip.scale / context.loss_scale);
    return update(decided);
  };
}

}  // namespace milepost::runtime
