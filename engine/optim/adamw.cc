#include "engine/optim/adamw.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::optim {
namespace {

// 1 - beta^n without cancellation for beta near 1.
double BiasCorrection(double beta, int64_t n) {
  if (beta <= 0) return 1;
  return -std::expm1(static_cast<double>(n) * std::log(beta));
}

}  // namespace

OptimizerHyper HyperFromSpec(const v1::OptimizerSpec& spec) {
  return {spec.beta1(), spec.beta2(), spec.epsilon(), spec.weight_decay(), spec.momentum()};
}

AdamWStep AdamWStepAt(const OptimizerHyper& hyper, double lr, int64_t update) {
  MP_CHECK(update >= 1) << update;
  return {.lr = lr,
          .beta1 = hyper.beta1,
          .beta2 = hyper.beta2,
          .epsilon = hyper.epsilon,
          .weight_decay = hyper.weight_decay,
          .bias1 = BiasCorrection(hyper.beta1, update),
          .bias2 = BiasCorrection(hyper.beta2, update)};
}

ClipResult ClipByNorm(double sum_squares, double max_norm) {
  ClipResult result;
  result.norm = std::sqrt(sum_squares);
  result.clipped_norm = result.norm;
  result.finite = std::isfinite(result.norm);
  if (!result.finite || max_norm <= 0) return result;
  result.scale = std::min(1.0, max_norm / (result.norm + 1e-6));
  result.clipped_norm = result.norm * result.scale;
  return result;
}

}  // namespace milepost::optim
