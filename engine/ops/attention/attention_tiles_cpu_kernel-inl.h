// Packing for attention's tile products, per SIMD target. Include after hwy/foreach_target.h.
//
// Everything is counted in 4-byte words (see tile_product.h): kPair<T> elements of T make one.
// Queries and keys come in blocks of kBlock rows; rows past the sequence's end are packed as zeros.

#if defined(MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_TILES_CPU_KERNEL_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_TILES_CPU_KERNEL_INL_H_
#undef MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_TILES_CPU_KERNEL_INL_H_
#else
#define MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_TILES_CPU_KERNEL_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "engine/kernels/cpu/simd-inl.h"
#include "engine/kernels/cpu/transpose-inl.h"
#include "engine/ops/attention/attention_bounds_cpu_kernel.h"
#include "engine/ops/attention/attention_layout_contract.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {

// `count` is a multiple of 4. A row is too short for the call that memcpy would be.
HWY_INLINE void CopyWords(const uint32_t* from, int64_t count, uint32_t* to) {
#if HWY_TARGET == HWY_SCALAR
  std::memcpy(to, from, count * sizeof(uint32_t));
#else
  const DU32 wide;
  const hn::FixedTag<uint32_t, 4> d;
  const int64_t lanes = hn::Lanes(wide);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(hn::LoadU(wide, from + i), wide, to + i);
  for (; i < count; i += 4) hn::StoreU(hn::LoadU(d, from + i), d, to + i);
#endif
}

// to[rows, width] = from's first `valid` rows, then zeros.
template <typename T>
HWY_INLINE void CopyRows(const T* from, int64_t from_row, int64_t valid, int64_t rows,
                         int64_t width, T* to) {
  for (int64_t i = 0; i < valid; ++i) {
    CopyWords(reinterpret_cast<const uint32_t*>(from + i * from_row), width / kPair<T>,
              reinterpret_cast<uint32_t*>(to + i * width));
  }
  std::memset(static_cast<void*>(to + valid * width), 0, (rows - valid) * width * sizeof(T));
}

HWY_INLINE void CopyRows(const f16* from, int64_t from_row, int64_t valid, int64_t rows,
                         int64_t width, float* to) {
  const DF d;
  for (int64_t i = 0; i < valid; ++i) {
    ForVectors(width, [&](int64_t j, int64_t n) MP_SIMD {
      StoreUpTo(LoadUpTo(d, from + i * from_row + j, n), d, to + i * width + j, n);
    });
  }
  std::memset(to + valid * width, 0, (rows - valid) * width * sizeof(float));
}

// Words that pair rows i and i + 1: word (i / kPair, j) of to[rows / kPair, to_width] holds column
// j of them. `from` is [rows, width]; columns from width to to_width become 0. For float: a copy.
HWY_INLINE void PairRows(const float* from, int64_t rows, int64_t width, int64_t to_width,
                         float* to) {
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(to + i * to_width, from + i * width, width * sizeof(float));
    std::memset(to + i * to_width + width, 0, (to_width - width) * sizeof(float));
  }
}
HWY_INLINE void PairRows(const bf16* from, int64_t rows, int64_t width, int64_t to_width,
                         bf16* to) {
  for (int64_t i = 0; i < rows; i += 2) {
    const uint16_t* even = reinterpret_cast<const uint16_t*>(from + i * width);
    const uint16_t* odd = even + width;
    uint16_t* out = reinterpret_cast<uint16_t*>(to + i * to_width);
    int64_t j = 0;
#if HWY_TARGET != HWY_SCALAR
    const hn::FixedTag<uint16_t, 8> d;
    for (; j < width; j += 8) {  // head_dim is a multiple of 8
      const auto a = hn::LoadU(d, even + j), b = hn::LoadU(d, odd + j);
      hn::StoreU(hn::InterleaveLower(d, a, b), d, out + 2 * j);
      hn::StoreU(hn::InterleaveUpper(d, a, b), d, out + 2 * j + 8);
    }
#endif
    for (; j < width; ++j) {
      out[2 * j] = even[j];
      out[2 * j + 1] = odd[j];
    }
    std::memset(out + 2 * width, 0, 2 * (to_width - width) * sizeof(uint16_t));
  }
}

// Two vectors of fp32 as words of bf16 pairs, rounded to nearest (ties away: they do not matter
// here).
HWY_INLINE VU32 PairWords(VF even, VF odd) {
  const DU32 du;
  const auto half = hn::Set(du, 0x8000u);
  const auto low = hn::ShiftRight<16>(hn::Add(hn::BitCast(du, even), half));
  const auto high = hn::And(hn::Add(hn::BitCast(du, odd), half), hn::Set(du, 0xffff0000u));
  return hn::Or(low, high);
}

// Sets the scores of keys outside their query's bounds to -inf, in a block scores[key][query] whose
// first key is `first`.
HWY_INLINE void MaskKeys(const QueryBounds& bounds, int64_t first, float* scores) {
  const DF d;
  const DI32 di;
  const VF none = hn::Set(d, -HUGE_VALF);
  for (int64_t q = 0; q < kBlock; q += hn::Lanes(d)) {
    const auto begin = hn::Load(di, bounds.begin + q);
    const auto end = hn::Load(di, bounds.end + q);
    for (int64_t key = 0; key < kBlock; ++key) {
      const auto at = hn::Set(di, static_cast<int32_t>(first + key));
      const auto hidden = hn::Or(hn::Lt(at, begin), hn::Not(hn::Lt(at, end)));
      float* score = scores + key * kBlock + q;
      hn::StoreU(hn::IfThenElse(hn::RebindMask(d, hidden), none, hn::LoadU(d, score)), d, score);
    }
  }
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_TILES_CPU_KERNEL_INL_H_
