#include "engine/ops/experts/experts_cpu_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/experts/experts_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

// The sum of a row's `per_token` rows, times their weights where there are some.
template <typename T>
void CombineRow(const RoutedRows& s, const T* y, const float* weights, const int32_t* slots,
                T* out) {
  const DF d;
  ForVectors(s.width, [&](int64_t i, int64_t n) MP_SIMD {
    VF sum = hn::Zero(d);
    for (int64_t k = 0; k < s.per_token; ++k) {
      const VF row = LoadUpTo(d, y + slots[k] * s.width + i, n);
      sum = weights == nullptr ? hn::Add(sum, row) : hn::MulAdd(hn::Set(d, weights[k]), row, sum);
    }
    StoreUpTo(sum, d, out + i, n);
  });
}

template <typename T>
void CombineRowBackward(const RoutedRows& s, const T* y, const float* weights, const int32_t* slots,
                        const T* dout, T* dy, float* dweights) {
  const DF d;
  for (int64_t k = 0; k < s.per_token; ++k) {
    const int64_t at = slots[k] * s.width;
    const VF weight = hn::Set(d, weights[k]);
    VF sum = hn::Zero(d);
    ForVectors(s.width, [&](int64_t i, int64_t n) MP_SIMD {
      const VF gradient = LoadUpTo(d, dout + i, n);
      sum = hn::MulAdd(gradient, LoadUpTo(d, y + at + i, n), sum);
      StoreUpTo(hn::Mul(weight, gradient), d, dy + at + i, n);
    });
    dweights[k] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

}  // namespace

// One name per element type: HWY_EXPORT takes no templates.
void CombineRowF32(const RoutedRows& s, const float* y, const float* weights, const int32_t* slots,
                   float* out) {
  CombineRow(s, y, weights, slots, out);
}
void CombineRowBf16(const RoutedRows& s, const bf16* y, const float* weights, const int32_t* slots,
                    bf16* out) {
  CombineRow(s, y, weights, slots, out);
}
void CombineRowF16(const RoutedRows& s, const f16* y, const float* weights, const int32_t* slots,
                   f16* out) {
  CombineRow(s, y, weights, slots, out);
}
void CombineRowBackwardF32(const RoutedRows& s, const float* y, const float* weights,
                           const int32_t* slots, const float* dout, float* dy, float* dweights) {
  CombineRowBackward(s, y, weights, slots, dout, dy, dweights);
}
void CombineRowBackwardBf16(const RoutedRows& s, const bf16* y, const float* weights,
                            const int32_t* slots, const bf16* dout, bf16* dy, float* dweights) {
  CombineRowBackward(s, y, weights, slots, dout, dy, dweights);
}
void CombineRowBackwardF16(const RoutedRows& s, const f16* y, const float* weights,
                           const int32_t* slots, const f16* dout, f16* dy, float* dweights) {
  CombineRowBackward(s, y, weights, slots, dout, dy, dweights);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(CombineRowF32);
HWY_EXPORT(CombineRowBf16);
HWY_EXPORT(CombineRowF16);
HWY_EXPORT(CombineRowBackwardF32);
HWY_EXPORT(CombineRowBackwardBf16);
HWY_EXPORT(CombineRowBackwardF16);

namespace {

void CombineOne(const RoutedRows& s, const float* y, const float* weights, const int32_t* slots,
                float* out) {
  HWY_DYNAMIC_DISPATCH(CombineRowF32)(s, y, weights, slots, out);
}
void CombineOne(const RoutedRows& s, const bf16* y, const float* weights, const int32_t* slots,
                bf16* out) {
  HWY_DYNAMIC_DISPATCH(CombineRowBf16)(s, y, weights, slots, out);
}
void CombineOne(const RoutedRows& s, const f16* y, const float* weights, const int32_t* slots,
                f16* out) {
  HWY_DYNAMIC_DISPATCH(CombineRowF16)(s, y, weights, slots, out);
}
void CombineOneBackward(const RoutedRows& s, const float* y, const float* weights,
                        const int32_t* slots, const float* dout, float* dy, float* dweights) {
  HWY_DYNAMIC_DISPATCH(CombineRowBackwardF32)(s, y, weights, slots, dout, dy, dweights);
}
void CombineOneBackward(const RoutedRows& s, const bf16* y, const float* weights,
                        const int32_t* slots, const bf16* dout, bf16* dy, float* dweights) {
  HWY_DYNAMIC_DISPATCH(CombineRowBackwardBf16)(s, y, weights, slots, dout, dy, dweights);
}
void CombineOneBackward(const RoutedRows& s, const f16* y, const float* weights,
                        const int32_t* slots, const f16* dout, f16* dy, float* dweights) {
  HWY_DYNAMIC_DISPATCH(CombineRowBackwardF16)(s, y, weights, slots, dout, dy, dweights);
}

// Numbers per thread at least: below this a fork costs more than it saves.
constexpr int64_t kNumbersPerThread = 8192;

// fn(row) of each.
template <typename Fn>
void ForRoutedRows(int64_t rows, int64_t numbers, const Fn& fn) {
  ParallelFor(0, rows, std::max<int64_t>(1, kNumbersPerThread / numbers),
              [&](int64_t first, int64_t last) {
                for (int64_t row = first; row < last; ++row) fn(row);
              });
}

struct Softmax {
  float probabilities[kMostExperts];
  float log_sum_exp = 0;
};

template <typename T>
void MakeSoftmax(const T* logits, int64_t experts, Softmax* to) {
  float highest = ToFloat(logits[0]);
  for (int64_t e = 1; e < experts; ++e) highest = std::max(highest, ToFloat(logits[e]));
  float sum = 0;
  for (int64_t e = 0; e < experts; ++e) {
    to->probabilities[e] = std::exp(ToFloat(logits[e]) - highest);
    sum += to->probabilities[e];
  }
  for (int64_t e = 0; e < experts; ++e) to->probabilities[e] /= sum;
  to->log_sum_exp = highest + std::log(sum);
}

template <typename T>
float Rank(T logit) {
  const float value = ToFloat(logit);
  return std::isnan(value) ? -std::numeric_limits<float>::infinity() : value;
}

// The experts behind each other by their logits: each pick is the first behind the one before it.
template <typename T>
void Pick(const T* logits, const ExpertRouting& r, int32_t* chosen) {
  float before = std::numeric_limits<float>::infinity();
  int64_t last = -1;
  for (int64_t k = 0; k < r.per_token; ++k) {
    int64_t best = -1;
    for (int64_t e = 0; e < r.experts; ++e) {
      const float value = Rank(logits[e]);
      const bool left = value < before || (value == before && e > last);
      if (left && (best < 0 || value > Rank(logits[best]))) best = e;
    }
    before = Rank(logits[best]);
    last = best;
    chosen[k] = static_cast<int32_t>(best);
  }
}

template <typename T>
void RouteRow(const T* logits, const ExpertRouting& r, float* weights, int32_t* chosen) {
  Softmax softmax;
  MakeSoftmax(logits, r.experts, &softmax);
  Pick(logits, r, chosen);
  float sum = 0;
  for (int64_t k = 0; k < r.per_token; ++k) {
    weights[k] = softmax.probabilities[chosen[k]];
    sum += weights[k];
  }
  for (int64_t k = 0; r.normalize && k < r.per_token; ++k) weights[k] /= sum;
}

// By expert, and of one expert in their order.
void Sort(const ExpertRouting& r, int64_t counted, const int32_t* chosen, int32_t* slots,
          int32_t* offsets) {
  std::fill_n(offsets, r.experts + 1, 0);
  const int64_t picks = counted * r.per_token;
  for (int64_t i = 0; i < picks; ++i) ++offsets[chosen[i] + 1];
  for (int64_t e = 0; e < r.experts; ++e) offsets[e + 1] += offsets[e];
  int32_t next[kMostExperts];
  std::copy_n(offsets, r.experts, next);
  for (int64_t i = 0; i < picks; ++i) slots[i] = next[chosen[i]]++;
  std::iota(slots + picks, slots + r.rows * r.per_token, static_cast<int32_t>(picks));
}

// With p the softmax and S the sum of the chosen ones, d weight / d p is (1 - weight) / S or 1;
// d p(i) / d logit(j) is p(i) (1[i = j] - p(j)); d log sum exp / d logit is p.
template <typename T>
void RouteRowBackward(const T* logits, const ExpertRouting& r, const float* weights,
                      const int32_t* chosen, const float* dweights, const float* slopes,
                      T* dlogits) {
  Softmax softmax;
  MakeSoftmax(logits, r.experts, &softmax);
  const float* p = softmax.probabilities;
  float gradients[kMostExperts];
  for (int64_t e = 0; e < r.experts; ++e) gradients[e] = slopes == nullptr ? 0 : slopes[e];
  float sum = 1, mean = 0;  // of the chosen ones' probabilities; of their weights' gradients
  if (r.normalize) {
    sum = 0;
    for (int64_t k = 0; k < r.per_token; ++k) {
      sum += p[chosen[k]];
      mean += dweights[k] * weights[k];
    }
  }
  for (int64_t k = 0; k < r.per_token; ++k) gradients[chosen[k]] += (dweights[k] - mean) / sum;
  float dot = 0;
  for (int64_t e = 0; e < r.experts; ++e) dot += p[e] * gradients[e];
  const float square = slopes == nullptr ? 0 : 2 * slopes[r.experts] * softmax.log_sum_exp;
  for (int64_t e = 0; e < r.experts; ++e) {
    dlogits[e] = FromFloat<T>(p[e] * (gradients[e] - dot + square));
  }
}

}  // namespace

template <typename T>
void RouteExperts(const ExpertRouting& routing, int64_t counted, const T* logits, float* weights,
                  int32_t* chosen, int32_t* slots, int32_t* offsets) {
  ForRoutedRows(counted, routing.experts * routing.per_token, [&](int64_t row) {
    RouteRow(logits + row * routing.experts, routing, weights + row * routing.per_token,
             chosen + row * routing.per_token);
  });
  Sort(routing, counted, chosen, slots, offsets);
}

template <typename T>
void RouteExpertsBackward(const ExpertRouting& routing, const T* logits, const float* weights,
                          const int32_t* chosen, const float* dweights, const float* slopes,
                          T* dlogits) {
  ForRoutedRows(routing.rows, routing.experts, [&](int64_t row) {
    const int64_t at = row * routing.experts, picks = row * routing.per_token;
    RouteRowBackward(logits + at, routing, weights + picks, chosen + picks, dweights + picks,
                     slopes, dlogits + at);
  });
}

template <typename T>
void DispatchRows(const RoutedRows& shape, const T* x, const int32_t* slots, T* y) {
  ForRoutedRows(shape.rows, shape.per_token * shape.width, [&](int64_t row) {
    for (int64_t k = 0; k < shape.per_token; ++k) {
      std::memcpy(static_cast<void*>(y + slots[row * shape.per_token + k] * shape.width),
                  x + row * shape.width, static_cast<size_t>(shape.width) * sizeof(T));
    }
  });
}

template <typename T>
void CombineRows(const RoutedRows& shape, const T* y, const float* weights, const int32_t* slots,
                 T* out) {
  ForRoutedRows(shape.rows, shape.per_token * shape.width, [&](int64_t row) {
    const int64_t picks = row * shape.per_token;
    CombineOne(shape, y, weights == nullptr ? nullptr : weights + picks, slots + picks,
               out + row * shape.width);
  });
}

template <typename T>
void CombineRowsBackward(const RoutedRows& shape, const T* y, const float* weights,
                         const int32_t* slots, const T* dout, T* dy, float* dweights) {
  ForRoutedRows(shape.rows, shape.per_token * shape.width, [&](int64_t row) {
    const int64_t picks = row * shape.per_token;
    CombineOneBackward(shape, y, weights + picks, slots + picks, dout + row * shape.width, dy,
                       dweights + picks);
  });
}

void CountRows(const ExpertRouting& routing, const int32_t* offsets, const float* before,
               float* counts) {
  for (int64_t e = 0; e <= routing.experts; ++e) {
    const int64_t own = e < routing.experts ? offsets[e + 1] - offsets[e] : routing.rows;
    counts[e] = (before == nullptr ? 0.0F : before[e]) + static_cast<float>(own);
  }
}

#define MP_INSTANTIATE(T)                                                                          \
  template void RouteExperts(const ExpertRouting&, int64_t, const T*, float*, int32_t*, int32_t*,  \
                             int32_t*);                                                            \
  template void RouteExpertsBackward(const ExpertRouting&, const T*, const float*, const int32_t*, \
                                     const float*, const float*, T*);                              \
  template void DispatchRows(const RoutedRows&, const T*, const int32_t*, T*);                     \
  template void CombineRows(const RoutedRows&, const T*, const float*, const int32_t*, T*);        \
  template void CombineRowsBackward(const RoutedRows&, const T*, const float*, const int32_t*,     \
                                    const T*, T*, float*)
MP_INSTANTIATE(float);
MP_INSTANTIATE(bf16);
MP_INSTANTIATE(f16);
#undef MP_INSTANTIATE

}  // namespace milepost::kernels
#endif  // HWY_ONCE
