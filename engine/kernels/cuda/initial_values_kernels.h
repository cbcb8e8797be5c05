// The kernels of initial_values.h.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_INITIAL_VALUES_KERNELS_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_INITIAL_VALUES_KERNELS_H_

#include <bit>
#include <cmath>
#include <cstdint>

#include "common/box_muller.h"
#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/random.h"
#include "engine/kernels/cuda/stream.h"

namespace milepost::kernels::cuda {

// (0, 1]: the upper 24 bits, plus one.
MP_BOTH float UnitInterval(uint32_t word) {
  return (static_cast<float>(word >> 8) + 1.0f) * box_muller::kUnit;
}

// Of (0, 1].
MP_BOTH float LogOfUnit(float u) {
  const uint32_t bits = std::bit_cast<uint32_t>(u);
  const int32_t exponent = static_cast<int32_t>(bits - box_muller::kHalfRootBits) >> 23;
  const float f = std::bit_cast<float>(bits - (static_cast<uint32_t>(exponent) << 23)) - 1.0f;
  const auto e = static_cast<float>(exponent);
  float p = box_muller::kLogTerm7;
  p = fmaf(p, f, box_muller::kLogTerm6);
  p = fmaf(p, f, box_muller::kLogTerm5);
  p = fmaf(p, f, box_muller::kLogTerm4);
  p = fmaf(p, f, box_muller::kLogTerm3);
  p = fmaf(p, f, box_muller::kLogTerm2);
  p = fmaf(p, f, box_muller::kLogTerm1);
  p = fmaf(p, f, box_muller::kLogTerm0);
  const float square = f * f;
  const float tail = fmaf(square * f, p, e * box_muller::kLog2Low);
  return fmaf(e, box_muller::kLog2High, fmaf(-0.5f, square, tail) + f);
}

// Two normal numbers of deviation 1.
struct NormalPair {
  float cosine, sine;
};
MP_BOTH NormalPair NormalPairOf(uint32_t radius_word, uint32_t angle_word) {
  const float radius = sqrtf(-2.0f * LogOfUnit(UnitInterval(radius_word)));
  const uint32_t turn = (angle_word >> 8) + 1;
  const uint32_t quarter = (turn + box_muller::kQuarter / 2) / box_muller::kQuarter;
  const auto steps = static_cast<int32_t>(turn - quarter * box_muller::kQuarter);
  const float x = static_cast<float>(steps) * box_muller::kStepAngle;
  const float z = x * x;
  float s = fmaf(box_muller::kSinTerm2, z, box_muller::kSinTerm1);
  s = fmaf(s, z, box_muller::kSinTerm0);
  s = fmaf(s, x * z, x);
  float c = fmaf(box_muller::kCosTerm2, z, box_muller::kCosTerm1);
  c = fmaf(c, z, box_muller::kCosTerm0);
  c = fmaf(c, z * z, fmaf(-0.5f, z, 1.0f));
  const float cosine = quarter % 2 == 0 ? c : s;
  const float sine = quarter % 2 == 0 ? s : c;
  return {radius * ((quarter + 1) % 4 < 2 ? cosine : -cosine),
          radius * (quarter % 4 < 2 ? sine : -sine)};
}

// The numbers of elements e, e + 16, e + 32 and e + 48, of their random words.
struct NormalNumbers {
  float stddev;
  // 0 is never negative, as where the CPU adds a mean.
  MP_BOTH float Scaled(float value) const { return fmaf(value, stddev, 0.0f); }
  MP_DEVICE Floats<4> operator()(const RandomWords& words) const {
    const NormalPair a = NormalPairOf(words[0], words[2]), b = NormalPairOf(words[1], words[3]);
    return {{Scaled(a.cosine), Scaled(b.cosine), Scaled(a.sine), Scaled(b.sine)}};
  }
};

struct UniformNumbers {
  float bound;
  MP_DEVICE float Of(uint32_t word) const {
    const float unit = UnitInterval(word);
    return (unit + unit - 1.0f) * bound;
  }
  MP_DEVICE Floats<4> operator()(const RandomWords& words) const {
    return {{Of(words[0]), Of(words[1]), Of(words[2]), Of(words[3])}};
  }
};

struct ConstantNumbers {
  float value;
  MP_DEVICE Floats<4> operator()(const RandomWords&) const {
    return {{value, value, value, value}};
  }
};

// A thread has the 32 elements whose random words eight Philox calls give: 8 at each of e, e + 16,
// e + 32 and e + 48 of the stream.
template <typename Numbers, typename T>
struct DrawKernel {
  static constexpr int kThreads = 256;
  Numbers numbers;
  T* out;
  int64_t n;
  RandomKey key;
  uint64_t first;

  // The stream's groups of 64 that n elements touch at most.
  Grid grid() const { return {.x = CeilDiv((n / 64 + 2) * 2, kThreads)}; }

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t item = c.block() * kThreads + c.thread();
    // Relative to out: begins before it where the stream's group does.
    const int64_t base = item / 2 * 64 + item % 2 * 8 - static_cast<int64_t>(first % 64);
    if (base >= n) return;
    float values[4][8];
    MP_UNROLL
    for (int i = 0; i < 8; ++i) {
      const Floats<4> drawn = numbers(WordsOf(first + base + i, 0, key));
      MP_UNROLL
      for (int j = 0; j < 4; ++j) values[j][i] = drawn.v[j];
    }
    const bool aligned = first % 8 == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0;
    MP_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int64_t i = base + 16 * j;
      if (aligned && i >= 0 && i < n) {
        WriteUpTo(c, out + i, values[j], n - i);
      } else if (!aligned) {
        MP_UNROLL
        for (int k = 0; k < 8; ++k) {
          if (i + k >= 0 && i + k < n) c.Store(out + i + k, Narrow<T>(values[j][k]));
        }
      }
    }
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_INITIAL_VALUES_KERNELS_H_
