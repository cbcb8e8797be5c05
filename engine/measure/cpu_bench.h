// What this machine's cores can do, measured with the kernels and collectives that training uses:
// the profile from which a plan's expected time is computed (plan/estimates/estimate.h).
//
//   MP_ASSIGN_OR_RETURN(plan::DeviceProfile profile, MeasureCpu({.threads = 2}));
//   std::cout << plan::ProfileJson(profile);
#ifndef MILEPOST_ENGINE_MEASURE_CPU_BENCH_H_
#define MILEPOST_ENGINE_MEASURE_CPU_BENCH_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/plan/estimates/device_profile.h"

namespace milepost::runtime {

struct DeviceBenchOptions {
  std::string name = "host";
  int threads = 1;
  // Sizes of the largest: no cache holds them. Smaller ones are measured too. Tests use small ones.
  int64_t product = 1536;           // of square matrices
  int64_t sequence = 512;           // of attention
  int64_t copy_bytes = 256 << 20;   // of memory
  int64_t reduce_bytes = 32 << 20;  // of a collective
  int repeats = 8;                  // the fastest counts
};

// A rate at a size, such as FLOP/s of a product of so many rows.
struct MeasuredRate {
  double size = 0;
  double rate = 0;
};
// rate(size) = limit size / (size + half).
struct RateBySize {
  double limit = 0;
  double half = 0;  // at most half of the larger size
};
// By two of them. Pure.
RateBySize FitRate(const MeasuredRate& small, const MeasuredRate& large);

// Products and attention in fp32 and, where this CPU has it, bf16, at large and at small sizes; a
// copy by all threads; an all-reduce between two ranks over loopback. Blocks for a few seconds;
// nothing else should run.
// RESOURCE_EXHAUSTED when there is too little memory; errors of the kernels and of the sockets.
absl::StatusOr<plan::DeviceProfile> MeasureCpu(const DeviceBenchOptions& options);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_MEASURE_CPU_BENCH_H_
