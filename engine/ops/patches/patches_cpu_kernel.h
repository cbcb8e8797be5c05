// Patches of images as rows, and rows with a class in front; T in {float, bf16, f16}.
//
//   ImagePatches<float>({.batch = 8, .height = 224, .width = 224, .channels = 3, .side = 16},
//                       pixels, table, rows);
//   const TokenRows tokens{.batch = 8, .patches = 196, .width = 768};
//   PatchTokens<float>(tokens, embedded, cls, positions, x);
//
// Parallel; results do not depend on the thread count. Nothing is allocated.
#ifndef MILEPOST_ENGINE_OPS_PATCHES_PATCHES_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_PATCHES_PATCHES_CPU_KERNEL_H_

#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/ops/patches/patches_contract.h"

namespace milepost::kernels {

// rows[patch, channel, y, x] = table[256 channel + the pixel's byte].
template <typename T>
void ImagePatches(const PatchGrid& grid, const uint8_t* images, const T* table, T* rows);

// x[image, 0] = cls + positions[0]; x[image, 1 + i] = rows[image, i] + positions[1 + i].
template <typename T>
void PatchTokens(const TokenRows& tokens, const T* rows, const T* cls, const T* positions, T* x);

template <typename T>
void PatchTokensBackward(const TokenRows& tokens, const T* dx, T* drows, const TokenSum& dcls,
                         const TokenSum& dpositions);

// y[image] = x[image, 0], and back: dx is 0 in the other rows.
template <typename T>
void FirstRows(const TokenRows& tokens, const T* x, T* y);
template <typename T>
void FirstRowsBackward(const TokenRows& tokens, const T* dy, T* dx);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_PATCHES_PATCHES_CPU_KERNEL_H_
