#include "engine/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "milepost/v1/job_spec.pb.h"

namespace milepost::optim {
namespace {

// `t`: the part that is over of the steps from the peak to the last one.
double DecayedLr(const Schedule& schedule, double t) {
  // cos(pi) is not exactly -1 after rounding elsewhere: the last step's ratio is exact by rule.
  if (t >= 1) return schedule.peak_lr * schedule.final_lr_ratio;
  const bool cosine = schedule.type == Schedule::Type::kCosine;
  const double f = cosine ? 0.5 * (1 + std::cos(std::numbers::pi * t)) : 1 - t;
  return schedule.peak_lr * (schedule.final_lr_ratio + (1 - schedule.final_lr_ratio) * f);
}

}  // namespace

double Schedule::LrAt(int64_t step) const {
  step = std::clamp<int64_t>(step, 0, std::max<int64_t>(total_steps - 1, 0));
  if (step < warmup_steps) {
    return peak_lr * (static_cast<double>(step + 1) / static_cast<double>(warmup_steps));
  }
  int64_t peak_step = std::max<int64_t>(warmup_steps - 1, 0);
  if (type == Type::kInverseSqrt) {
    const double ratio = static_cast<double>(peak_step + 1) / static_cast<double>(step + 1);
    return peak_lr * std::max(std::sqrt(ratio), final_lr_ratio);
  }
  if (type == Type::kWarmupStableDecay) {
    peak_step = std::max(peak_step, total_steps - 1 - decay_steps);
  }
  if (type == Type::kConstant || step <= peak_step) return peak_lr;
  const double t =
      static_cast<double>(step - peak_step) / static_cast<double>(total_steps - 1 - peak_step);
  return DecayedLr(*this, t);
}

Schedule ScheduleFromSpec(const v1::TrainSpec& spec) {
  Schedule schedule;
  switch (spec.schedule().type()) {
    case v1::ScheduleSpec::TYPE_CONSTANT:
      schedule.type = Schedule::Type::kConstant;
      break;
    case v1::ScheduleSpec::TYPE_LINEAR:
      schedule.type = Schedule::Type::kLinear;
      break;
    case v1::ScheduleSpec::TYPE_INVERSE_SQRT:
      schedule.type = Schedule::Type::kInverseSqrt;
      break;
    case v1::ScheduleSpec::TYPE_WARMUP_STABLE_DECAY:
      schedule.type = Schedule::Type::kWarmupStableDecay;
      break;
    default:
      schedule.type = Schedule::Type::kCosine;
      break;
  }
  schedule.peak_lr = spec.optimizer().lr();
  schedule.warmup_steps = spec.schedule().warmup_steps();
  schedule.total_steps = spec.steps();
  schedule.final_lr_ratio = spec.schedule().final_lr_ratio();
  schedule.decay_steps = spec.schedule().decay_steps();
  return schedule;
}

}  // namespace milepost::optim
