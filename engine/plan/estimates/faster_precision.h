// Whether a job would train faster in another precision, on the device that it is planned for.
//
//   MP_ASSIGN_OR_RETURN(const auto faster, FindFasterPrecision(spec, place.profile, threads));
//   if (faster.has_value()) std::cout << faster->ratio;   // 1.7 times as fast, expected
#ifndef MILEPOST_ENGINE_PLAN_ESTIMATES_FASTER_PRECISION_H_
#define MILEPOST_ENGINE_PLAN_ESTIMATES_FASTER_PRECISION_H_

#include <optional>

#include "engine/plan/estimates/device_profile.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::plan {

struct FasterPrecision {
  v1::Precision precision = v1::PRECISION_UNSPECIFIED;
  double ratio = 1;  // of the expected steps per second
};

// The next lower one: bf16, where the job trains in fp32, and fp8, where it trains in bf16; if the
// profile has a rate of its products, and it is at least 1.1 times as fast by EstimateStep. None
// where the job cannot be planned. Plans the job twice. Pure.
std::optional<FasterPrecision> FindFasterPrecision(const v1::JobSpec& spec,
                                                   const DeviceProfile& profile, int threads);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_ESTIMATES_FASTER_PRECISION_H_
