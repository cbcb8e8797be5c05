#include "worker/trainer/measure.h"

#include <cstdio>

#include "common/status_macros.h"
#include "engine/measure/disk_bench.h"
#include "engine/plan/estimates/device_profile.h"

namespace milepost::worker {

absl::Status Measure(const TrainerDevice& device, const std::string& name, int threads,
                     const std::string& disk_folder) {
  MP_ASSIGN_OR_RETURN(plan::DeviceProfile profile, device.measure(name, threads));
  if (!disk_folder.empty()) {
    MP_ASSIGN_OR_RETURN(const runtime::DiskRates disk, runtime::MeasureDisk(disk_folder, {}));
    profile.disk_read_bandwidth = disk.read;
    profile.disk_write_bandwidth = disk.write;
  }
  const std::string json = plan::ProfileJson(profile);
  const bool written = std::fputs(json.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return written ? absl::OkStatus() : absl::UnavailableError("the profile cannot be written");
}

}  // namespace milepost::worker
