// The scalar side of the optimizer: AdamW's numbers for a step, and clipping by global norm. The
// vectorised update itself is in engine/kernels/.
//
//   ClipResult clip = ClipByNorm(sum_of_squares_over_all_shards, max_norm);
//   if (!clip.finite) skip the step;
//   AdamWStep step = AdamWStepAt(hyper, lr, /*update=*/schedule_step + 1);
//
// Pure functions. All in fp64.
#ifndef MILEPOST_ENGINE_OPTIM_ADAMW_H_
#define MILEPOST_ENGINE_OPTIM_ADAMW_H_

#include <cstdint>

namespace milepost::v1 {
class OptimizerSpec;
}

namespace milepost::optim {

struct OptimizerHyper {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // on tensors of two or more dimensions
  double momentum = 0;
};
// 0 for what the spec's type does not have.
OptimizerHyper HyperFromSpec(const v1::OptimizerSpec& spec);

// With g the clipped gradient, for an element with weight decay `wd` (0 where there is none):
//   m = beta1*m + (1-beta1)*g      v = beta2*v + (1-beta2)*g*g
//   p = p*(1 - lr*wd) - lr * (m / bias1) / (sqrt(v / bias2) + epsilon)
struct AdamWStep {
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  double weight_decay = 0;
  double bias1 = 1;  // 1 - beta1^update
  double bias2 = 1;  // 1 - beta2^update
};
// `update` counts updates made, this one included: from 1. Skipped steps do not count.
AdamWStep AdamWStepAt(const OptimizerHyper& hyper, double lr, int64_t update);

struct ClipResult {
  bool finite = true;       // false: the norm is NaN or infinite, the step must be skipped
  double norm = 0;          // before clipping
  double scale = 1;         // what every gradient is multiplied by; 1 when not finite
  double clipped_norm = 0;  // norm * scale
};
// `sum_squares`: over every gradient element, all ranks. `max_norm` 0 turns clipping off, but a
// non-finite norm is still found. scale = min(1, max_norm / (norm + 1e-6)).
ClipResult ClipByNorm(double sum_squares, double max_norm);

}  // namespace milepost::optim

#endif  // MILEPOST_ENGINE_OPTIM_ADAMW_H_
