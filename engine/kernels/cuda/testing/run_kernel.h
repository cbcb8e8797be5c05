// What the kernels' tests share. Tests only.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_TESTING_RUN_KERNEL_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_TESTING_RUN_KERNEL_H_

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/kernels/cpu/testing.h"
#include "engine/kernels/cuda/testing/host_grid.h"

namespace milepost::kernels::cuda {

// Runs a kernel on the grid that it asks for, in a random legal order.
template <typename Kernel>
void RunKernel(const Kernel& kernel, uint64_t seed = 11) {
  const absl::Status ran = RunOnHost(kernel, kernel.grid(), {.seed = seed});
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
