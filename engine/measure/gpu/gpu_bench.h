// What a GPU can do, measured with the products and copies that training uses: the profile from
// which a plan's expected time is computed (plan/estimates/estimate.h).
//
//   MP_ASSIGN_OR_RETURN(plan::DeviceProfile profile, MeasureGpu({.name = "node7"}));
//
// Its collectives have not run yet, which need several GPUs (docs/internals/cuda.md).
#ifndef MILEPOST_ENGINE_MEASURE_GPU_GPU_BENCH_H_
#define MILEPOST_ENGINE_MEASURE_GPU_GPU_BENCH_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/plan/estimates/device_profile.h"

namespace milepost::runtime {

struct GpuBenchOptions {
  std::string name = "gpu";
  int ordinal = 0;
  int64_t product = 8192;                 // of square matrices
  int64_t copy_bytes = int64_t{2} << 30;  // on the device
  int64_t host_bytes = 256 << 20;         // to the device and back
  int64_t collective_bytes = 256 << 20;   // between all GPUs
  int repeats = 10;                       // the fastest counts
};

// Products in bf16, f16 and fp32; a copy on the device; copies from pinned host memory and back;
// where there are several GPUs, NCCL's collectives between all of them, a rank each. Blocks for
// seconds; nothing else should use the GPU. Where the GPU is one of those whose peaks are known
// (plan::BuiltInProfile), the rates on paper and what cannot be measured with one GPU are theirs.
// FAILED_PRECONDITION without a GPU, RESOURCE_EXHAUSTED where its memory is taken.
absl::StatusOr<plan::DeviceProfile> MeasureGpu(const GpuBenchOptions& options);

// FLOP/s of one product of this type ("BF16"), as in the profile, or of "FP8" (E4M3, bf16 out); for
// floors of benchmarks. INVALID_ARGUMENT for another type.
absl::StatusOr<double> MeasureProductRate(const std::string& dtype, const GpuBenchOptions& options);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_MEASURE_GPU_GPU_BENCH_H_
