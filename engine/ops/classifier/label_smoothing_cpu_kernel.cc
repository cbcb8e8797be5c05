#include "engine/ops/classifier/label_smoothing_cpu_kernel.h"

#include "engine/kernels/cpu/parallel.h"

namespace milepost::kernels {
namespace {

template <typename T>
double Loss(const T* logits, const int32_t* targets, int64_t rows, int64_t classes,
            double smoothing) {
  double loss = 0;
  for (int64_t row = 0; row < rows; ++row) {
    if (targets[row] < 0) continue;
    const T* at = logits + row * classes;
    double sum = 0;
    for (int64_t v = 0; v < classes; ++v) sum += ToFloat(at[v]);
    loss += smoothing * (ToFloat(at[targets[row]]) - sum / static_cast<double>(classes));
  }
  return loss;
}

template <typename T>
void Gradient(T* gradient, const int32_t* targets, int64_t rows, int64_t classes, double smoothing,
              float scale) {
  const float all = static_cast<float>(smoothing / static_cast<double>(classes)) * scale;
  const float own = static_cast<float>(smoothing) * scale;
  ParallelFor(0, rows, 4, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      if (targets[row] < 0) continue;
      T* at = gradient + row * classes;
      const float target = ToFloat(at[targets[row]]);
      for (int64_t v = 0; v < classes; ++v) at[v] = FromFloat<T>(ToFloat(at[v]) - all);
      at[targets[row]] = FromFloat<T>(target + own - all);
    }
  });
}

}  // namespace

template <>
double SmoothingLoss(const float* logits, const int32_t* targets, int64_t rows, int64_t classes,
                     double smoothing) {
  return Loss(logits, targets, rows, classes, smoothing);
}
template <>
double SmoothingLoss(const bf16* logits, const int32_t* targets, int64_t rows, int64_t classes,
                     double smoothing) {
  return Loss(logits, targets, rows, classes, smoothing);
}
template <>
double SmoothingLoss(const f16* logits, const int32_t* targets, int64_t rows, int64_t classes,
                     double smoothing) {
  return Loss(logits, targets, rows, classes, smoothing);
}

template <>
void SmoothGradient(float* gradient, const int32_t* targets, int64_t rows, int64_t classes,
                    double smoothing, float scale) {
  Gradient(gradient, targets, rows, classes, smoothing, scale);
}
template <>
void SmoothGradient(bf16* gradient, const int32_t* targets, int64_t rows, int64_t classes,
                    double smoothing, float scale) {
  Gradient(gradient, targets, rows, classes, smoothing, scale);
}
template <>
void SmoothGradient(f16* gradient, const int32_t* targets, int64_t rows, int64_t classes,
                    double smoothing, float scale) {
  Gradient(gradient, targets, rows, classes, smoothing, scale);
}

}  // namespace milepost::kernels
