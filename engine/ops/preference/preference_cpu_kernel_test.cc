#include "engine/ops/preference/preference_cpu_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace milepost::kernels {
namespace {

// Far from 0 neither overflows nor loses all digits.
TEST(PreferenceLoss, LossesOfLargeMargins) {
  for (const float ahead : {-500.0F, -30.0F, 30.0F, 500.0F}) {
    const std::vector<float> log_probs = {ahead, 0}, reference = {0, 0};
    const std::vector<int32_t> documents = {0, 1}, pairs = {0, -1};
    std::vector<float> gradients(2);
    LossSum sum;
    PreferenceLoss(
        {log_probs.data(), reference.data(), documents.data(), pairs.data(), 1, 2, 1.0, 0.0}, 1,
        gradients.data(), &sum);
    const double want = ahead < 0 ? -ahead : std::exp(-double{ahead});
    EXPECT_NEAR(sum.loss, want, 1e-6 * want);
    EXPECT_NEAR(gradients[0], ahead < 0 ? -1 : -std::exp(-double{ahead}), 1e-6);
    EXPECT_EQ(gradients[1], -gradients[0]);
    EXPECT_EQ(sum.correct, ahead > 0 ? 1 : 0);
  }
}

}  // namespace
}  // namespace milepost::kernels
