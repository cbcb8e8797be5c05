#include "worker/trainer/measure.h"

#include <cstdio>

#include "common/status_macros.h"
#include "engine/plan/device_profile.h"

namespace milepost::worker {

absl::Status Measure(const TrainerDevice& device, const std::string& name, int threads) {
  MP_ASSIGN_OR_RETURN(const plan::DeviceProfile profile, device.measure(name, threads));
  const std::string json = plan::ProfileJson(profile);
  const bool written = std::fputs(json.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return written ? absl::OkStatus() : absl::UnavailableError("the profile cannot be written");
}

}  // namespace milepost::worker
