// What the kernels' tests share. Tests only. Compiled with MILEPOST_ON_DEVICE by nvcc, the same
// tests run the kernels on the GPU (tests/gpu).
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_TESTING_RUN_KERNEL_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_TESTING_RUN_KERNEL_H_

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "absl/status/status.h"
#include "engine/kernels/cpu/testing.h"
#include "engine/kernels/cuda/testing/host_memory.h"
#if defined(MILEPOST_ON_DEVICE)
#include "engine/kernels/cuda/launch-inl.h"
#else
#include "engine/kernels/cuda/testing/host_grid.h"
#endif

namespace milepost::kernels::cuda {

// Runs a kernel on the grid that it asks for; on the host in the legal order drawn from the seed.
template <typename Kernel>
absl::Status RunAnywhere(const Kernel& kernel, uint64_t seed = 11) {
#if defined(MILEPOST_ON_DEVICE)
  const absl::Status launched = Launch(kernel, kernel.grid(), nullptr, "of a test");
  if (!launched.ok()) return launched;
  const cudaError_t ran = cudaDeviceSynchronize();
  return ran == cudaSuccess ? absl::OkStatus() : LaunchError("of a test", kernel.grid(), ran);
#else
  return RunOnHost(kernel, kernel.grid(), {.seed = seed});
#endif
}

template <typename Kernel>
void RunKernel(const Kernel& kernel, uint64_t seed = 11) {
  const absl::Status ran = RunAnywhere(kernel, seed);
  ASSERT_TRUE(ran.ok()) << ran;
}

// got against the CPU's result, element by element: within `relative` of it.
template <typename T>
void ExpectNear(const std::vector<T>& got, const std::vector<T>& want, double relative,
                double absolute, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    const double a = ToFloat(got[i]), b = ToFloat(want[i]);
    ASSERT_NEAR(a, b, relative * std::abs(b) + absolute) << what << " at " << i;
  }
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_TESTING_RUN_KERNEL_H_
