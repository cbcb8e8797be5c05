#include "engine/ops/qk_norm/qk_norm_cpu_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/kernels/cpu/column_sum.h"
#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/qk_norm/qk_norm_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

// Both passes make it of the same numbers in the same order, so that it need not be kept.
template <typename T>
HWY_INLINE float ReciprocalRms(const T* x, int64_t n, float epsilon) {
  const DF d;
  VF sum = hn::Zero(d);
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    const VF a = LoadUpTo(d, x + i, count);
    sum = hn::MulAdd(a, a, sum);
  });
  const float squares = hn::GetLane(hn::SumOfLanes(d, sum));
  return 1.0f / std::sqrt(squares / static_cast<float>(n) + epsilon);
}

template <typename T>
HWY_INLINE void NormaliseHead(const QkNormShape& s, const T* x, const T* gamma, T* out) {
  const DF d;
  const int64_t n = s.head_dim;
  const VF rms = hn::Set(d, ReciprocalRms(x, n, s.epsilon)), offset = hn::Set(d, s.gamma_offset);
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    const VF normal = hn::Mul(LoadUpTo(d, x + i, count), rms);
    StoreUpTo(hn::Mul(normal, hn::Add(LoadUpTo(d, gamma + i, count), offset)), d, out + i, count);
  });
}

template <typename T>
void ForwardRows(const QkNormShape& s, const T* qkv, const T* gamma_q, const T* gamma_k,
                 int64_t first, int64_t last, T* out) {
  const int64_t normed = s.heads + s.kv_heads;
  const int64_t width = (normed + s.kv_heads) * s.head_dim;
  for (int64_t row = first; row < last; ++row) {
    const int64_t at = row * width;
    for (int64_t head = 0; head < normed; ++head) {
      NormaliseHead(s, qkv + at + head * s.head_dim, head < s.heads ? gamma_q : gamma_k,
                    out + at + head * s.head_dim);
    }
    if (out == qkv) continue;
    std::memcpy(static_cast<void*>(out + at + normed * s.head_dim), qkv + at + normed * s.head_dim,
                s.kv_heads * s.head_dim * sizeof(T));
  }
}

// With xhat = x rms and g = dy (gamma_offset + gamma): dx = rms (g - xhat mean(g xhat)); dgamma +=
// dy xhat.
template <typename T>
HWY_INLINE void BackwardHead(const QkNormShape& s, const T* x, const T* gamma, const T* dy, T* dx,
                             float* dgamma) {
  const DF d;
  const int64_t n = s.head_dim;
  const VF rms = hn::Set(d, ReciprocalRms(x, n, s.epsilon)), offset = hn::Set(d, s.gamma_offset);
  VF sum = hn::Zero(d);
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    const VF gradient = LoadUpTo(d, dy + i, count);
    const VF product = hn::Mul(gradient, hn::Mul(LoadUpTo(d, x + i, count), rms));
    sum = hn::MulAdd(product, hn::Add(LoadUpTo(d, gamma + i, count), offset), sum);
    StoreUpTo(hn::Add(product, LoadUpTo(d, dgamma + i, count)), d, dgamma + i, count);
  });
  const float scale = 1.0f / static_cast<float>(n);
  const VF mean = hn::Set(d, hn::GetLane(hn::SumOfLanes(d, sum)) * scale);
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    const VF xhat = hn::Mul(LoadUpTo(d, x + i, count), rms);
    const VF scale_of_i = hn::Add(LoadUpTo(d, gamma + i, count), offset);
    const VF g = hn::Mul(LoadUpTo(d, dy + i, count), scale_of_i);
    StoreUpTo(hn::Mul(rms, hn::NegMulAdd(xhat, mean, g)), d, dx + i, count);
  });
}

template <typename T>
void BackwardRows(const QkNormShape& s, const QkNormBackwardArgs<T>& a, int64_t first, int64_t last,
                  float* dgamma_q, float* dgamma_k) {
  const int64_t normed = s.heads + s.kv_heads;
  const int64_t width = (normed + s.kv_heads) * s.head_dim;
  std::fill(dgamma_q, dgamma_q + s.head_dim, 0.0f);
  std::fill(dgamma_k, dgamma_k + s.head_dim, 0.0f);
  for (int64_t row = first; row < last; ++row) {
    for (int64_t head = 0; head < normed; ++head) {
      const int64_t at = row * width + head * s.head_dim;
      const bool query = head < s.heads;
      BackwardHead(s, a.qkv + at, query ? a.gamma_q : a.gamma_k, a.dout + at, a.dqkv + at,
                   query ? dgamma_q : dgamma_k);
    }
    if (a.dqkv == a.dout) continue;
    const int64_t values = row * width + normed * s.head_dim;
    std::memcpy(static_cast<void*>(a.dqkv + values), a.dout + values,
                s.kv_heads * s.head_dim * sizeof(T));
  }
}

}  // namespace

