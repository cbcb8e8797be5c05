#include "engine/optim/lamb/lamb_cpu_kernel.h"

#include <algorithm>
#include <cmath>

#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/optim/lamb/lamb_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "engine/kernels/cpu/sum_squares.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

// The update of AdamW, its learning rate left out and weight decay in it.
class Update {
 public:
  explicit Update(const AdamWParams& a)
      : root2_(hn::Set(DF(), static_cast<float>(1 / std::sqrt(Correction(a.beta2, a.step))))),
        root1_(hn::Set(DF(), static_cast<float>(1 / Correction(a.beta1, a.step)))),
        epsilon_(hn::Set(DF(), a.epsilon)),
        decay_(hn::Set(DF(), a.weight_decay)) {}

  HWY_INLINE VF Of(VF p, VF m, VF v) const {
    const VF denominator = hn::MulAdd(hn::Sqrt(v), root2_, epsilon_);
    return hn::MulAdd(decay_, p, hn::Div(hn::Mul(m, root1_), denominator));
  }

 private:
  static double Correction(float beta, int64_t step) {
    return 1.0 - std::pow(double{beta}, static_cast<double>(step));
  }
  VF root2_, root1_, epsilon_, decay_;
};

template <typename T>
void ApplyRange(const AdamWParams& a, int64_t n, float* p, const float* m, const float* v,
                T* copy) {
  const DF d;
  const Update update(a);
  const VF step = hn::Set(d, a.learning_rate);
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    const VF old_p = LoadUpTo(d, p + i, count);
    const VF u = update.Of(old_p, LoadUpTo(d, m + i, count), LoadUpTo(d, v + i, count));
    const VF new_p = hn::NegMulAdd(step, u, old_p);
    StoreUpTo(new_p, d, p + i, count);
    if (copy != nullptr) StoreUpTo(new_p, d, copy + i, count);
  });
}

}  // namespace

// u[n] receives the update.
void LambMomentsBlock(const AdamWParams& a, int64_t n, const float* p, float* m, float* v,
                      const float* g, float* u) {
  const DF d;
  const Update update(a);
  const VF beta1 = hn::Set(d, a.beta1), rest1 = hn::Set(d, 1.0f - a.beta1);
  const VF beta2 = hn::Set(d, a.beta2), rest2 = hn::Set(d, 1.0f - a.beta2);
  const VF scale = hn::Set(d, a.gradient_scale);
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    const VF grad = hn::Mul(LoadUpTo(d, g + i, count), scale);
    const VF new_m = hn::MulAdd(beta1, LoadUpTo(d, m + i, count), hn::Mul(rest1, grad));
    const VF new_v =
        hn::MulAdd(beta2, LoadUpTo(d, v + i, count), hn::Mul(rest2, hn::Mul(grad, grad)));
    StoreUpTo(new_m, d, m + i, count);
    StoreUpTo(new_v, d, v + i, count);
    StoreUpTo(update.Of(LoadUpTo(d, p + i, count), new_m, new_v), d, u + i, count);
  });
}

void LambApplyF32(const AdamWParams& params, int64_t n, float* p, const float* m, const float* v,
                  float* copy) {
  ApplyRange(params, n, p, m, v, copy);
}
void LambApplyBf16(const AdamWParams& params, int64_t n, float* p, const float* m, const float* v,
                   bf16* copy) {
  ApplyRange(params, n, p, m, v, copy);
}
void LambApplyF16(const AdamWParams& params, int64_t n, float* p, const float* m, const float* v,
                  f16* copy) {
  ApplyRange(params, n, p, m, v, copy);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(LambMomentsBlock);
HWY_EXPORT(LambApplyF32);
HWY_EXPORT(LambApplyBf16);
HWY_EXPORT(LambApplyF16);

namespace {
constexpr int64_t kGrain = 16384;
constexpr int64_t kBlock = kSquaresBlock;  // one block is one sum

template <typename Run, typename T>
void Apply(Run run, const AdamWParams& params, int64_t n, float* p, const float* m, const float* v,
           T* copy) {
  ParallelFor(0, n, kGrain, [&](int64_t first, int64_t last) {
    run(params, last - first, p + first, m + first, v + first,
        copy == nullptr ? nullptr : copy + first);
  });
}
}  // namespace

void LambMoments(const AdamWParams& params, int64_t n, const float* p, float* m, float* v,
                 const float* g, void* workspace, double sums[2]) {
  const auto run = HWY_DYNAMIC_DISPATCH(LambMomentsBlock);
  double* partial = static_cast<double*>(workspace);
  const int64_t blocks = (n + kBlock - 1) / kBlock;
  ParallelFor(0, blocks, 1, [&](int64_t first, int64_t last) {
    alignas(64) float u[kBlock];
    for (int64_t block = first; block < last; ++block) {
      const int64_t at = block * kBlock;
      const int64_t count = std::min(kBlock, n - at);
      run(params, count, p + at, m + at, v + at, g + at, u);
      double scratch;
      partial[2 * block] = SumSquares(p + at, count, &scratch);
      partial[2 * block + 1] = SumSquares(u, count, &scratch);
    }
  });
  sums[0] = sums[1] = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    sums[0] += partial[2 * block];
    sums[1] += partial[2 * block + 1];
  }
}

template <>
void LambApply(const AdamWParams& params, int64_t n, float* p, const float* m, const float* v,
               float* copy) {
  Apply(HWY_DYNAMIC_DISPATCH(LambApplyF32), params, n, p, m, v, copy);
}
template <>
void LambApply(const AdamWParams& params, int64_t n, float* p, const float* m, const float* v,
               bf16* copy) {
  Apply(HWY_DYNAMIC_DISPATCH(LambApplyBf16), params, n, p, m, v, copy);
}
template <>
void LambApply(const AdamWParams& params, int64_t n, float* p, const float* m, const float* v,
               f16* copy) {
  Apply(HWY_DYNAMIC_DISPATCH(LambApplyF16), params, n, p, m, v, copy);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
