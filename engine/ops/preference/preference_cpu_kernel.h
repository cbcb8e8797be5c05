// The loss over pairs of documents (preference.h), and the gradient of the log-probabilities.
#ifndef MILEPOST_ENGINE_OPS_PREFERENCE_PREFERENCE_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_PREFERENCE_PREFERENCE_CPU_KERNEL_H_

#include "engine/ops/classifier/classifier_cpu_kernel.h"
#include "engine/ops/preference/preference_contract.h"

namespace milepost::kernels {

// *sum is added to, pair by pair in order. `gradients`, if there, is assigned: those of the sum of
// losses times `scale`. Serial: a few additions a row.
void PreferenceLoss(const PreferenceArgs& args, float scale, float* gradients, LossSum* sum);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_PREFERENCE_PREFERENCE_CPU_KERNEL_H_
