#include "engine/optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "milepost/v1/job_spec.pb.h"

namespace milepost::optim {

OptimizerHyper HyperFromSpec(const v1::OptimizerSpec& spec) {
  return {.beta1 = spec.beta1(),
          .beta2 = spec.beta2(),
          .beta3 = spec.beta3(),
          .epsilon = spec.epsilon(),
          .weight_decay = spec.weight_decay(),
          .momentum = spec.momentum(),
          .nesterov = spec.nesterov()};
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
