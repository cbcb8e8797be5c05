// Softmax, cross-entropy and its gradient over rows of logits, in place, for vocabularies of any
// size: one pass for the sum (online softmax), one for the result, which finds the row in the
// second-level cache. T in {float, bf16, f16}. Semantics of the CPU's (classifier_cpu_kernel.h,
// label_smoothing_cpu_kernel.h).
//
//   ClassifierArgs<bf16> args{.logits = logits, .targets = targets, .rows = 512, ...};
//   MP_RETURN_IF_ERROR(ClassifierLossAndGradient(args, workspace, stream));
#ifndef MILEPOST_ENGINE_OPS_CLASSIFIER_CLASSIFIER_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_CLASSIFIER_CLASSIFIER_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/classifier/classifier_contract.h"

namespace milepost::kernels::cuda {

template <typename T>
struct ClassifierArgs {
  T* logits = nullptr;               // [rows, stride], 16-byte aligned; rows need not be
  const int32_t* targets = nullptr;  // [rows], -1: none
  int64_t rows = 0;
  int64_t vocabulary = 0;
  float smoothing = 0;           // label smoothing
  const float* scale = nullptr;  // device: of gradients
  double* sums = nullptr;        // graph::kLossSums: loss, targets, correct (0 with a gradient)
  bool accumulate = false;       // sums += instead of =
  int64_t stride = 0;            // elements from row to row; 0: vocabulary
  // Device, [rows]: of the rows' log-probabilities. Then there are no sums, and logits become
  // (target - softmax) * the row's.
  const float* gradients = nullptr;
};

// logits become (softmax - target) * scale, 0 in rows without a target. `workspace`: 8-byte
// aligned.
template <typename T>
absl::Status ClassifierLossAndGradient(const ClassifierArgs<T>& args, void* workspace,
                                       cudaStream_t stream);

// The sums alone; logits stay as they are. `scale` is not read.
template <typename T>
absl::Status ClassifierLoss(const ClassifierArgs<T>& args, void* workspace, cudaStream_t stream);

// log p(target) of each row, 0 where there is none; logits stay as they are.
template <typename T>
absl::Status ClassifierLogProbs(const ClassifierArgs<T>& args, void* workspace, float* log_probs,
                                cudaStream_t stream);

// ---- where ranks divide the columns; as the CPU's, but that zeros are written in every row that
// has no target ----

template <typename T>
absl::Status ClassifierParts(const T* logits, const LogitsRows& rows, const LogitsColumns& columns,
                             LogitsPart* parts, cudaStream_t stream);

// `scale`: device.
template <typename T>
absl::Status ClassifierPartsGradient(const T* logits, const LogitsRows& rows,
                                     const LogitsColumns& columns, const GatheredParts& parts,
                                     const float* scale, T* gradients, cudaStream_t stream);

// sums (or += where `accumulate`): graph::kLossSums.
absl::Status ClassifierPartsLoss(const int32_t* targets, const GatheredParts& parts,
                                 bool with_correct, bool accumulate, double* sums,
                                 cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_CLASSIFIER_CLASSIFIER_CUDA_KERNEL_H_
