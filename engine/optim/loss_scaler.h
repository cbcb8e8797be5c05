// Dynamic loss scaling (Micikevicius et al., "Mixed Precision Training", 2018), with the update
// rule of torch.amp.GradScaler, whose trace it follows exactly, and a floor beneath it.
//
//   LossScaler scaler(LossScaleFromSpec(spec.train().loss_scale()));
//   const float scale = scaler.scale();       // the backward multiplies the loss by this
//   ... divide the gradients by the same `scale`, not by what scale() is after Update ...
//   scaler.Update(/*overflowed=*/!norm_is_finite);
//
// The scale is kept in fp32, as torch keeps it. Deterministic; not synchronised: every rank has its
// own, fed with the same reduced flag.
#ifndef MILEPOST_ENGINE_OPTIM_LOSS_SCALER_H_
#define MILEPOST_ENGINE_OPTIM_LOSS_SCALER_H_

#include <cstdint>

namespace milepost::v1 {
class LossScaleSpec;
}

namespace milepost::optim {

struct LossScaleOptions {
  double initial = 65536;
  double growth = 2;  // factor after growth_interval clean steps in order
  double backoff = 0.5;
  int64_t growth_interval = 2000;
  double floor = 1;  // backing off never goes below
};
LossScaleOptions LossScaleFromSpec(const v1::LossScaleSpec& normalized);

class LossScaler {
 public:
  explicit LossScaler(const LossScaleOptions& options);

  // Of the next backward.
  float scale() const { return scale_; }
  // Steps without overflow since the scale last changed, or could not.
  int64_t clean_steps() const { return clean_steps_; }
  // The scale cannot be lowered any more: a step that overflows now does so for another reason
  // than the scale.
  bool at_floor() const { return scale_ <= static_cast<float>(options_.floor); }

  // After each step: whether any gradient of any rank was not finite.
  void Update(bool overflowed);

  // From a checkpoint. A scale below the floor is raised to it; clean steps count on from where
  // they were, also under another growth interval.
  void Restore(double scale, int64_t clean_steps);

 private:
  const LossScaleOptions options_;
  float scale_;
  int64_t clean_steps_ = 0;
};

}  // namespace milepost::optim

#endif  // MILEPOST_ENGINE_OPTIM_LOSS_SCALER_H_
