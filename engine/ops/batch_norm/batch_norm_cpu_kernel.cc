#include "engine/ops/batch_norm/batch_norm_cpu_kernel.h"

#include <algorithm>
#include <cmath>

#include "engine/kernels/cpu/column_sum.h"
#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/batch_norm/batch_norm_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

#ifndef MILEPOST_ENGINE_KERNELS_CPU_BATCH_NORM_COMMON_
#define MILEPOST_ENGINE_KERNELS_CPU_BATCH_NORM_COMMON_
namespace milepost::kernels {
namespace {

// Rows that are summed in fp32 before fp64 takes over.
constexpr int64_t kRun = 32;

// Per channel, made once per call: y = x scale + shift, and dx = g a + x b + c.
struct Coefficients {
  float* scale;
  float* shift;
  float* a;
  float* b;
  float* c;
};

}  // namespace
}  // namespace milepost::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

// totals[0..n) += the vector's lanes.
HWY_INLINE void AddTo(VF v, DF d, int64_t n, double* totals) {
  alignas(64) float lanes[kMaxLanes] = {};  // the compiler does not see that n lanes are stored
  hn::Store(v, d, lanes);
  for (int64_t i = 0; i < n; ++i) totals[i] += lanes[i];
}

// Of rows [first, last): sums of x - shift and of its square; shift is the tensor's first row.
template <typename T>
void SumRows(const T* x, int64_t first, int64_t last, int64_t channels, double* sum,
             double* squares) {
  const DF d;
  std::fill(sum, sum + channels, 0.0);
  std::fill(squares, squares + channels, 0.0);
  for (int64_t run = first; run < last; run += kRun) {
    const int64_t end = std::min(last, run + kRun);
    ForVectors(channels, [&](int64_t i, int64_t n) MP_SIMD {
      const VF shift = LoadUpTo(d, x + i, n);
      VF s = hn::Zero(d), q = s;
      for (int64_t row = run; row < end; ++row) {
        const VF v = hn::Sub(LoadUpTo(d, x + row * channels + i, n), shift);
        s = hn::Add(s, v);
        q = hn::MulAdd(v, v, q);
      }
      AddTo(s, d, n, sum + i);
      AddTo(q, d, n, squares + i);
    });
  }
}

template <typename T>
HWY_INLINE VF Normalised(DF d, const T* x, const Coefficients& k, int64_t i, int64_t n) {
  return hn::MulAdd(LoadUpTo(d, x, n), LoadUpTo(d, k.scale + i, n), LoadUpTo(d, k.shift + i, n));
}

template <typename T>
void ForwardRows(const BatchNormForwardArgs<T>& args, const Coefficients& k, int64_t first,
                 int64_t last, int64_t channels) {
  const DF d;
  for (int64_t row = first; row < last; ++row) {
    const int64_t at = row * channels;
    ForVectors(channels, [&](int64_t i, int64_t n) MP_SIMD {
      VF y = Normalised(d, args.x + at + i, k, i, n);
      if (args.residual != nullptr) y = hn::Add(y, LoadUpTo(d, args.residual + at + i, n));
      if (args.relu) y = Relu(d, y);
      StoreUpTo(y, d, args.y + at + i, n);
    });
  }
}

// The gradient of what went into the ReLU.
template <typename T>
HWY_INLINE VF Gradient(DF d, const BatchNormBackwardArgs<T>& a, const Coefficients& k, int64_t at,
                       int64_t i, int64_t n) {
  VF g = LoadUpTo(d, a.dy + at + i, n);
  if (a.dy2 != nullptr) g = hn::Add(g, LoadUpTo(d, a.dy2 + at + i, n));
  if (!a.relu) return g;
  const VF y = a.y != nullptr ? LoadUpTo(d, a.y + at + i, n) : Normalised(d, a.x + at + i, k, i, n);
  return hn::IfThenElseZero(hn::Gt(y, hn::Zero(d)), g);
}

