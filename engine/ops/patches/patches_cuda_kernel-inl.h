// The kernels behind patches_cuda_kernel.h. A thread has kN numbers of a row: kPack<T>, or 1 where
// the rows' width is no multiple of it.
#ifndef MILEPOST_ENGINE_OPS_PATCHES_PATCHES_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_PATCHES_PATCHES_CUDA_KERNEL_INL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/patches/patches_contract.h"

namespace milepost::kernels::cuda {

// A number a thread, in the rows' order.
template <typename T>
struct ImagePatchesKernel {
  static constexpr int kThreads = 256;
  PatchGrid grid_of;
  int64_t per_image, across, numbers;  // patches of an image, of a row of them; of a patch
  const uint8_t* images;
  const T* table;
  T* rows;

  int64_t n() const { return grid_of.batch * per_image * numbers; }
  Grid grid() const { return {.x = CeilDiv(n(), kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t i = c.block() * kThreads + c.thread();
    const int64_t patch = i / numbers, number = i % numbers, side = grid_of.side;
    const int64_t image = patch / per_image, at = patch % per_image;
    if (image >= grid_of.batch) return;
    const int64_t channel = number / (side * side), within = number % (side * side);
    const int64_t y = at / across * side + within / side, x = at % across * side + within % side;
    const int64_t pixel = (image * grid_of.height + y) * grid_of.width + x;
    const uint8_t byte = c.Load(images + pixel * grid_of.channels + channel);
    c.Store(rows + i, c.Load(table + channel * 256 + byte));
  }
};

template <typename T, int kN>
struct PatchTokensKernel {
  static constexpr int kThreads = 256;
  TokenRows tokens;
  const T* rows;
  const T* cls;
  const T* positions;
  T* x;

  Grid grid() const {
    return {.x = CeilDiv(tokens.batch * (tokens.patches + 1) * (tokens.width / kN), kThreads)};
  }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t packs = tokens.width / kN, i = c.block() * kThreads + c.thread();
    const int64_t row = i / packs, column = i % packs * kN;
    const int64_t image = row / (tokens.patches + 1), place = row % (tokens.patches + 1);
    if (image >= tokens.batch) return;
    const T* from = place == 0 ? cls : rows + (image * tokens.patches + place - 1) * tokens.width;
    auto sum = Read<kN>(c, from + column);
    const auto position = Read<kN>(c, positions + place * tokens.width + column);
    MP_UNROLL
    for (int k = 0; k < kN; ++k) sum.v[k] += position.v[k];
    Write(c, x + row * tokens.width + column, sum.v);
  }
};

// A thread has its numbers of one place of every image, which it passes on and adds in the images'
// order.
template <typename T, int kN>
struct PatchTokensBackwardKernel {
  static constexpr int kThreads = 128;
  TokenRows tokens;
  const T* dx;
  T* drows;
  TokenSum dcls, dpositions;

  Grid grid() const { return {.x = CeilDiv((tokens.patches + 1) * (tokens.width / kN), kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t packs = tokens.width / kN, i = c.block() * kThreads + c.thread();
    const int64_t place = i / packs, column = i % packs * kN;
    if (place > tokens.patches) return;
    float sum[kN] = {};
    for (int64_t image = 0; image < tokens.batch; ++image) {
      const int64_t row = image * (tokens.patches + 1) + place;
      const auto pack =
          c.Load(reinterpret_cast<const Pack<T, kN>*>(dx + row * tokens.width + column));
      if (place > 0) {
        const int64_t to = (image * tokens.patches + place - 1) * tokens.width + column;
        c.Store(reinterpret_cast<Pack<T, kN>*>(drows + to), pack);
      }
      MP_UNROLL
      for (int k = 0; k < kN; ++k) sum[k] += Widen(pack.v[k]);
    }
    if (place == 0) Put(c, dcls, column, sum);
    Put(c, dpositions, place * tokens.width + column, sum);
  }

 private:
  template <typename Context>
  MP_DEVICE static void Put(Context& c, const TokenSum& to, int64_t at, const float (&sum)[kN]) {
    if (to.to == nullptr) return;
    MP_UNROLL
    for (int k = 0; k < kN; ++k) {
      c.Store(to.to + at + k, to.accumulate ? c.Load(to.to + at + k) + sum[k] : sum[k]);
    }
  }
};

template <typename T, int kN>
struct FirstRowsKernel {
  static constexpr int kThreads = 256;
  TokenRows tokens;
  const T* x;
  T* y;

  Grid grid() const { return {.x = CeilDiv(tokens.batch * (tokens.width / kN), kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t packs = tokens.width / kN, i = c.block() * kThreads + c.thread();
    const int64_t image = i / packs, column = i % packs * kN;
    if (image >= tokens.batch) return;
    const int64_t from = image * (tokens.patches + 1) * tokens.width + column;
    c.Store(reinterpret_cast<Pack<T, kN>*>(y + image * tokens.width + column),
            c.Load(reinterpret_cast<const Pack<T, kN>*>(x + from)));
  }
};

template <typename T, int kN>
struct FirstRowsBackwardKernel {
  static constexpr int kThreads = 256;
  TokenRows tokens;
  const T* dy;
  T* dx;

  Grid grid() const {
    return {.x = CeilDiv(tokens.batch * (tokens.patches + 1) * (tokens.width / kN), kThreads)};
  }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t packs = tokens.width / kN, i = c.block() * kThreads + c.thread();
    const int64_t row = i / packs, column = i % packs * kN;
    const int64_t image = row / (tokens.patches + 1);
    if (image >= tokens.batch) return;
    Pack<T, kN> pack = {};
    if (row % (tokens.patches + 1) == 0) {
      pack = c.Load(reinterpret_cast<const Pack<T, kN>*>(dy + image * tokens.width + column));
    }
    c.Store(reinterpret_cast<Pack<T, kN>*>(dx + row * tokens.width + column), pack);
  }
};

// run(kernel) launches it.
template <typename T, typename Run>
absl::Status RunImagePatches(const PatchGrid& grid, const uint8_t* images, const T* table, T* rows,
                             const Run& run) {
  return run(ImagePatchesKernel<T>{grid, grid.PerImage(), grid.Across(), grid.Numbers(), images,
                                   table, rows});
}

// Launches Kernel<T, kN> of `tokens` and the other arguments.
template <typename T, template <typename, int> typename Kernel, typename Run, typename... Args>
absl::Status RunOnTokens(const Run& run, const TokenRows& tokens, const Args&... args) {
  return tokens.width % kPack<T> == 0 ? run(Kernel<T, kPack<T>>{tokens, args...})
                                      : run(Kernel<T, 1>{tokens, args...});
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_PATCHES_PATCHES_CUDA_KERNEL_INL_H_
