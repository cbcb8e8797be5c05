#include "engine/ops/classifier/classifier_cuda_kernel.h"

#include "engine/kernels/cuda/launch-inl.h"
#include "engine/ops/classifier/classifier_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {

template <typename T>
absl::Status ClassifierLossAndGradient(const ClassifierArgs<T>& args, void* workspace,
                                       cudaStream_t stream) {
  return RunClassifier<true>(args, static_cast<RowLoss*>(workspace), [&](const auto& kernel) {
    return Launch(kernel, kernel.grid(), stream, "ClassifierLossAndGradient");
  });
}

template <typename T>
absl::Status ClassifierLoss(const ClassifierArgs<T>& args, void* workspace, cudaStream_t stream) {
  return RunClassifier<false>(args, static_cast<RowLoss*>(workspace), [&](const auto& kernel) {
    return Launch(kernel, kernel.grid(), stream, "ClassifierLoss");
  });
}

template <typename T>
absl::Status ClassifierLogProbs(const ClassifierArgs<T>& args, void* workspace, float* log_probs,
                                cudaStream_t stream) {
  return RunLogProbs(args, static_cast<RowLoss*>(workspace), log_probs, [&](const auto& kernel) {
    return Launch(kernel, kernel.grid(), stream, "ClassifierLogProbs");
  });
}

template <typename T>
absl::Status ClassifierParts(const T* logits, const LogitsRows& rows, const LogitsColumns& columns,
                             LogitsPart* parts, cudaStream_t stream) {
  return RunParts(logits, rows, columns, parts, [&](const auto& kernel) {
    return Launch(kernel, kernel.grid(), stream, "ClassifierParts");
  });
}

template <typename T>
absl::Status ClassifierPartsGradient(const T* logits, const LogitsRows& rows,
                                     const LogitsColumns& columns, const GatheredParts& parts,
                                     const float* scale, T* gradients, cudaStream_t stream) {
  const PartsGradientKernel<T> kernel = {logits, rows, columns, parts, scale, gradients};
  return Launch(kernel, kernel.grid(), stream, "ClassifierPartsGradient");
}

absl::Status ClassifierPartsLoss(const int32_t* targets, const GatheredParts& parts,
                                 bool with_correct, bool accumulate, double* sums,
                                 cudaStream_t stream) {
  const PartsLossKernel kernel = {targets, parts, with_correct, accumulate, sums};
  return Launch(kernel, kernel.grid(), stream, "ClassifierPartsLoss");
}

#define MP_INSTANTIATE(T)                                                                          \
  template absl::Status ClassifierLossAndGradient(const ClassifierArgs<T>&, void*, cudaStream_t);  \
  template absl::Status ClassifierLoss(const ClassifierArgs<T>&, void*, cudaStream_t);             \
  template absl::Status ClassifierLogProbs(const ClassifierArgs<T>&, void*, float*, cudaStream_t); \
  template absl::Status ClassifierParts(const T*, const LogitsRows&, const LogitsColumns&,         \
                                        LogitsPart*, cudaStream_t);                                \
  template absl::Status ClassifierPartsGradient(const T*, const LogitsRows&, const LogitsColumns&, \
                                                const GatheredParts&, const float*, T*,            \
                                                cudaStream_t)
MP_INSTANTIATE(float);
MP_INSTANTIATE(bf16);
MP_INSTANTIATE(f16);

}  // namespace milepost::kernels::cuda
