// Pooling of images, and images into numbers; T in {float, bf16}. Everything is [batch, height,
// width, channels], dense.
//
//   PoolSpec spec{.batch = 8, .height = 112, .width = 112, .channels = 64};   // 3x3, stride 2
//   MaxPoolForward<float>(spec, x, y, winners);
//   MaxPoolBackward<float>(spec, winners, dy, nullptr, dx);
//
// The same bits on any number of threads. Nothing is allocated.
#ifndef MILEPOST_ENGINE_OPS_POOLING_POOLING_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_POOLING_POOLING_CPU_KERNEL_H_

#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/ops/pooling/pooling_contract.h"

namespace milepost::kernels {

// winners: for each element of y, which pixel of its window it is, row by row; the first of equal
// ones. A NaN wins over any number.
template <typename T>
void MaxPoolForward(const PoolSpec& spec, const T* x, T* y, uint8_t* winners);

// `dy2`: where y has two consumers, what the second adds to dy; null: nothing.
template <typename T>
void MaxPoolBackward(const PoolSpec& spec, const uint8_t* winners, const T* dy, const T* dy2,
                     T* dx);

// y[batch, channels] = mean of x[batch, pixels, channels].
template <typename T>
void AveragePoolForward(const T* x, int64_t batch, int64_t pixels, int64_t channels, T* y);
template <typename T>
void AveragePoolBackward(const T* dy, int64_t batch, int64_t pixels, int64_t channels, T* dx);

// y[p, c] = table[256 c + x[p, c]]: bytes into normalised numbers.
template <typename T>
void LookUpChannels(const uint8_t* x, int64_t pixels, int64_t channels, const T* table, T* y);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_POOLING_POOLING_CPU_KERNEL_H_
