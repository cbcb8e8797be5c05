#include "engine/ops/outer_step/outer_step_cuda_kernel-inl.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/kernels/cpu/testing.h"
#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/ops/outer_step/outer_step_cpu_kernel.h"

namespace milepost::kernels::cuda {
namespace {

TEST(OuterStepKernel, IsTheCpus) {
  for (const int64_t n : {1, 7, 8, 2049, 5003}) {
    for (const bool nesterov : {true, false}) {
      const OuterStep step = {.share = 1.0F / 3, .nesterov = nesterov};
      std::vector<float> masters = RandomVector<float>(n, 3), anchors = RandomVector<float>(n, 4),
                         momentum = RandomVector<float>(n, 5);
      HostArray<float> m(masters), a(anchors), u(momentum);
      RunKernel(OuterUpdateKernel{step, n, m.data(), a.data(), u.data()});
      kernels::OuterUpdate(step, n, masters.data(), anchors.data(), momentum.data());
      EXPECT_EQ(m.values(), masters) << n;
      EXPECT_EQ(a.values(), anchors) << n;
      EXPECT_EQ(u.values(), momentum) << n;
    }
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
