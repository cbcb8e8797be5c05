// The forward's online softmax over tiles of scores, per SIMD target. Include after
// hwy/foreach_target.h.
//
// Scores are kept with keys down and queries across: a query is a lane, so the softmax needs no
// horizontal sums, and the output accumulates as [dim][query].

#if defined(MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_SOFTMAX_CPU_KERNEL_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_SOFTMAX_CPU_KERNEL_INL_H_
#undef MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_SOFTMAX_CPU_KERNEL_INL_H_
#else
#define MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_SOFTMAX_CPU_KERNEL_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "engine/ops/attention/attention_tiles_cpu_kernel-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {

// weights = 2^(scores * factor - max), packed; returns the sum per query. `rows` is even.
HWY_INLINE VF Weigh(DF d, float* scores, int64_t rows, VF factor, VF max, float* weights) {
  VF sum = hn::Zero(d);
  for (int64_t r = 0; r < rows; ++r) {
    const VF p = FastExp2(d, hn::MulSub(hn::LoadU(d, scores + r * kBlock), factor, max));
    sum = hn::Add(sum, p);
    hn::StoreU(p, d, weights + r * kBlock);
  }
  return sum;
}
HWY_INLINE VF Weigh(DF d, float* scores, int64_t rows, VF factor, VF max, bf16* weights) {
  VF sum0 = hn::Zero(d), sum1 = sum0;
  uint32_t* words = reinterpret_cast<uint32_t*>(weights);
  for (int64_t r = 0; r < rows; r += 2) {
    const float* p = scores + r * kBlock;
    const VF p0 = FastExp2(d, hn::MulSub(hn::LoadU(d, p), factor, max));
    const VF p1 = FastExp2(d, hn::MulSub(hn::LoadU(d, p + kBlock), factor, max));
    sum0 = hn::Add(sum0, p0);
    sum1 = hn::Add(sum1, p1);
    hn::StoreU(PairWords(p0, p1), DU32(), words + r / 2 * kBlock);
  }
  return hn::Add(sum0, sum1);
}

HWY_INLINE VF ColumnMax(DF d, const float* scores, int64_t rows) {
  VF max0 = hn::LoadU(d, scores), max1 = max0;
  for (int64_t r = 0; r < rows; r += 2) {
    max0 = hn::Max(max0, hn::LoadU(d, scores + r * kBlock));
    max1 = hn::Max(max1, hn::LoadU(d, scores + (r + 1) * kBlock));
  }
  return hn::Max(max0, max1);
}

struct Running {
  alignas(64) float max[kBlock];  // in base 2
  alignas(64) float sum[kBlock];
};

constexpr float kLeastScore = -1e38f;

// One step of the online softmax over `rows` keys. Rescales what `out` holds.
template <typename T>
HWY_INLINE void SoftmaxStep(float* scores, int64_t rows, float scale, int64_t dim, bool first,
                            T* weights, float* out, Running* running) {
  const DF d;
  const VF factor = hn::Set(d, static_cast<float>(scale * kLog2E));
  for (int64_t q = 0; q < kBlock; q += hn::Lanes(d)) {
    // Of a query that sees none of these keys the maximum is -inf, and -inf - -inf no number.
    VF max = hn::Max(hn::Mul(ColumnMax(d, scores + q, rows), factor), hn::Set(d, kLeastScore));
    VF before = hn::Zero(d);
    if (!first) {
      const VF old = hn::LoadU(d, running->max + q);
      max = hn::Max(max, old);
      const VF shrink = FastExp2(d, hn::Sub(old, max));
      before = hn::Mul(hn::LoadU(d, running->sum + q), shrink);
      for (int64_t i = 0; i < dim; ++i) {
        float* o = out + i * kBlock + q;
        hn::StoreU(hn::Mul(hn::LoadU(d, o), shrink), d, o);
      }
    }
    const VF sum = Weigh(d, scores + q, rows, factor, max, weights + q * kPair<T>);
    hn::StoreU(max, d, running->max + q);
    hn::StoreU(hn::Add(before, sum), d, running->sum + q);
  }
}

// out [dim][kBlock] / sum -> rows of `Stored`. `lse` may be null.
template <typename T, typename Stored>
HWY_INLINE void WriteBlock(const AttentionSizes& s, const ForwardArrays<T>& w,
                           const Running& running, int64_t valid, Stored* out, float* lse) {
  const DF d;
  for (int64_t q = 0; q < kBlock; q += hn::Lanes(d)) {
    const VF inverse = hn::Div(hn::Set(d, 1.0f), hn::LoadU(d, running.sum + q));
    for (int64_t i = 0; i < s.dim; ++i) {
      float* o = w.out + i * kBlock + q;
      hn::StoreU(hn::Mul(hn::LoadU(d, o), inverse), d, o);
    }
  }
  TransposeWords(reinterpret_cast<const uint32_t*>(w.out), kBlock, s.dim, kBlock,
                 reinterpret_cast<uint32_t*>(w.out_rows), s.dim);
  for (int64_t row = 0; row < valid; ++row) {
    ForVectors(s.dim, [&](int64_t i, int64_t n) MP_SIMD {
      StoreUpTo(LoadUpTo(d, w.out_rows + row * s.dim + i, n), d, out + row * s.channels + i, n);
    });
    if (lse == nullptr) continue;
    lse[row] = static_cast<float>((running.max[row] + std::log2(running.sum[row])) * kLn2);
  }
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_SOFTMAX_CPU_KERNEL_INL_H_