template <typename T>
void BackwardSumRows(const BatchNormBackwardArgs<T>& a, const Coefficients& k, int64_t first,
                     int64_t last, int64_t channels, T* out, double* sum, double* products) {
  const DF d;
  std::fill(sum, sum + channels, 0.0);
  std::fill(products, products + channels, 0.0);
  for (int64_t run = first; run < last; run += kRun) {
    const int64_t end = std::min(last, run + kRun);
    ForVectors(channels, [&](int64_t i, int64_t n) MP_SIMD {
      const VF mean = LoadUpTo(d, a.mean + i, n);
      const VF rstd = LoadUpTo(d, a.rstd + i, n);
      VF s = hn::Zero(d), q = s;
      for (int64_t row = run; row < end; ++row) {
        const int64_t at = row * channels;
        const VF g = Gradient(d, a, k, at, i, n);
        const VF xhat = hn::Mul(hn::Sub(LoadUpTo(d, a.x + at + i, n), mean), rstd);
        if (out != nullptr) StoreUpTo(g, d, out + at + i, n);
        s = hn::Add(s, g);
        q = hn::MulAdd(g, xhat, q);
      }
      AddTo(s, d, n, sum + i);
      AddTo(q, d, n, products + i);
    });
  }
}

template <typename T>
void BackwardRows(const BatchNormBackwardArgs<T>& a, const Coefficients& k, int64_t first,
                  int64_t last, int64_t channels, T* dx) {
  const DF d;
  for (int64_t row = first; row < last; ++row) {
    const int64_t at = row * channels;
    ForVectors(channels, [&](int64_t i, int64_t n) MP_SIMD {
      const VF g = Gradient(d, a, k, at, i, n);
      const VF x = LoadUpTo(d, a.x + at + i, n);
      const VF rest = hn::MulAdd(x, LoadUpTo(d, k.b + i, n), LoadUpTo(d, k.c + i, n));
      StoreUpTo(hn::MulAdd(g, LoadUpTo(d, k.a + i, n), rest), d, dx + at + i, n);
    });
  }
}

}  // namespace

// One name per element type: HWY_EXPORT takes no templates.
#define MP_BATCH_NORM_ROWS(suffix, T)                                                              \
  void SumRows##suffix(const T* x, int64_t first, int64_t last, int64_t channels, double* sum,     \
                       double* squares) {                                                          \
    SumRows(x, first, last, channels, sum, squares);                                               \
  }                                                                                                \
  void ForwardRows##suffix(const BatchNormForwardArgs<T>& args, const Coefficients& k,             \
                           int64_t first, int64_t last, int64_t channels) {                        \
    ForwardRows(args, k, first, last, channels);                                                   \
  }                                                                                                \
  void BackwardSumRows##suffix(const BatchNormBackwardArgs<T>& args, const Coefficients& k,        \
                               int64_t first, int64_t last, int64_t channels, T* out, double* sum, \
                               double* products) {                                                 \
    BackwardSumRows(args, k, first, last, channels, out, sum, products);                           \
  }                                                                                                \
  void BackwardRows##suffix(const BatchNormBackwardArgs<T>& args, const Coefficients& k,           \
                            int64_t first, int64_t last, int64_t channels, T* dx) {                \
    BackwardRows(args, k, first, last, channels, dx);                                              \
  }
MP_BATCH_NORM_ROWS(F32, float)
MP_BATCH_NORM_ROWS(Bf16, bf16)
#undef MP_BATCH_NORM_ROWS

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(SumRowsF32);
HWY_EXPORT(SumRowsBf16);
HWY_EXPORT(ForwardRowsF32);
HWY_EXPORT(ForwardRowsBf16);
HWY_EXPORT(BackwardSumRowsF32);
HWY_EXPORT(BackwardSumRowsBf16);
HWY_EXPORT(BackwardRowsF32);
HWY_EXPORT(BackwardRowsBf16);

