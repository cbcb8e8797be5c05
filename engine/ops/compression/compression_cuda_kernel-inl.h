// The kernels of compression_cuda_kernel.h.
#ifndef MILEPOST_ENGINE_OPS_COMPRESSION_COMPRESSION_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_COMPRESSION_COMPRESSION_CUDA_KERNEL_INL_H_

#include <cfloat>
#include <cstdint>

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/initial_values_kernels.h"
#include "engine/ops/compression/compression_contract.h"
#include "engine/ops/compression/compression_cuda_kernel.h"

namespace milepost::kernels::cuda {

// A block has a matrix. A thread has the same elements of every row, so what it has written it
// reads without a barrier. There are few matrices and so few blocks: a thread asks for several
// elements before it uses the first.
struct OrthonormalKernel {
  static constexpr int kThreads = 256;
  static constexpr int kEach = 8;  // elements at once
  const FactorRows* matrices;
  int64_t matrix_count;
  const StepPosition* position;

  Grid grid() const { return {.x = matrix_count}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const FactorRows m = c.Load(matrices + c.block());
    for (int64_t index = 0; index < m.count; ++index) {
      float* row = m.rows + index * m.n;
      const double before = sqrt(Dot(c, row, row, m.n));
      if (!(before < INFINITY)) continue;  // also where it is no number
      double length = RemoveEarlier(c, m, index, row);
      if (length <= kDependent * before || length < double{FLT_MIN}) {
        Draw(c, m, index, row);
        length = RemoveEarlier(c, m, index, row);
      }
      const auto factor = static_cast<float>(1 / length);
      for (int64_t i = c.thread(); i < m.n; i += kThreads) {
        c.Store(row + i, factor * c.Load(row + i));
      }
    }
  }

 private:
  // Of a thread, from element `first` on.
  template <typename Context>
  MP_DEVICE Floats<kEach> ReadEach(Context& c, const float* x, int64_t first, int64_t n) const {
    Floats<kEach> values;
    MP_UNROLL
    for (int k = 0; k < kEach; ++k) {
      const int64_t i = first + k * kThreads;
      values.v[k] = i < n ? c.Load(x + i) : 0.0f;
    }
    return values;
  }

  template <typename Context>
  MP_DEVICE double Dot(Context& c, const float* x, const float* y, int64_t n) const {
    double sum = 0;
    for (int64_t i = c.thread(); i < n; i += kThreads * kEach) {
      const auto a = ReadEach(c, x, i, n), b = ReadEach(c, y, i, n);
      MP_UNROLL
      for (int k = 0; k < kEach; ++k) sum = fma(double{a.v[k]}, double{b.v[k]}, sum);
    }
    return BlockSum<kThreads, 0>(c, sum);
  }

  // Less what lies along the rows before it, twice. Returns how long it is then. While one row is
  // taken out the product with the next is summed up, in the end that of the row with itself.
  template <typename Context>
  MP_DEVICE double RemoveEarlier(Context& c, const FactorRows& m, int64_t index, float* row) const {
    double along = Dot(c, index == 0 ? row : m.rows, row, m.n);
    for (int64_t turn = 1; turn <= 2 * index; ++turn) {
      const float* earlier = m.rows + (turn - 1) % index * m.n;
      const bool last = turn == 2 * index;
      const float* next = last ? row : m.rows + turn % index * m.n;
      along = RemoveOne(c, m.n, static_cast<float>(along), earlier, next, last, row);
    }
    return sqrt(along);
  }

  // row -= factor * earlier; returns what row then has along `next`, or along itself.
  template <typename Context>
  MP_DEVICE double RemoveOne(Context& c, int64_t n, float factor, const float* earlier,
                             const float* next, bool itself, float* row) const {
    double sum = 0;
    for (int64_t i = c.thread(); i < n; i += kThreads * kEach) {
      const auto values = ReadEach(c, row, i, n), removed = ReadEach(c, earlier, i, n);
      const auto others = ReadEach(c, next, i, n);
      MP_UNROLL
      for (int k = 0; k < kEach; ++k) {
        const float left = values.v[k] - factor * removed.v[k];
        if (i + k * kThreads < n) c.Store(row + i + k * kThreads, left);
        sum = fma(double{itself ? left : others.v[k]}, double{left}, sum);
      }
    }
    return BlockSum<kThreads, 0>(c, sum);
  }

  template <typename Context>
  MP_DEVICE void Draw(Context& c, const FactorRows& m, int64_t index, float* row) const {
    const uint64_t step = c.Load(&position->step);
    const uint64_t first = (step * static_cast<uint64_t>(m.count) + static_cast<uint64_t>(index)) *
                           static_cast<uint64_t>(m.n);
    for (int64_t i = c.thread(); i < m.n; i += kThreads) {
      const uint64_t element = first + static_cast<uint64_t>(i);
      const auto which = static_cast<int>(element % 64 / 16);
      const Floats<4> numbers =
          NormalNumbers{1.0f}(WordsOf(element - static_cast<uint64_t>(16 * which), 0, m.key));
      c.Store(row + i, which == 0   ? numbers.v[0]
                       : which == 1 ? numbers.v[1]
                       : which == 2 ? numbers.v[2]
                                    : numbers.v[3]);
    }
  }
};

struct AddScaledFn {
  float factor;
  MP_DEVICE float operator()(float out, float x) const { return out + factor * x; }
};

// A row of blocks has a tensor.
struct CopyTensorsKernel {
  static constexpr int kThreads = 256;
  static constexpr int64_t kEach = 8 * kThreads;  // elements that a block has at once
  static constexpr int64_t kMostBlocks = 1024;    // of a tensor
  const CopiedTensor* tensors;
  int64_t tensor_count;
  int64_t most;

  MP_BOTH int64_t BlocksOfEach() const {
    const int64_t blocks = (most + kEach - 1) / kEach;
    return blocks < kMostBlocks ? blocks : kMostBlocks;
  }
  Grid grid() const { return {.x = tensor_count, .y = BlocksOfEach()}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const CopiedTensor tensor = c.Load(tensors + c.block());
    const int64_t apart = BlocksOfEach() * kThreads;
    for (int64_t i = c.block_y() * kThreads + c.thread(); i < tensor.elements; i += apart) {
      c.Store(tensor.to + i, c.Load(tensor.from + i));
    }
  }
};

struct ZeroIfSkippedKernel {
  static constexpr int kThreads = 256;
  static constexpr int64_t kMostBlocks = 256;
  const UpdateControl* control;
  int64_t n;
  float* x;

  // Steps are seldom skipped: few blocks, which mostly have nothing to do.
  MP_BOTH int64_t Blocks() const {
    const int64_t blocks = (n + kThreads * 4 - 1) / (kThreads * 4);
    return blocks < kMostBlocks ? blocks : kMostBlocks;
  }
  Grid grid() const { return {.x = Blocks()}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    if (c.Load(&control->skip) == 0) return;
    constexpr float kZeros[4] = {};
    const int64_t apart = Blocks() * kThreads * 4;
    for (int64_t i = (c.block() * kThreads + c.thread()) * 4; i < n; i += apart) {
      WriteUpTo(c, x + i, kZeros, n - i);
    }
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_COMPRESSION_COMPRESSION_CUDA_KERNEL_INL_H_
