// What both devices' kernels of preferences get; pointers are the device's.
#ifndef MILEPOST_ENGINE_OPS_PREFERENCE_PREFERENCE_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_PREFERENCE_PREFERENCE_CONTRACT_H_

#include <cstdint>

namespace milepost::kernels {

// [batch, sequence] each.
struct PreferenceArgs {
  const float* log_probs = nullptr;
  const float* reference = nullptr;
  const int32_t* documents = nullptr;  // ids that never fall along a sample
  const int32_t* pairs = nullptr;
  int64_t batch = 0;
  int64_t sequence = 0;
  double beta = 0;
  double label_smoothing = 0;
};

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_PREFERENCE_PREFERENCE_CONTRACT_H_
