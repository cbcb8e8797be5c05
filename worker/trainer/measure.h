// Measures what this machine can do: `milepost-trainer measure`, which `milepost bench device`
// runs.
#ifndef MILEPOST_WORKER_TRAINER_MEASURE_H_
#define MILEPOST_WORKER_TRAINER_MEASURE_H_

#include <string>

#include "absl/status/status.h"
#include "worker/trainer/device.h"

namespace milepost::worker {

// Prints a device profile (plan/estimates/device_profile.h) named `name` on stdout. It includes the
// rates of the disk under `disk_folder`, unless `disk_folder` is empty. Blocks for seconds.
absl::Status Measure(const TrainerDevice& device, const std::string& name, int threads,
                     const std::string& disk_folder);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_MEASURE_H_
