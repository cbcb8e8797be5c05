// What the disk under a folder can do for optimizer state that waits there: the rates from which a
// plan's expected time is computed (plan/estimates/estimate.h).
//
//   MP_ASSIGN_OR_RETURN(const DiskRates rates, MeasureDisk("/nvme", {}));
//   profile.disk_read_bandwidth = rates.read;
#ifndef MILEPOST_ENGINE_MEASURE_DISK_BENCH_H_
#define MILEPOST_ENGINE_MEASURE_DISK_BENCH_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace milepost::runtime {

struct DiskBenchOptions {
  int64_t region_bytes = 64 << 20;
  int regions = 16;  // written all at once, then read; memory for three
  int repeats = 2;   // the fastest counts
};

struct DiskRates {
  double read = 0;  // bytes per second
  double write = 0;
};

// By a StateFile, as training does it. Blocks for seconds. NOT_FOUND, PERMISSION_DENIED and
// RESOURCE_EXHAUSTED with the path; INVALID_ARGUMENT: regions of no whole blocks.
absl::StatusOr<DiskRates> MeasureDisk(const std::string& folder, const DiskBenchOptions& options);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_MEASURE_DISK_BENCH_H_
