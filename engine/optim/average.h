// How much of the parameters goes into their exponential moving average.
//
//   const double weight = optim::AverageWeight(spec.train().ema(), update);
//   average += weight * (parameter - average);
#ifndef MILEPOST_ENGINE_OPTIM_AVERAGE_H_
#define MILEPOST_ENGINE_OPTIM_AVERAGE_H_

#include <cstdint>

namespace milepost::v1 {
class EmaSpec;
}

namespace milepost::optim {

// 1 - d at the update with this number, counted from 1, with d the decay or, with warm-up, at most
// (1 + update) / (10 + update). `ema` is normalised. Pure.
double AverageWeight(const v1::EmaSpec& ema, int64_t update);

}  // namespace milepost::optim

#endif  // MILEPOST_ENGINE_OPTIM_AVERAGE_H_
