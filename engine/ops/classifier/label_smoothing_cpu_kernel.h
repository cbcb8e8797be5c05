// What label smoothing adds to cross-entropy and to its gradient (classifier_cpu_kernel.h), over
// rows of logits; T in {float, bf16, f16}. The target of a row becomes (1 - s) of its class and s /
// classes of every class, as in torch's cross_entropy.
//
//   loss.loss += SmoothingLoss(logits, targets, rows, classes, s);      // before the next call
//   ClassifierForwardBackward(logits, targets, rows, classes, scale, workspace, &loss);
//   SmoothGradient(logits, targets, rows, classes, s, scale);           // which they have become
#ifndef MILEPOST_ENGINE_OPS_CLASSIFIER_LABEL_SMOOTHING_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_CLASSIFIER_LABEL_SMOOTHING_CPU_KERNEL_H_

#include <cstdint>

#include "engine/dtype/half.h"

namespace milepost::kernels {

// Sum over rows with a target (-1: none) of s (logit of the target - mean of the row's logits).
template <typename T>
double SmoothingLoss(const T* logits, const int32_t* targets, int64_t rows, int64_t classes,
                     double smoothing);

// Adds scale (s at the target - s / classes) to rows with a target.
template <typename T>
void SmoothGradient(T* gradient, const int32_t* targets, int64_t rows, int64_t classes,
                    double smoothing, float scale);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_CLASSIFIER_LABEL_SMOOTHING_CPU_KERNEL_H_
