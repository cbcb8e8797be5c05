#include "engine/optim/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include "milepost/v1/job_spec.pb.h"

namespace milepost::optim {

LossScaleOptions LossScaleFromSpec(const v1::LossScaleSpec& normalized) {
  return {.initial = normalized.initial(),
          .growth = normalized.growth(),
          .backoff = normalized.backoff(),
          .growth_interval = normalized.growth_interval(),
          .floor = normalized.floor()};
}

LossScaler::LossScaler(const LossScaleOptions& options)
    : options_(options), scale_(static_cast<float>(options.initial)) {}

void LossScaler::Update(bool overflowed) {
  if (overflowed) {
    scale_ = static_cast<float>(std::max(double{scale_} * options_.backoff, options_.floor));
    clean_steps_ = 0;
    return;
  }
  if (++clean_steps_ < options_.growth_interval) return;
  clean_steps_ = 0;
  const auto grown = static_cast<float>(double{scale_} * options_.growth);
  if (std::isfinite(grown)) scale_ = grown;
}

void LossScaler::Restore(double scale, int64_t clean_steps) {
  scale_ = static_cast<float>(std::max(scale, options_.floor));
  clean_steps_ = clean_steps;
}

}  // namespace milepost::optim
