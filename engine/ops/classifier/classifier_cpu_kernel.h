// Softmax, cross-entropy and its gradient over a chunk of logits rows, in place; T in {float, bf16,
// f16}.
//
//   LossSum loss;
//   ClassifierForwardBackward<bf16>(logits, targets, rows, vocabulary, 1.0f / valid_targets,
//                                   row_loss, &loss);
#ifndef MILEPOST_ENGINE_OPS_CLASSIFIER_CLASSIFIER_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_CLASSIFIER_CLASSIFIER_CPU_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/ops/classifier/classifier_contract.h"

namespace milepost::kernels {

struct LossSum {
  double loss = 0.0;    // sum over valid rows of -log p(target), unscaled
  int64_t targets = 0;  // how many rows were valid
  int64_t correct = 0;  // of those: whose largest logit (the first of equal ones) is the target's
};

// logits[rows, vocabulary] becomes (softmax - onehot(target)) * scale; a row whose target is -1 is
// ignored: its gradient is 0. *sum is added to, in row order, but for `correct`, which would cost a
// pass. `workspace` is 64-byte aligned.
template <typename T>
void ClassifierForwardBackward(T* logits, const int32_t* targets, int64_t rows, int64_t vocabulary,
                               float scale, void* workspace, LossSum* sum);

// The sums only; logits stay as they are.
template <typename T>
void ClassifierForward(const T* logits, const int32_t* targets, int64_t rows, int64_t vocabulary,
                       void* workspace, LossSum* sum);

// log p(target) of each row; 0 where there is none. Logits stay as they are.
template <typename T>
void ClassifierLogProbs(const T* logits, const int32_t* targets, int64_t rows, int64_t vocabulary,
                        float* log_probs);

// logits become (onehot(target) - softmax) * the row's gradient; 0 in rows without a target.
template <typename T>
void ClassifierLogProbsBackward(T* logits, const int32_t* targets, int64_t rows, int64_t vocabulary,
                                const float* gradients);

// ---- where ranks divide the columns ----

// parts[r]: of this rank's columns of each row, r its number; zeros in rows without a target, but
// for those that are numbered. Logits stay as they are.
template <typename T>
void ClassifierParts(const T* logits, const LogitsRows& rows, const LogitsColumns& columns,
                     LogitsPart* parts);

// gradients, of this rank's columns: as ClassifierForwardBackward's. They may be the logits.
template <typename T>
void ClassifierPartsGradient(const T* logits, const LogitsRows& rows, const LogitsColumns& columns,
                             const GatheredParts& parts, float scale, T* gradients);

// *sum is added to, in row order, the same on every rank; `correct` where with_correct.
void ClassifierPartsLoss(const int32_t* targets, const GatheredParts& parts, bool with_correct,
                         LossSum* sum);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_CLASSIFIER_CLASSIFIER_CPU_KERNEL_H_
