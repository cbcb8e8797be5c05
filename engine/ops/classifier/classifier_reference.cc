#include <algorithm>
#include <cmath>

#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

using graph::kLossCorrect;
using graph::kLossSum;
using graph::kLossSums;
using graph::kLossTargets;
using graph::OpKind;

void ClassifierLoss(const Run& run) {
  const int64_t classes = run.dim(0, 1);
  const double smoothing = run.op.attributes.label_smoothing;
  const bool training = run.op.kind == OpKind::kClassifierLossBackward;
  Array gradient = run.in(0), sums(kLossSums, 0.0);
  for (int64_t r = 0; r < run.dim(0, 0); ++r) {
    const double* row = run.in(0).data() + r * classes;
    const int32_t target = run.integers(1)[r];
    double total = 0, mean = 0;
    for (int64_t v = 0; v < classes; ++v) {
      total += std::exp(row[v]);
      mean += row[v] / static_cast<double>(classes);
    }
    const double lse = std::log(total);
    if (target >= 0) {
      sums[kLossSum] += lse - (1 - smoothing) * row[target] - smoothing * mean;
      sums[kLossTargets] += 1;
      const bool best = std::max_element(row, row + classes) - row == target;
      sums[kLossCorrect] += !training && best ? 1 : 0;
    }
    for (int64_t v = 0; v < classes; ++v) {
      const double wanted =
          (v == target ? 1 - smoothing : 0) + smoothing / static_cast<double>(classes);
      gradient[r * classes + v] =
          target < 0 ? 0 : (std::exp(row[v] - lse) - wanted) * run.LossGradientScale();
    }
  }
  run.Write(0, sums);
  if (training) run.Write(1, gradient);
}

}  // namespace

constinit const Rule kClassifierLoss = ClassifierLoss;
constinit const Rule kClassifierLossBackward = ClassifierLoss;

}  // namespace milepost::ops::reference
