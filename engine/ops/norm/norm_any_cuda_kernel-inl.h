// The kernels behind norm_cuda_kernel.h for widths of any size: a block has a row, element by
// element, and reads it as often as it needs it.
#ifndef MILEPOST_ENGINE_OPS_NORM_NORM_ANY_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_NORM_NORM_ANY_CUDA_KERNEL_INL_H_

#include <cstdint>

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/random.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/norm/norm_cuda_kernel-inl.h"
#include "engine/ops/norm/norm_cuda_kernel.h"

namespace milepost::kernels::cuda {

template <typename Context>
MP_DEVICE float DropElement(Context& c, const DropoutMask& mask, int64_t element, float value) {
  if (mask.position == nullptr) return value;
  const uint64_t index =
      mask.ElementOf(c.Load(&mask.position->first_sample), static_cast<uint64_t>(element));
  return value * MaskOfElement(mask, index, c.Load(&mask.position->step));
}

template <typename T, bool kLayer>
struct NormForwardAnyKernel {
  static constexpr int kThreads = 256;
  NormForwardArgs<T> a;
  DropoutMask mask;

  Grid grid() const { return {.x = a.rows}; }

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t row = c.block();
    const T* x = a.x;
    float sum = 0;
    const int64_t begin = row * RowStride(a), end = begin + a.width;
    for (int64_t i = begin + c.thread(); i < end; i += kThreads) {
      float value = Widen(c.Load(a.x + i));
      if (a.residual != nullptr) {
        const T stored = Narrow<T>(Widen(c.Load(a.residual + i)) + DropElement(c, mask, i, value));
        c.Store(a.sum + i, stored);
        value = Widen(stored);
      }
      sum += value;
    }
    if (a.residual != nullptr) x = a.sum;  // a thread reads what it wrote itself
    float mean = 0;
    if constexpr (kLayer) mean = BlockSum<kThreads, 0>(c, sum) / static_cast<float>(a.width);
    float squares = 0;
    for (int64_t i = begin + c.thread(); i < end; i += kThreads) {
      const float centred = Widen(c.Load(x + i)) - mean;
      squares = fmaf(centred, centred, squares);
    }
    const float variance = BlockSum<kThreads, 1>(c, squares) / static_cast<float>(a.width);
    const float rstd = 1.0f / sqrtf(variance + a.epsilon);
    for (int64_t column = c.thread(); column < a.width; column += kThreads) {
      const int64_t i = begin + column;
      const float normal = (Widen(c.Load(x + i)) - mean) * rstd;
      float y = normal * Gamma(c, column);
      if constexpr (kLayer) y += Widen(c.Load(a.beta + column));
      c.Store(a.y + i, Narrow<T>(y));
    }
    if (c.thread() != 0) return;
    if constexpr (kLayer) c.Store(a.mean + row, mean);
    c.Store(a.rstd + row, rstd);
  }

 private:
  template <typename Context>
  MP_DEVICE float Gamma(Context& c, int64_t column) const {
    const float gamma = Widen(c.Load(a.gamma + column));
    return kLayer ? gamma : gamma + a.gamma_offset;
  }
};

template <typename T, bool kLayer>
struct NormBackwardAnyKernel {
  static constexpr int kThreads = 256;
  NormBackwardArgs<T> a;
  DropoutMask mask;
  float* partial_gamma;
  float* partial_beta;

  Grid grid() const { return {.x = a.rows < kMaxNormBlocks ? a.rows : kMaxNormBlocks}; }

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    float* dgamma = partial_gamma + c.block() * a.width;
    float* dbeta = kLayer ? partial_beta + c.block() * a.width : nullptr;
    for (int64_t column = c.thread(); column < a.width; column += kThreads) {
      c.Store(dgamma + column, 0.0f);
      if constexpr (kLayer) c.Store(dbeta + column, 0.0f);
    }
    for (int64_t row = c.block(); row < a.rows; row += c.blocks()) Row(c, row, dgamma, dbeta);
  }

 private:
  template <typename Context>
  MP_DEVICE float Gamma(Context& c, int64_t column) const {
    const float gamma = Widen(c.Load(a.gamma + column));
    return kLayer ? gamma : gamma + a.gamma_offset;
  }
  template <typename Context>
  MP_DEVICE void Row(Context& c, int64_t row, float* dgamma, float* dbeta) const {
    const float rstd = c.Load(a.rstd + row);
    float mean = 0;
    if constexpr (kLayer) mean = c.Load(a.mean + row);
    float sum_g = 0, sum_gx = 0;
    const int64_t begin = row * RowStride(a);
    for (int64_t column = c.thread(); column < a.width; column += kThreads) {
      const int64_t i = begin + column;
      const float xhat = (Widen(c.Load(a.x + i)) - mean) * rstd;
      const float dy = Widen(c.Load(a.dy + i));
      const float g = dy * Gamma(c, column);
      c.Store(dgamma + column, fmaf(dy, xhat, c.Load(dgamma + column)));
      if constexpr (kLayer) c.Store(dbeta + column, c.Load(dbeta + column) + dy);
      sum_g += g;
      sum_gx = fmaf(g, xhat, sum_gx);
    }
    const float scale = 1.0f / static_cast<float>(a.width);
    float mean_g = 0;
    if constexpr (kLayer) mean_g = BlockSum<kThreads, 0>(c, sum_g) * scale;
    const float mean_gx = BlockSum<kThreads, 1>(c, sum_gx) * scale;
    for (int64_t column = c.thread(); column < a.width; column += kThreads) {
      const int64_t i = begin + column;
      const float xhat = (Widen(c.Load(a.x + i)) - mean) * rstd;
      const float g = Widen(c.Load(a.dy + i)) * Gamma(c, column);
      float dx = rstd * fmaf(-xhat, mean_gx, g - mean_g);
      if (a.dx_upstream != nullptr) dx += Widen(c.Load(a.dx_upstream + i));
      const T stored = Narrow<T>(dx);
      c.Store(a.dx + i, stored);
      if (a.d_delta == nullptr) continue;
      c.Store(a.d_delta + i, Narrow<T>(DropElement(c, mask, i, Widen(stored))));
    }
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_NORM_NORM_ANY_CUDA_KERNEL_INL_H_
