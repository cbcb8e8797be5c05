// Elementwise kernels and column sums, T in {float, bf16, f16}. All parallel; results do not depend
// on the thread count. n is a number of elements.
#ifndef MILEPOST_ENGINE_KERNELS_CPU_ELEMENTWISE_H_
#define MILEPOST_ENGINE_KERNELS_CPU_ELEMENTWISE_H_

#include <cstddef>
#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/ops/contract/sums.h"

namespace milepost::kernels {

// GELU, tanh form ("gelu_new"): y = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). y may alias x.
template <typename T>
void GeluForward(const T* x, int64_t n, T* y);

// dx = dy * gelu'(x). dx may alias dy or x.
template <typename T>
void GeluBackward(const T* x, const T* dy, int64_t n, T* dx);

// db[j] (+)= sum over rows of dy[row, j]. `workspace`: BiasGradientWorkspaceBytes,
// 64-byte aligned.
template <typename T>
void BiasGradient(const T* dy, int64_t rows, int64_t width, bool accumulate, float* db,
                  void* workspace);

// out = a + b; out may alias either.
template <typename T>
void Add(const T* a, const T* b, int64_t n, T* out);

// Round to nearest even.
void CastToBf16(const float* in, int64_t n, bf16* out);
void CastToFloat(const bf16* in, int64_t n, float* out);
void CastToF16(const float* in, int64_t n, f16* out);
void CastToFloat(const f16* in, int64_t n, float* out);
// The same of `rows` rows of `width` elements that start *_row elements apart.
template <typename T>
void CastRowsFromFloat(const float* in, int64_t in_row, int64_t rows, int64_t width, T* out,
                       int64_t out_row);
template <typename T>
void CastRowsToFloat(const T* in, int64_t in_row, int64_t rows, int64_t width, float* out,
                     int64_t out_row);

void Fill(float* out, int64_t n, float value);
// x *= factor.
void Scale(float* x, int64_t n, float factor);
// y = factor * x; y may be x.
template <typename T>
void ScaleTo(const T* x, int64_t n, float factor, T* y);
// out += x.
void Accumulate(const float* x, int64_t n, float* out);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_ELEMENTWISE_H_
