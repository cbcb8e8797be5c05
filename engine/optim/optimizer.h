// The scalar side of the optimizer: its numbers from the spec, and clipping by global norm. The
// vectorised updates themselves are in the rooms beside this.
//
//   ClipResult clip = ClipByNorm(sum_of_squares_over_all_shards, max_norm);
//   if (!clip.finite) skip the step;
//
// Pure functions. All in fp64.
#ifndef MILEPOST_ENGINE_OPTIM_OPTIMIZER_H_
#define MILEPOST_ENGINE_OPTIM_OPTIMIZER_H_

#include <cstdint>

namespace milepost::v1 {
class OptimizerSpec;
}

namespace milepost::optim {

struct OptimizerHyper {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double beta3 = 0;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // on tensors of two or more dimensions
  double momentum = 0;
  bool nesterov = false;
};
// 0 for what the spec's type does not have.
OptimizerHyper HyperFromSpec(const v1::OptimizerSpec& spec);

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

#endif  // MILEPOST_ENGINE_OPTIM_OPTIMIZER_H_
