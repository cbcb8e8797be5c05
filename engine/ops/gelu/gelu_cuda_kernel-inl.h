// GELU of one element, in both forms.
#ifndef MILEPOST_ENGINE_OPS_GELU_GELU_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_GELU_GELU_CUDA_KERNEL_INL_H_

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/elementwise_kernels.h"

namespace milepost::kernels::cuda {

// gelu(x) = x s(2u), u = sqrt(2/pi) (x + 0.044715 x^3), s the logistic function: the same as the
// tanh form, without a tanh.
inline constexpr float kGelu1 = 1.5957691216f;              // 2 sqrt(2/pi)
inline constexpr float kGelu3 = 1.5957691216f * 0.044715f;  // of x^3

struct GeluFn {
  MP_DEVICE float operator()(float x) const {
    return x * Logistic(x * fmaf(x * x, kGelu3, kGelu1));
  }
};
struct GeluBackwardFn {
  MP_DEVICE float operator()(float x, float dy) const {
    const float x2 = x * x;
    const float s = Logistic(x * fmaf(x2, kGelu3, kGelu1));
    const float slope = fmaf(x2, 3.0f * kGelu3, kGelu1);
    return dy * (s + x * slope * fmaf(-s, s, s));
  }
};
// 1 / x within 2 units in the last place, x in [1, 2^126].
MP_DEVICE float ReciprocalOf(float x) {
#if defined(__CUDA_ARCH__)
  return __fdividef(1.0f, x);
#else
  return 1.0f / x;
#endif
}

// Phi(x) of the normal distribution, and exp(-x^2 / 2). By ops/gelu/gelu_erf_cpu_kernel.cc's
// polynomial, relative error 2.3e-7: with the device's erfcf the arithmetic is what a GELU waits
// for.
struct Normal {
  float cumulative, bell;
};
MP_DEVICE Normal NormalOf(float x) {
  const float z = fabsf(x) * 0.7071067812f;
  const float t = ReciprocalOf(fmaf(z, 0.4f, 1.0f));
  float p = 4.415425682e-02f;
  p = fmaf(p, t, -1.544068665e-01f);
  p = fmaf(p, t, 1.130286585e-01f);
  p = fmaf(p, t, 5.486421143e-02f);
  p = fmaf(p, t, 1.024988499e-01f);
  p = fmaf(p, t, 1.837786492e-01f);
  p = fmaf(p, t, 2.043221965e-01f);
  p = fmaf(p, t, 2.261064723e-01f);
  p = fmaf(p, t, 2.256536481e-01f);
  const float bell = expf(-z * z);
  const float tail = 0.5f * t * (p * bell);
  return {x < 0 ? tail : 1.0f - tail, bell};
}

// x Phi(x).
struct GeluErfFn {
  MP_DEVICE float operator()(float x) const { return x * NormalOf(x).cumulative; }
};
struct GeluErfBackwardFn {
  MP_DEVICE float operator()(float x, float dy) const {
    const Normal normal = NormalOf(x);
    return dy * fmaf(x, 0.3989422804f * normal.bell, normal.cumulative);
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_GELU_GELU_CUDA_KERNEL_INL_H_
