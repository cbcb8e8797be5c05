// A transpose of 4-byte words, per SIMD target. Include after hwy/foreach_target.h.

#if defined(MILEPOST_ENGINE_KERNELS_CPU_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILEPOST_ENGINE_KERNELS_CPU_TRANSPOSE_INL_H_
#undef MILEPOST_ENGINE_KERNELS_CPU_TRANSPOSE_INL_H_
#else
#define MILEPOST_ENGINE_KERNELS_CPU_TRANSPOSE_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// to[j * to_row + i] = from[i * from_row + j] for 4-byte words; rows and columns are multiples
// of 4.
HWY_INLINE void TransposeWords(const uint32_t* from, int64_t from_row, int64_t rows,
                               int64_t columns, uint32_t* to, int64_t to_row) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) to[j * to_row + i] = from[i * from_row + j];
  }
#else
  const hn::FixedTag<uint32_t, 4> d;
  const hn::FixedTag<uint64_t, 2> d64;
  for (int64_t i = 0; i < rows; i += 4) {
    for (int64_t j = 0; j < columns; j += 4) {
      const uint32_t* p = from + i * from_row + j;
      const auto r0 = hn::LoadU(d, p), r1 = hn::LoadU(d, p + from_row);
      const auto r2 = hn::LoadU(d, p + 2 * from_row), r3 = hn::LoadU(d, p + 3 * from_row);
      const auto a = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));
      const auto b = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
      const auto c = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
      const auto e = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
      uint32_t* q = to + j * to_row + i;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, a, b)), d, q);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, a, b)), d, q + to_row);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, c, e)), d, q + 2 * to_row);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, c, e)), d, q + 3 * to_row);
    }
  }
#endif
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MILEPOST_ENGINE_KERNELS_CPU_TRANSPOSE_INL_H_
