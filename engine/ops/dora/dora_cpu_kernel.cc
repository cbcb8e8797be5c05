#include "engine/ops/dora/dora_cpu_kernel.h"

#include <algorithm>
#include <cmath>

#include "engine/kernels/cpu/column_sum.h"
#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/dora/dora_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

template <typename A, typename B>
HWY_INLINE float DotOf(const A* a, const B* b, int64_t n) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  VF even = hn::Zero(d), odd = even;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    even = hn::MulAdd(LoadF(d, a + i), LoadF(d, b + i), even);
    odd = hn::MulAdd(LoadF(d, a + i + lanes), LoadF(d, b + i + lanes), odd);
  }
  for (; i < n; i += lanes) {
    const int64_t count = std::min(lanes, n - i);
    even = hn::MulAdd(LoadUpTo(d, a + i, count), LoadUpTo(d, b + i, count), even);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
}

// Of a weight [in, out], whose outputs are columns: to norms[0, first) and on.
template <typename T>
HWY_INLINE void SquareColumns(const DoraNormsArgs<T>& a, int64_t first, int64_t last) {
  const DF d;
  std::fill(a.norms + first, a.norms + last, 0.0F);
  for (int64_t row = 0; row < a.in; ++row) {
    const T* w = a.weight + row * a.out + first;
    ForVectors(last - first, [&](int64_t i, int64_t n) MP_SIMD {
      const VF value = LoadUpTo(d, w + i, n);
      const VF sum = hn::MulAdd(value, value, LoadUpTo(d, a.norms + first + i, n));
      StoreUpTo(sum, d, a.norms + first + i, n);
    });
  }
}

template <typename T>
HWY_INLINE void NormsOf(const DoraNormsArgs<T>& a, int64_t first, int64_t last) {
  if (!a.transposed) SquareColumns(a, first, last);
  for (int64_t o = first; o < last; ++o) {
    const T* w = a.weight + o * a.in;
    const float squares = a.transposed ? DotOf(w, w, a.in) : a.norms[o];
    const T* up = a.up + o * a.rank;
    float change = 0;
    for (int64_t j = 0; j < a.rank; ++j) {
      const float with_itself = DotOf(up, a.gram + j * a.rank, a.rank);
      const float both = 2 * a.products[o * a.rank + j] + a.scale * with_itself;
      change += a.scale * ToFloat(up[j]) * both;
    }
    a.norms[o] = std::sqrt(squares);
    a.norms[a.out + o] = std::sqrt(std::max(0.0F, squares + change));
  }
}

template <typename T>
HWY_INLINE void ForwardRows(const DoraForwardArgs<T>& a, const float* factors, const float* biases,
                            int64_t first, int64_t last) {
  const DF d;
  for (int64_t row = first; row < last; ++row) {
    const int64_t at = row * a.width;
    ForVectors(a.width, [&](int64_t i, int64_t n) MP_SIMD {
      const VF y = hn::MulAdd(LoadUpTo(d, a.v + at + i, n), LoadUpTo(d, factors + i, n),
                              LoadUpTo(d, biases + i, n));
      StoreUpTo(y, d, a.y + at + i, n);
    });
  }
}

// with_v += dy v and alone += dy, over rows [first, last).
template <typename T>
HWY_INLINE void BackwardRows(const DoraBackwardArgs<T>& a, const float* factors, int64_t first,
                             int64_t last, float* with_v, float* alone) {
  const DF d;
  std::fill(with_v, with_v + a.width, 0.0F);
  std::fill(alone, alone + a.width, 0.0F);
  for (int64_t row = first; row < last; ++row) {
    const int64_t at = row * a.width;
    ForVectors(a.width, [&](int64_t i, int64_t n) MP_SIMD {
      const VF dy = LoadUpTo(d, a.dy + at + i, n);
      const VF product = hn::MulAdd(dy, LoadUpTo(d, a.v + at + i, n), LoadUpTo(d, with_v + i, n));
      StoreUpTo(product, d, with_v + i, n);
      StoreUpTo(hn::Add(dy, LoadUpTo(d, alone + i, n)), d, alone + i, n);
      StoreUpTo(hn::Mul(dy, LoadUpTo(d, factors + i, n)), d, a.dv + at + i, n);
    });
  }
}

}  // namespace

#define MP_DORA_ROWS(name, T)                                                                \
  void Norms##name(const DoraNormsArgs<T>& a, int64_t first, int64_t last) {                 \
    NormsOf(a, first, last);                                                                 \
  }                                                                                          \
  void Forward##name(const DoraForwardArgs<T>& a, const float* factors, const float* biases, \
                     int64_t first, int64_t last) {                                          \
    ForwardRows(a, factors, biases, first, last);                                            \
  }                                                                                          \
  void Backward##name(const DoraBackwardArgs<T>& a, const float* factors, int64_t first,     \
                      int64_t last, float* with_v, float* alone) {                           \
    BackwardRows(a, factors, first, last, with_v, alone);                                    \
  }