// The F32 or Bf16 one by T.
#define MP_BY_TYPE(T, name)                        \
  [](auto... values) {                             \
    if constexpr (std::is_same_v<T, float>) {      \
      HWY_DYNAMIC_DISPATCH(name##F32)(values...);  \
    } else {                                       \
      HWY_DYNAMIC_DISPATCH(name##Bf16)(values...); \
    }                                              \
  }

namespace {

Coefficients CoefficientsAt(void* workspace, int64_t channels) {
  float* base = static_cast<float*>(workspace);
  const int64_t stride = PartialStride(channels);
  return {base, base + stride, base + 2 * stride, base + 3 * stride, base + 4 * stride};
}

template <typename T>
void SetScaleAndShift(const float* mean, const float* rstd, const T* gamma, const T* beta,
                      int64_t channels, const Coefficients& k) {
  for (int64_t c = 0; c < channels; ++c) {
    k.scale[c] = rstd[c] * ToFloat(gamma[c]);
    k.shift[c] = ToFloat(beta[c]) - mean[c] * k.scale[c];
  }
}

// Rows per thread at least: below this a fork costs more than it saves.
int64_t Grain(int64_t channels) { return std::max<int64_t>(1, 8192 / channels); }

// Each block's two sums per channel, behind the coefficients.
struct Partials {
  Partials(void* workspace, int64_t rows, int64_t channel_count)
      : blocks(rows),
        channels(channel_count),
        stride(PartialStride(channel_count)),
        data(reinterpret_cast<double*>(static_cast<float*>(workspace) +
                                       kBatchNormCoefficients * stride)) {}
  double* Sum(int64_t block) const { return data + 2 * block * stride; }
  double* Second(int64_t block) const { return Sum(block) + stride; }

  // The sums over all blocks, in block order, of channel c.
  std::pair<double, double> Total(int64_t c) const {
    double first = 0, second = 0;
    for (int64_t block = 0; block < blocks.count; ++block) {
      first += Sum(block)[c];
      second += Second(block)[c];
    }
    return {first, second};
  }

  RowBlocks blocks;
  int64_t channels;
  int64_t stride;
  double* data;
};

}  // namespace

template <typename T>
static void BatchNormSumsOf(const T* x, int64_t rows, int64_t channels, double* sums,
                            void* workspace) {
  const Partials partials(workspace, rows, channels);
  ParallelTasks(partials.blocks.count, [&](int64_t block, int) {
    MP_BY_TYPE(T, SumRows)
    (x, partials.blocks.First(block), partials.blocks.Last(block), channels, partials.Sum(block),
     partials.Second(block));
  });
  const auto count = static_cast<double>(rows);
  for (int64_t c = 0; c < channels; ++c) {
    const auto [sum, squares] = partials.Total(c);
    const double shift = ToFloat(x[c]);
    const double mean = shift + sum / count;
    sums[c] = count * mean;
    sums[channels + c] = squares - sum * sum / count + count * mean * mean;
  }
}

template <>
void BatchNormSums(const float* x, int64_t rows, int64_t channels, double* sums, void* workspace) {
  BatchNormSumsOf(x, rows, channels, sums, workspace);
}
template <>
void BatchNormSums(const bf16* x, int64_t rows, int64_t channels, double* sums, void* workspace) {
  BatchNormSumsOf(x, rows, channels, sums, workspace);
}

void BatchNormStatistics(const double* sums, int64_t count, int64_t channels, double epsilon,
                         float* mean, float* rstd) {
  for (int64_t c = 0; c < channels; ++c) {
    const double average = sums[c] / static_cast<double>(count);
    const double variance = sums[channels + c] / static_cast<double>(count) - average * average;
    mean[c] = static_cast<float>(average);
    // A variance of 0 may come out below it; one that is not finite stays so.
    rstd[c] = static_cast<float>(1 / std::sqrt((variance < 0 ? 0 : variance) + epsilon));
  }
}

void BatchNormUpdateRunning(const double* sums, int64_t count, int64_t channels, double momentum,
                            float* running_mean, float* running_variance) {
  const auto n = static_cast<double>(count);
  for (int64_t c = 0; c < channels; ++c) {
    const double mean = sums[c] / n;
    const double squares = std::max(sums[channels + c] - n * mean * mean, 0.0);
    const double variance = squares / std::max(n - 1, 1.0);
    if (!std::isfinite(mean) || !std::isfinite(sums[channels + c])) continue;
    running_mean[c] += static_cast<float>(momentum * (mean - running_mean[c]));
    running_variance[c] += static_cast<float>(momentum * (variance - running_variance[c]));
  }
}

template <typename T>
static void ForwardOf(const BatchNormForwardArgs<T>& args, int64_t rows, int64_t channels,
                      void* workspace) {
  const Coefficients k = CoefficientsAt(workspace, channels);
  SetScaleAndShift(args.mean, args.rstd, args.gamma, args.beta, channels, k);
  ParallelFor(0, rows, Grain(channels), [&](int64_t first, int64_t last) {
    MP_BY_TYPE(T, ForwardRows)(args, k, first, last, channels);
  });
}

template <>
void BatchNormForward(const BatchNormForwardArgs<float>& args, int64_t rows, int64_t channels,
                      void* workspace) {
  ForwardOf(args, rows, channels, workspace);
}
template <>
void BatchNormForward(const BatchNormForwardArgs<bf16>& args, int64_t rows, int64_t channels,
                      void* workspace) {
  ForwardOf(args, rows, channels, workspace);
}

template <typename T>
static void BackwardSumsOf(const BatchNormBackwardArgs<T>& args, int64_t rows, int64_t channels,
                           T* g, double* sums, float* dgamma, float* dbeta, bool accumulate,
                           void* workspace) {
  const Coefficients k = CoefficientsAt(workspace, channels);
  SetScaleAndShift(args.mean, args.rstd, args.gamma, args.beta, channels, k);
  const Partials partials(workspace, rows, channels);
  ParallelTasks(partials.blocks.count, [&](int64_t block, int) {
    MP_BY_TYPE(T, BackwardSumRows)
    (args, k, partials.blocks.First(block), partials.blocks.Last(block), channels, g,
     partials.Sum(block), partials.Second(block));
  });
  for (int64_t c = 0; c < channels; ++c) {
    const auto [sum, products] = partials.Total(c);
    sums[c] = sum;
    sums[channels + c] = products;
    dbeta[c] = static_cast<float>(sum) + (accumulate ? dbeta[c] : 0.0F);
    dgamma[c] = static_cast<float>(products) + (accumulate ? dgamma[c] : 0.0F);
  }
}

template <>
void BatchNormBackwardSums(const BatchNormBackwardArgs<float>& args, int64_t rows, int64_t channels,
                           float* g, double* sums, float* dgamma, float* dbeta, bool accumulate,
                           void* workspace) {
  BackwardSumsOf(args, rows, channels, g, sums, dgamma, dbeta, accumulate, workspace);
}
template <>
void BatchNormBackwardSums(const BatchNormBackwardArgs<bf16>& args, int64_t rows, int64_t channels,
                           bf16* g, double* sums, float* dgamma, float* dbeta, bool accumulate,
                           void* workspace) {
  BackwardSumsOf(args, rows, channels, g, sums, dgamma, dbeta, accumulate, workspace);
}

template <typename T>
static void BackwardOf(const BatchNormBackwardArgs<T>& args, const double* sums, int64_t count,
                       int64_t rows, int64_t channels, T* dx, void* workspace) {
  const Coefficients k = CoefficientsAt(workspace, channels);
  SetScaleAndShift(args.mean, args.rstd, args.gamma, args.beta, channels, k);
  for (int64_t c = 0; c < channels; ++c) {
    const double a = static_cast<double>(args.rstd[c]) * ToFloat(args.gamma[c]);
    const double b = -a * args.rstd[c] * sums[channels + c] / static_cast<double>(count);
    k.a[c] = static_cast<float>(a);
    k.b[c] = static_cast<float>(b);
    k.c[c] = static_cast<float>(-a * sums[c] / static_cast<double>(count) - b * args.mean[c]);
  }
  ParallelFor(0, rows, Grain(channels), [&](int64_t first, int64_t last) {
    MP_BY_TYPE(T, BackwardRows)(args, k, first, last, channels, dx);
  });
}

template <>
void BatchNormBackward(const BatchNormBackwardArgs<float>& args, const double* sums, int64_t count,
                       int64_t rows, int64_t channels, float* dx, void* workspace) {
  BackwardOf(args, sums, count, rows, channels, dx, workspace);
}
template <>
void BatchNormBackward(const BatchNormBackwardArgs<bf16>& args, const double* sums, int64_t count,
                       int64_t rows, int64_t channels, bf16* dx, void* workspace) {
  BackwardOf(args, sums, count, rows, channels, dx, workspace);
}

#undef MP_BY_TYPE

}  // namespace milepost::kernels
#endif  // HWY_ONCE
