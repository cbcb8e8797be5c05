// How fast ranks on devices talk to each other: what a profile's bandwidth between the ranks of a
// host is measured with.
//
//   on each rank's thread, with its device and its communicator:
//   MP_ASSIGN_OR_RETURN(const CollectiveRates rates, MeasureCollectives(device, communicator, {}));
#ifndef MILEPOST_ENGINE_MEASURE_COLLECTIVE_BENCH_H_
#define MILEPOST_ENGINE_MEASURE_COLLECTIVE_BENCH_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/runtime/gpu/backend/device_communicator.h"
#include "engine/runtime/gpu/device/device.h"

namespace milepost::runtime {

struct CollectiveBenchOptions {
  int64_t bytes = 256 << 20;  // of the values of a call
  int repeats = 10;           // the fastest counts, after one that is not counted
  absl::Duration timeout = absl::Seconds(30);
};

struct CollectiveRates {
  // Bytes per second that a rank sends, as NCCL's tests call it: the bus bandwidth.
  double all_reduce = 0;
  double reduce_scatter = 0;
  double all_gather = 0;
  double small_seconds = 0;  // of an all-reduce of one number
};

// Collective: every rank calls it with the same options, as far as this rank sees. fp32 sums. Takes
// `bytes` of the device's memory, and blocks. INVALID_ARGUMENT for a single rank; the device's
// and the communicator's errors.
absl::StatusOr<CollectiveRates> MeasureCollectives(Device& device, DeviceCommunicator& communicator,
                                                   const CollectiveBenchOptions& options);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_MEASURE_COLLECTIVE_BENCH_H_