MP_DORA_ROWS(DoraF32, float)
MP_DORA_ROWS(DoraBf16, bf16)
MP_DORA_ROWS(DoraF16, f16)
#undef MP_DORA_ROWS

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {
namespace {

// By column: what it is multiplied by, and, where `biases` are wanted, what is added.
template <typename T>
void FillDoraColumns(const DoraArgs<T>& a, float* factors, float* biases) {
  for (int i = 0; i < a.parts; ++i) {
    const DoraColumns<T>& part = a.part[i];
    const int64_t columns = part.end - part.column;
    for (int64_t c = 0; c < columns; ++c) {
      factors[part.column + c] =
          part.norms == nullptr
              ? 1.0F
              : DoraFactor(part.norms[c], ToFloat(part.change[c]), part.norms[columns + c]);
      if (biases == nullptr) continue;
      biases[part.column + c] = part.bias == nullptr ? 0.0F : ToFloat(part.bias[c]);
    }
  }
}

template <typename T>
void PutDoraGradients(const DoraBackwardArgs<T>& a, const float* with_v, const float* alone) {
  for (int i = 0; i < a.parts; ++i) {
    const DoraColumns<T>& part = a.part[i];
    const DoraGradients& to = a.gradients[i];
    const int64_t columns = part.end - part.column;
    for (int64_t c = 0; to.change != nullptr && c < columns; ++c) {
      const float share = DoraShare(with_v[part.column + c], part.norms[columns + c]);
      to.change[c] = to.adds_change ? to.change[c] + share : share;
    }
    for (int64_t c = 0; to.bias != nullptr && c < columns; ++c) {
      const float sum = alone[part.column + c];
      to.bias[c] = to.adds_bias ? to.bias[c] + sum : sum;
    }
  }
}

// Floats of a workspace, by columns: arrays of `width`, one behind the other.
struct DoraColumnArrays {
  float* At(int i) const {
    return reinterpret_cast<float*>(static_cast<char*>(workspace) +
                                    i * DeviceAligned(width * static_cast<int64_t>(sizeof(float))));
  }
  void* workspace;
  int64_t width;
};

template <typename T, typename Rows>
void DoraNormsWith(Rows rows, const DoraNormsArgs<T>& args) {
  const int64_t grain = args.transposed ? std::max<int64_t>(1, 8192 / args.in) : 64;
  ParallelFor(0, args.out, grain, [&](int64_t first, int64_t last) { rows(args, first, last); });
}

template <typename T, typename Rows>
void DoraForwardWith(Rows rows, const DoraForwardArgs<T>& args, void* workspace) {
  const DoraColumnArrays arrays = {workspace, args.width};
  FillDoraColumns<T>(args, arrays.At(0), arrays.At(1));
  const int64_t grain = std::max<int64_t>(1, 8192 / args.width);
  ParallelFor(0, args.rows, grain, [&](int64_t first, int64_t last) {
    rows(args, arrays.At(0), arrays.At(1), first, last);
  });
}

template <typename T, typename Rows>
void DoraBackwardWith(Rows rows, const DoraBackwardArgs<T>& args, void* workspace) {
  const DoraColumnArrays arrays = {workspace, args.width};
  float* const with_v = arrays.At(1);
  float* const alone = arrays.At(2);
  float* const partials = arrays.At(3);
  FillDoraColumns<T>(args, arrays.At(0), nullptr);
  const RowBlocks blocks(args.rows);
  const int64_t stride = PartialStride(args.width);
  ParallelTasks(blocks.count, [&](int64_t block, int) {
    float* const of_block = partials + block * stride;
    rows(args, arrays.At(0), blocks.First(block), blocks.Last(block), of_block,
         of_block + blocks.count * stride);
  });
  AddPartials(partials, blocks.count, stride, args.width, false, with_v);
  AddPartials(partials + blocks.count * stride, blocks.count, stride, args.width, false, alone);
  PutDoraGradients<T>(args, with_v, alone);
}

}  // namespace

#define MP_DORA(name, T)                                                        \
  HWY_EXPORT(Norms##name);                                                      \
  HWY_EXPORT(Forward##name);                                                    \
  HWY_EXPORT(Backward##name);                                                   \
  template <>                                                                   \
  void DoraNorms(const DoraNormsArgs<T>& args) {                                \
    DoraNormsWith<T>(HWY_DYNAMIC_DISPATCH(Norms##name), args);                  \
  }                                                                             \
  template <>                                                                   \
  void DoraForward(const DoraForwardArgs<T>& args, void* workspace) {           \
    DoraForwardWith<T>(HWY_DYNAMIC_DISPATCH(Forward##name), args, workspace);   \
  }                                                                             \
  template <>                                                                   \
  void DoraBackward(const DoraBackwardArgs<T>& args, void* workspace) {         \
    DoraBackwardWith<T>(HWY_DYNAMIC_DISPATCH(Backward##name), args, workspace); \
  }
MP_DORA(DoraF32, float)
MP_DORA(DoraBf16, bf16)
MP_DORA(DoraF16, f16)
#undef MP_DORA

}  // namespace milepost::kernels
#endif  // HWY_ONCE
