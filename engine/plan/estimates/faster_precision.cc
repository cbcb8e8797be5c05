#include "engine/plan/estimates/faster_precision.h"

#include "common/spec/validate.h"
#include "engine/plan/estimates/estimate.h"
#include "engine/plan/planner/planner.h"

namespace milepost::plan {
namespace {

constexpr double kWorthSaying = 1.1;

// 0: it cannot be planned.
double SecondsIn(v1::JobSpec spec, v1::Precision precision, const DeviceProfile& profile,
                 int threads) {
  spec.mutable_train()->set_precision(precision);
  if (!ValidateJobSpec(spec).ok()) return 0;
  const auto options = OptionsFromSpec(spec, threads);
  if (!options.ok()) return 0;
  const auto plan = PlanTraining(spec, *options);
  return plan.ok() ? EstimateStep(*plan, profile).seconds : 0;
}

}  // namespace

std::optional<FasterPrecision> FindFasterPrecision(const v1::JobSpec& spec,
                                                   const DeviceProfile& profile, int threads) {
  const v1::Precision own = spec.train().precision();
  const bool fp32 = own == v1::PRECISION_FP32;
  if (!fp32 && own != v1::PRECISION_BF16) return std::nullopt;
  if (!profile.matmul.contains(fp32 ? "BF16" : "F8_E4M3")) return std::nullopt;
  const v1::Precision other = fp32 ? v1::PRECISION_BF16 : v1::PRECISION_FP8;
  const double now = SecondsIn(spec, own, profile, threads);
  const double then = SecondsIn(spec, other, profile, threads);
  if (now <= 0 || then <= 0 || now / then < kWorthSaying) return std::nullopt;
  return FasterPrecision{other, now / then};
}

}  // namespace milepost::plan