void QkForwardF32(const QkNormShape& shape, const float* qkv, const float* gamma_q,
                  const float* gamma_k, int64_t first, int64_t last, float* out) {
  ForwardRows(shape, qkv, gamma_q, gamma_k, first, last, out);
}
void QkForwardBf16(const QkNormShape& shape, const bf16* qkv, const bf16* gamma_q,
                   const bf16* gamma_k, int64_t first, int64_t last, bf16* out) {
  ForwardRows(shape, qkv, gamma_q, gamma_k, first, last, out);
}
void QkForwardF16(const QkNormShape& shape, const f16* qkv, const f16* gamma_q, const f16* gamma_k,
                  int64_t first, int64_t last, f16* out) {
  ForwardRows(shape, qkv, gamma_q, gamma_k, first, last, out);
}
void QkBackwardF32(const QkNormShape& shape, const QkNormBackwardArgs<float>& args, int64_t first,
                   int64_t last, float* dgamma_q, float* dgamma_k) {
  BackwardRows(shape, args, first, last, dgamma_q, dgamma_k);
}
void QkBackwardBf16(const QkNormShape& shape, const QkNormBackwardArgs<bf16>& args, int64_t first,
                    int64_t last, float* dgamma_q, float* dgamma_k) {
  BackwardRows(shape, args, first, last, dgamma_q, dgamma_k);
}
void QkBackwardF16(const QkNormShape& shape, const QkNormBackwardArgs<f16>& args, int64_t first,
                   int64_t last, float* dgamma_q, float* dgamma_k) {
  BackwardRows(shape, args, first, last, dgamma_q, dgamma_k);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(QkForwardF32);
HWY_EXPORT(QkForwardBf16);
HWY_EXPORT(QkForwardF16);
HWY_EXPORT(QkBackwardF32);
HWY_EXPORT(QkBackwardBf16);
HWY_EXPORT(QkBackwardF16);

namespace {

template <typename T, typename Rows>
void ForwardWith(Rows forward_rows, const QkNormShape& shape, const T* qkv, const T* gamma_q,
                 const T* gamma_k, T* out) {
  const int64_t width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  // Rows per thread at least: below this a fork costs more than it saves.
  const int64_t grain = std::max<int64_t>(1, 8192 / width);
  ParallelFor(0, shape.rows, grain, [&](int64_t first, int64_t last) {
    forward_rows(shape, qkv, gamma_q, gamma_k, first, last, out);
  });
}

template <typename T, typename Rows>
void BackwardWith(Rows backward_rows, const QkNormShape& shape, const QkNormBackwardArgs<T>& args,
                  void* workspace) {
  const RowBlocks blocks(shape.rows);
  const int64_t stride = PartialStride(shape.head_dim);
  float* dgamma_q = static_cast<float*>(workspace);
  float* dgamma_k = dgamma_q + blocks.count * stride;
  ParallelTasks(blocks.count, [&](int64_t block, int) {
    backward_rows(shape, args, blocks.First(block), blocks.Last(block), dgamma_q + block * stride,
                  dgamma_k + block * stride);
  });
  AddPartials(dgamma_q, blocks.count, stride, shape.head_dim, args.accumulate_q, args.dgamma_q);
  AddPartials(dgamma_k, blocks.count, stride, shape.head_dim, args.accumulate_k, args.dgamma_k);
}

}  // namespace

template <>
void QkNormForward(const QkNormShape& shape, const float* qkv, const float* gamma_q,
                   const float* gamma_k, float* out) {
  ForwardWith(HWY_DYNAMIC_DISPATCH(QkForwardF32), shape, qkv, gamma_q, gamma_k, out);
}
template <>
void QkNormForward(const QkNormShape& shape, const bf16* qkv, const bf16* gamma_q,
                   const bf16* gamma_k, bf16* out) {
  ForwardWith(HWY_DYNAMIC_DISPATCH(QkForwardBf16), shape, qkv, gamma_q, gamma_k, out);
}
template <>
void QkNormForward(const QkNormShape& shape, const f16* qkv, const f16* gamma_q, const f16* gamma_k,
                   f16* out) {
  ForwardWith(HWY_DYNAMIC_DISPATCH(QkForwardF16), shape, qkv, gamma_q, gamma_k, out);
}
template <>
void QkNormBackward(const QkNormShape& shape, const QkNormBackwardArgs<float>& args,
                    void* workspace) {
  BackwardWith(HWY_DYNAMIC_DISPATCH(QkBackwardF32), shape, args, workspace);
}
template <>
void QkNormBackward(const QkNormShape& shape, const QkNormBackwardArgs<bf16>& args,
                    void* workspace) {
  BackwardWith(HWY_DYNAMIC_DISPATCH(QkBackwardBf16), shape, args, workspace);
}
template <>
void QkNormBackward(const QkNormShape& shape, const QkNormBackwardArgs<f16>& args,
                    void* workspace) {
  BackwardWith(HWY_DYNAMIC_DISPATCH(QkBackwardF16), shape, args, workspace);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
