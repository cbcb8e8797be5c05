#include <cmath>

#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

// By documents: the sums of all of a sample's, then the pairs.
void PreferenceLoss(const Run& run) {
  const graph::Attributes& a = run.op.attributes;
  const bool training = run.op.kind == graph::OpKind::kPreferenceLossBackward;
  const std::vector<int32_t>& documents = run.integers(2);
  Array sums(graph::kLossSums, 0.0);
  Array gradients(run.in(0).size(), 0.0);
  for (int64_t sample = 0; sample < a.batch; ++sample) {
    const int64_t begin = sample * a.sequence, end = begin + a.sequence;
    for (int64_t first = begin; first < end; ++first) {
      if (run.integers(3)[first] < 0) continue;
      double ratio[2] = {0, 0};
      for (int64_t row = begin; row < end; ++row) {
        const int32_t which = documents[row] - documents[first];
        if (which == 0 || which == 1) ratio[which] += run.in(0)[row] - run.in(1)[row];
      }
      const double m = a.scale * (ratio[0] - ratio[1]);
      const double p = 1 / (1 + std::exp(-m));
      sums[graph::kLossSum] -=
          (1 - a.label_smoothing) * std::log(p) + a.label_smoothing * std::log(1 - p);
      sums[graph::kLossTargets] += 1;
      sums[graph::kLossCorrect] += !training && m > 0 ? 1 : 0;
      const double slope = p - (1 - a.label_smoothing);
      for (int64_t row = begin; row < end; ++row) {
        const int32_t which = documents[row] - documents[first];
        const double sign = which == 0 ? 1 : which == 1 ? -1 : 0;
        gradients[row] += sign * a.scale * slope * run.LossGradientScale();
      }
    }
  }
  run.Write(0, sums);
  if (training) run.Write(1, gradients);
}

}  // namespace

constinit const Rule kPreferenceLoss = PreferenceLoss;
constinit const Rule kPreferenceLossBackward = PreferenceLoss;

}  // namespace milepost::ops::reference
