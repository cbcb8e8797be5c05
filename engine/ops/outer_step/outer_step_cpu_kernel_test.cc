#include "engine/ops/outer_step/outer_step_cpu_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

// Beside torch.optim.SGD's formula, in fp64, on the mean of what the islands have moved.
void ExpectTheFormula(int64_t n, const OuterStep& step) {
  std::vector<float> masters = RandomVector<float>(n, 3), anchors = RandomVector<float>(n, 4),
                     momentum = RandomVector<float>(n, 5);
  const std::vector<float> sums = masters, anchors_before = anchors, momentum_before = momentum;
  OuterUpdate(step, n, masters.data(), anchors.data(), momentum.data());
  for (int64_t i = 0; i < n; ++i) {
    const double anchor = anchors_before[i];
    const double gradient = anchor - double{sums[i]} * double{step.share};
    const double moving = double{step.momentum} * momentum_before[i] + gradient;
    const double along = step.nesterov ? gradient + double{step.momentum} * moving : moving;
    const double size = std::abs(anchor) + std::abs(sums[i]) + std::abs(momentum_before[i]);
    ASSERT_NEAR(momentum[i], moving, 3e-7 * size) << i;
    ASSERT_NEAR(anchors[i], anchor - double{step.lr} * along, 6e-7 * size) << i;
    ASSERT_EQ(masters[i], anchors[i]) << i;
  }
}

TEST(OuterStep, IsTheFormulaInFp64) {
  for (const int64_t n : {1, 7, 64, 50003}) {
    for (const bool nesterov : {true, false}) {
      ExpectTheFormula(n, {.share = 0.5F, .nesterov = nesterov});
      ExpectTheFormula(n, {.share = 1.0F / 3, .lr = 1, .momentum = 0, .nesterov = nesterov});
    }
  }
}

TEST(OuterStep, DoesNotDependOnThreads) {
  constexpr int64_t kCount = 100003;
  const auto run = [](int threads) {
    const ThreadCount count(threads);
    std::vector<float> masters = RandomVector<float>(kCount, 3),
                       anchors = RandomVector<float>(kCount, 4), momentum(kCount, 0.1F);
    OuterUpdate({.share = 0.25F}, kCount, masters.data(), anchors.data(), momentum.data());
    KeepAnchors(momentum.data(), kCount, anchors.data());
    masters.insert(masters.end(), anchors.begin(), anchors.end());
    return masters;
  };
  EXPECT_EQ(run(1), run(4));
}

}  // namespace
}  // namespace milepost::kernels
