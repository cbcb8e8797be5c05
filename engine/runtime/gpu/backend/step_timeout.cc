// How long a step may take before what it waits for counts as lost.
#include <algorithm>

#include "absl/time/time.h"
#include "engine/plan/estimates/device_profile.h"
#include "engine/plan/estimates/estimate.h"
#include "engine/runtime/gpu/backend/cuda_step_engine.h"

namespace milepost::runtime {

absl::Duration StepTimeout(const plan::StepPlan& plan, int threads, absl::Duration least) {
  constexpr double kMargin = 20;
  const auto profile = plan::BuiltInProfile("h200");
  if (!profile.ok()) return least;
  const double seconds =
      plan::EstimateStep(plan, plan::ForThreads(*profile, std::max(1, threads))).seconds;
  return least + absl::Seconds(kMargin * seconds);
}

}  // namespace milepost::runtime
