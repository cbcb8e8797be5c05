// The kernels behind rows.h.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_ROWS_KERNELS_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_ROWS_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

// An element a thread.
template <typename T>
struct TakeRowKernel {
  static constexpr int kThreads = 256;
  const T* x;
  int64_t batch, sequence, width;
  const int64_t* row;
  T* out;

  Grid grid() const { return {.x = CeilDiv(batch * width, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t i = c.block() * kThreads + c.thread();
    if (i >= batch * width) return;
    const int64_t from = i / width * sequence + c.Load(row);
    c.Store(out + i, c.Load(x + from * width + i % width));
  }
};

// One block, a run of rows a thread: counts those of its run that have a target, then writes the
// numbers of its rows behind those of the threads before it.
struct OrderByTargetKernel {
  static constexpr int kThreads = 1024;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kCountsTag = 0;
  const int32_t* targets;
  int64_t rows;
  int32_t* order;

  Grid grid() const { return {.x = 1}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t run = (rows + kThreads - 1) / kThreads;
    const int64_t begin = run * c.thread() < rows ? run * c.thread() : rows;
    const int64_t end = begin + run < rows ? begin + run : rows;
    int count = 0;
    for (int64_t r = begin; r < end; ++r) count += c.Load(targets + r) >= 0 ? 1 : 0;
    const Counts counts = CountsOf(c, count);
    int64_t with = counts.before, without = counts.all + begin - counts.before;
    for (int64_t r = begin; r < end; ++r) {
      const int64_t place = c.Load(targets + r) >= 0 ? with++ : without++;
      c.Store(order + place, static_cast<int32_t>(r));
    }
  }

 private:
  struct Counts {
    int64_t before, all;
  };

  // Of the threads before this one, and of all.
  template <typename Context>
  MP_DEVICE Counts CountsOf(Context& c, int count) const {
    int sum = count;  // of the lanes up to this one
    for (int step = 1; step < kWarp; step *= 2) {
      const int lane = c.lane() - step;
      const int other = c.Shuffle(sum, lane < 0 ? 0 : lane);
      if (lane >= 0) sum += other;
    }
    auto of_warps = c.template Shared<int, kWarps, kCountsTag>();
    if (c.lane() == kWarp - 1) of_warps.Set(c.warp(), sum);
    c.Sync();
    Counts counts = {sum - count, 0};
    for (int w = 0; w < kWarps; ++w) {
      if (w < c.warp()) counts.before += of_warps.Get(w);
      counts.all += of_warps.Get(w);
    }
    return counts;
  }
};

// A pack a thread; kN: kPack<T> where the width is a multiple of it, else 1.
template <typename T, int kN>
struct GatherRowsKernel {
  static constexpr int kThreads = 256;
  const T* x;
  const int32_t* order;
  int64_t count, width;
  T* out;
  const int32_t* targets;
  int32_t* out_targets;

  Grid grid() const { return {.x = CeilDiv(count * (width / kN), kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t packs = width / kN, i = c.block() * kThreads + c.thread();
    if (i >= count * packs) return;
    const int64_t row = i / packs, column = i % packs * kN;
    const int64_t from = c.Load(order + row);
    const auto pack = c.Load(reinterpret_cast<const Pack<T, kN>*>(x + from * width + column));
    c.Store(reinterpret_cast<Pack<T, kN>*>(out + row * width + column), pack);
    if (column == 0 && out_targets != nullptr) c.Store(out_targets + row, c.Load(targets + from));
  }
};

template <typename T, int kN>
struct ScatterRowsKernel {
  static constexpr int kThreads = 256;
  const T* x;
  const int32_t* order;
  int64_t count, total, width;
  const T* addend;
  T* out;

  Grid grid() const { return {.x = CeilDiv(total * (width / kN), kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t packs = width / kN, i = c.block() * kThreads + c.thread();
    if (i >= total * packs) return;
    const int64_t row = i / packs, column = i % packs * kN;
    const int64_t to = c.Load(order + row) * width + column;
    Pack<T, kN> pack = {};
    if (row < count) {
      pack = c.Load(reinterpret_cast<const Pack<T, kN>*>(x + row * width + column));
    } else if (addend != nullptr) {
      pack = c.Load(reinterpret_cast<const Pack<T, kN>*>(addend + to));
    }
    c.Store(reinterpret_cast<Pack<T, kN>*>(out + to), pack);
  }
};

// A pack a thread.
template <typename T, int kN>
struct CopyColumnsKernel {
  static constexpr int kThreads = 256;
  const T* x;
  int64_t rows, width, stride;
  T* out;

  Grid grid() const { return {.x = CeilDiv(rows * (width / kN), kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t packs = width / kN, i = c.block() * kThreads + c.thread();
    if (i >= rows * packs) return;
    const int64_t at = i / packs * stride + i % packs * kN;
    c.Store(reinterpret_cast<Pack<T, kN>*>(out + at),
            c.Load(reinterpret_cast<const Pack<T, kN>*>(x + at)));
  }
};

// run(kernel) launches it.
template <typename T, typename Run>
absl::Status RunCopyColumns(const T* x, int64_t rows, int64_t width, int64_t stride, T* out,
                            const Run& run) {
  const bool packs = width % kPack<T> == 0 && stride % kPack<T> == 0 &&
                     reinterpret_cast<uintptr_t>(x) % 16 == 0 &&
                     reinterpret_cast<uintptr_t>(out) % 16 == 0;
  return packs ? run(CopyColumnsKernel<T, kPack<T>>{x, rows, width, stride, out})
               : run(CopyColumnsKernel<T, 1>{x, rows, width, stride, out});
}

// An element a thread.
template <typename T, typename X>
struct AddBiasKernel {
  static constexpr int kThreads = 256;
  const T* bias;
  int64_t rows, width;
  X* x;

  Grid grid() const { return {.x = CeilDiv(rows * width, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t i = c.block() * kThreads + c.thread();
    if (i >= rows * width) return;
    c.Store(x + i, Narrow<X>(Widen(c.Load(x + i)) + Widen(c.Load(bias + i % width))));
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_ROWS_KERNELS_H_
