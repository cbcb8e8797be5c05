#include "engine/optim/average.h"

#include <algorithm>

#include "milepost/v1/job_spec.pb.h"

namespace milepost::optim {

double AverageWeight(const v1::EmaSpec& ema, int64_t update) {
  const double weight = 1 - ema.decay();
  if (!ema.warmup()) return weight;
  return std::max(weight, 9.0 / (10.0 + static_cast<double>(update)));
}

}  // namespace milepost::optim
