// Learning rate of a step: a pure function.
//
//   Schedule schedule = {.type = Schedule::Type::kCosine, .peak_lr = 6e-4, .warmup_steps = 100,
//                        .total_steps = 1000, .final_lr_ratio = 0.1};
//   double lr = schedule.LrAt(step);   // step in [0, total_steps): optimizer steps done before it
//
// `step` counts the steps that advanced the schedule (a skipped step does not), from 0:
//   step < warmup:   peak * (step + 1) / warmup          so step warmup - 1 runs at the peak
//   then             peak * (ratio + (1 - ratio) * f(t))  t = (step - W) / (total - 1 - W)
// with W = max(warmup - 1, 0), the step that first runs at the peak, and f(t) = 1 (constant, where
// ratio plays no part), 1 - t (linear) or (1 + cos(pi t)) / 2 (cosine). Warm-up-stable-decay is
// linear with W = total - 1 - decay in place of the first one, and at the peak until then. The last
// step, total - 1, runs at exactly peak * ratio, when there is a step after the peak; with no such
// step it is at the peak. Inverse square root: peak * max(sqrt((W + 1) / (step + 1)), ratio). Steps
// past the end keep the last value.
#ifndef MILEPOST_ENGINE_OPTIM_SCHEDULE_H_
#define MILEPOST_ENGINE_OPTIM_SCHEDULE_H_

#include <cstdint>

namespace milepost::v1 {
class TrainSpec;
}

namespace milepost::optim {

struct Schedule {
  enum class Type { kConstant, kLinear, kCosine, kInverseSqrt, kWarmupStableDecay };
  Type type = Type::kCosine;
  double peak_lr = 0;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  double final_lr_ratio = 0.1;
  int64_t decay_steps = 0;  // warm-up-stable-decay: at most total - warmup

  double LrAt(int64_t step) const;
};

// From a normalised spec.
Schedule ScheduleFromSpec(const v1::TrainSpec& spec);

}  // namespace milepost::optim

#endif  // MILEPOST_ENGINE_OPTIM_SCHEDULE_H_
