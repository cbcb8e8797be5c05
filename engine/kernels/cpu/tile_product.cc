#include "engine/kernels/cpu/tile_product.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/tile_product.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

#ifndef MILEPOST_ENGINE_KERNELS_CPU_TILE_PRODUCT_DOT_
#define MILEPOST_ENGINE_KERNELS_CPU_TILE_PRODUCT_DOT_  // once, not once per target
namespace milepost::kernels {
namespace {

#if defined(__x86_64__)
// Highway 1.0.3 has no target with the bf16 dot product, so this one is written with intrinsics.
#define MP_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

template <int kRows, int kVectors>
MP_AVX512_BF16 inline __attribute__((always_inline)) void DotBlock(const TileOperands& o,
                                                                   int64_t row, int64_t column,
                                                                   int64_t steps, bool accumulate) {
  const int32_t* a = static_cast<const int32_t*>(o.a) + row * o.a_row;
  const int32_t* b = static_cast<const int32_t*>(o.b) + column;
  float* c = o.c + row * o.c_row + column;
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      sum[i][j] = accumulate ? _mm512_loadu_ps(c + i * o.c_row + j * 16) : _mm512_setzero_ps();
    }
  }
  for (int64_t s = 0; s < steps; ++s) {
    __m512i b_pairs[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) b_pairs[j] = _mm512_loadu_si512(b + s * o.b_step + j * 16);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const __m512i a_pair = _mm512_set1_epi32(a[i * o.a_row + s * o.a_step]);
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) {
        sum[i][j] = _mm512_dpbf16_ps(sum[i][j], reinterpret_cast<__m512bh>(a_pair),
                                     reinterpret_cast<__m512bh>(b_pairs[j]));
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) _mm512_storeu_ps(c + i * o.c_row + j * 16, sum[i][j]);
  }
}

MP_AVX512_BF16 void DotProductBf16(const TileOperands& o, int64_t m, int64_t n, int64_t steps,
                                   bool accumulate) {
  for (int64_t row = 0; row < m; row += 4) {
    int64_t column = 0;
    for (; column + 64 <= n; column += 64) DotBlock<4, 4>(o, row, column, steps, accumulate);
    for (; column < n; column += 16) DotBlock<4, 1>(o, row, column, steps, accumulate);
  }
}
#endif

}  // namespace
}  // namespace milepost::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

constexpr int kRows = 4;  // of C in registers

struct FloatStep {
  static HWY_INLINE VF Multiply(DF d, const float* a, VF b, VF sum) {
    return hn::MulAdd(hn::Set(d, *a), b, sum);
  }
};

// Two bf16 widened: the low half by a shift, the high half by clearing what is below it.
struct Bf16Step {
  static HWY_INLINE VF Multiply(DF d, const float* a, VF b, VF sum) {
    const DU32 du;
    uint32_t pair;
    std::memcpy(&pair, a, sizeof(pair));
    const auto high = hn::Set(du, 0xffff0000u);
    const VU32 a_pair = hn::Set(du, pair);
    const VU32 b_pair = hn::BitCast(du, b);
    sum = hn::MulAdd(hn::BitCast(d, hn::ShiftLeft<16>(a_pair)),
                     hn::BitCast(d, hn::ShiftLeft<16>(b_pair)), sum);
    return hn::MulAdd(hn::BitCast(d, hn::And(a_pair, high)), hn::BitCast(d, hn::And(b_pair, high)),
                      sum);
  }
};

// kRows rows by kVectors vectors of C from column `column` on.
template <typename Step, int kVectors>
HWY_INLINE void Block(const TileOperands& o, int64_t row, int64_t column, int64_t steps,
                      bool accumulate) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  const float* a = static_cast<const float*>(o.a) + row * o.a_row;
  const float* b = static_cast<const float*>(o.b) + column;
  float* c = o.c + row * o.c_row + column;
  VF sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      sum[i][j] = accumulate ? hn::LoadU(d, c + i * o.c_row + j * lanes) : hn::Zero(d);
    }
  }
  for (int64_t s = 0; s < steps; ++s) {
    VF b_vector[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) b_vector[j] = hn::LoadU(d, b + s * o.b_step + j * lanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) {
        sum[i][j] = Step::Multiply(d, a + i * o.a_row + s * o.a_step, b_vector[j], sum[i][j]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) hn::StoreU(sum[i][j], d, c + i * o.c_row + j * lanes);
  }
}

template <typename Step>
void Product(const TileOperands& o, int64_t m, int64_t n, int64_t steps, bool accumulate) {
  // AVX-512 has 32 registers, AVX2 16.
  constexpr int kVectors = HWY_MAX_BYTES >= 64 ? 4 : 2;
  const int64_t lanes = hn::Lanes(DF());
  for (int64_t row = 0; row < m; row += kRows) {
    int64_t column = 0;
    for (; column + kVectors * lanes <= n; column += kVectors * lanes) {
      Block<Step, kVectors>(o, row, column, steps, accumulate);
    }
    for (; column < n; column += lanes) Block<Step, 1>(o, row, column, steps, accumulate);
  }
}

}  // namespace

TileProduct F32Product() { return &Product<FloatStep>; }
TileProduct Bf16Product([[maybe_unused]] bool dot) {
#if HWY_TARGET == HWY_AVX3
  if (dot && __builtin_cpu_supports("avx512bf16")) return &DotProductBf16;
#endif
  return &Product<Bf16Step>;
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(F32Product);
HWY_EXPORT(Bf16Product);

TileProduct ChooseTileProduct(DType type, bool bf16_dot) {
  return type == DType::kF32 ? HWY_DYNAMIC_DISPATCH(F32Product)()
                             : HWY_DYNAMIC_DISPATCH(Bf16Product)(bf16_dot);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
