#include "engine/ops/classifier/label_smoothing_cpu_kernel.h"

#include <cmath>
#include <vector>

#include "engine/kernels/cpu/testing.h"
#include "engine/ops/classifier/classifier_cpu_kernel.h"

namespace milepost::kernels {
namespace {

constexpr int64_t kSmoothedRows = 5, kClasses = 7;
constexpr double kSmoothing = 0.2;
const std::vector<int32_t> kTargets = {3, 0, -1, 6, 3};

// torch.nn.functional.cross_entropy(x, targets, label_smoothing=s, ignore_index=-1,
// reduction="sum"), by its definition.
double Definition(const std::vector<double>& x) {
  double loss = 0;
  for (int64_t r = 0; r < kSmoothedRows; ++r) {
    if (kTargets[r] < 0) continue;
    double total = 0;
    for (int64_t v = 0; v < kClasses; ++v) total += std::exp(x[r * kClasses + v]);
    for (int64_t v = 0; v < kClasses; ++v) {
      const double wanted = (v == kTargets[r] ? 1 - kSmoothing : 0) + kSmoothing / kClasses;
      loss -= wanted * (x[r * kClasses + v] - std::log(total));
    }
  }
  return loss;
}

template <typename T>
void Matches() {
  const auto x = RandomVector<T>(kSmoothedRows * kClasses, 1);
  std::vector<T> gradient = x;
  AlignedBuffer workspace(ClassifierWorkspaceBytes(kSmoothedRows));
  LossSum loss;
  loss.loss = SmoothingLoss(gradient.data(), kTargets.data(), kSmoothedRows, kClasses, kSmoothing);
  ClassifierForwardBackward<T>(gradient.data(), kTargets.data(), kSmoothedRows, kClasses, 1.0F,
                               workspace.data(), &loss);
  SmoothGradient(gradient.data(), kTargets.data(), kSmoothedRows, kClasses, kSmoothing, 1.0F);
  EXPECT_NEAR(loss.loss, Definition(ToDouble(x)), 1e-5);
  ExpectGradient(gradient, ToDouble(x), Definition, kTolerance<T>, "dlogits");
}

TEST(LabelSmoothing, MatchesDefinition) {
  Matches<float>();
  Matches<bf16>();
  Matches<f16>();
}

}  // namespace
}  // namespace milepost::kernels
