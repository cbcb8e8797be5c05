#include "engine/ops/pooling/pooling_cpu_kernel.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/pooling/pooling_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

using DU8 = hn::Rebind<uint8_t, DF>;

// Winners are below 256, so that they pass through i32 lanes unharmed.
HWY_INLINE void StoreWinners(hn::Vec<DI32> v, uint8_t* p, int64_t n) {
  if (n == static_cast<int64_t>(hn::Lanes(DF()))) {
    hn::StoreU(hn::DemoteTo(DU8(), v), DU8(), p);
    return;
  }
  alignas(64) int32_t lanes[kMaxLanes] = {};
  hn::Store(v, DI32(), lanes);
  for (int64_t i = 0; i < n; ++i) p[i] = static_cast<uint8_t>(lanes[i]);
}
HWY_INLINE hn::Vec<DI32> LoadWinners(const uint8_t* p, int64_t n) {
  if (n == static_cast<int64_t>(hn::Lanes(DF()))) {
    return hn::PromoteTo(DI32(), hn::LoadU(DU8(), p));
  }
  alignas(64) int32_t lanes[kMaxLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return hn::Load(DI32(), lanes);
}

// One pixel of y.
template <typename T>
HWY_INLINE void MaxPixel(const PoolSpec& s, const T* image, int64_t p, int64_t q, T* y,
                         uint8_t* winners) {
  const DF d;
  const DI32 di;
  const int64_t top = p * s.stride - s.padding, left = q * s.stride - s.padding;
  const int64_t first_row = std::max<int64_t>(0, -top);
  const int64_t last_row = std::min(s.kernel, s.height - top);
  const int64_t first_column = std::max<int64_t>(0, -left);
  const int64_t last_column = std::min(s.kernel, s.width - left);
  ForVectors(s.channels, [&](int64_t c, int64_t n) MP_SIMD {
    VF best = hn::Zero(d);
    auto winner = hn::Zero(di);
    bool none = true;
    for (int64_t i = first_row; i < last_row; ++i) {
      for (int64_t j = first_column; j < last_column; ++j) {
        const T* at = image + ((top + i) * s.width + left + j) * s.channels + c;
        const VF v = LoadUpTo(d, at, n);
        const auto own = hn::Set(di, static_cast<int32_t>(i * s.kernel + j));
        if (none) {
          best = v;
          winner = own;
          none = false;
          continue;
        }
        const auto wins = hn::Or(hn::Gt(v, best), hn::IsNaN(v));
        best = hn::IfThenElse(wins, v, best);
        winner = hn::IfThenElse(hn::RebindMask(di, wins), own, winner);
      }
    }
    StoreUpTo(best, d, y + c, n);
    StoreWinners(winner, winners + c, n);
  });
}

// Rows of y, counted over the batch.
template <typename T>
void MaxForwardRows(const PoolSpec& s, const T* x, int64_t first, int64_t last, T* y,
                    uint8_t* winners) {
  const int64_t rows = s.OutHeight(), columns = s.OutWidth();
  for (int64_t row = first; row < last; ++row) {
    const T* image = x + row / rows * s.height * s.width * s.channels;
    for (int64_t q = 0; q < columns; ++q) {
      const int64_t at = (row * columns + q) * s.channels;
      MaxPixel(s, image, row % rows, q, y + at, winners + at);
    }
  }
}

// The windows [first, last) that hold pixel `at` along one axis.
struct Windows {
  Windows(const PoolSpec& s, int64_t at, int64_t count)
      : first(at + s.padding < s.kernel ? 0 : (at + s.padding - s.kernel) / s.stride + 1),
        last(std::min(count, (at + s.padding) / s.stride + 1)) {}
  int64_t first;
  int64_t last;
};

// One pixel of dx: what the windows that it won in pass back.
template <typename T>
HWY_INLINE void GatherPixel(const PoolSpec& s, const uint8_t* winners, const T* dy, const T* dy2,
                            int64_t h, int64_t w, T* dx) {
  const DF d;
  const DI32 di;
  const int64_t columns = s.OutWidth();
  const Windows rows(s, h, s.OutHeight()), across(s, w, columns);
  ForVectors(s.channels, [&](int64_t c, int64_t n) MP_SIMD {
    VF sum = hn::Zero(d);
    for (int64_t p = rows.first; p < rows.last; ++p) {
      for (int64_t q = across.first; q < across.last; ++q) {
        const int64_t at = (p * columns + q) * s.channels + c;
        const int64_t i = h - (p * s.stride - s.padding), j = w - (q * s.stride - s.padding);
        VF g = LoadUpTo(d, dy + at, n);
        if (dy2 != nullptr) g = hn::Add(g, LoadUpTo(d, dy2 + at, n));
        const auto own = hn::Set(di, static_cast<int32_t>(i * s.kernel + j));
        const auto won = hn::RebindMask(d, hn::Eq(LoadWinners(winners + at, n), own));
        sum = hn::Add(sum, hn::IfThenElseZero(won, g));
      }
    }
    StoreUpTo(sum, d, dx + c, n);
  });
}

template <typename T>
void MaxBackwardRows(const PoolSpec& s, const uint8_t* winners, const T* dy, const T* dy2,
                     int64_t first, int64_t last, T* dx) {
  const int64_t outputs = s.OutHeight() * s.OutWidth() * s.channels;
  for (int64_t row = first; row < last; ++row) {
    const int64_t image = row / s.height * outputs;
    for (int64_t w = 0; w < s.width; ++w) {
      GatherPixel(s, winners + image, dy + image, dy2 == nullptr ? nullptr : dy2 + image,
                  row % s.height, w, dx + (row * s.width + w) * s.channels);
    }
  }
}

template <typename T>
void AverageImage(const T* x, int64_t pixels, int64_t channels, T* y) {
  const DF d;
  const VF share = hn::Set(d, 1.0F / static_cast<float>(pixels));
  ForVectors(channels, [&](int64_t c, int64_t n) MP_SIMD {
    VF sum = hn::Zero(d);
    for (int64_t p = 0; p < pixels; ++p) sum = hn::Add(sum, LoadUpTo(d, x + p * channels + c, n));
    StoreUpTo(hn::Mul(sum, share), d, y + c, n);
  });
}

template <typename T>
void SpreadImage(const T* dy, int64_t pixels, int64_t channels, T* dx) {
  const DF d;
  const VF share = hn::Set(d, 1.0F / static_cast<float>(pixels));
  for (int64_t p = 0; p < pixels; ++p) {
    ForVectors(channels, [&](int64_t c, int64_t n) MP_SIMD {
      StoreUpTo(hn::Mul(LoadUpTo(d, dy + c, n), share), d, dx + p * channels + c, n);
    });
  }
}

}  // namespace

// One name per element type: HWY_EXPORT takes no templates.
#define MP_POOLING(suffix, T)                                                                   \
  void MaxForwardRows##suffix(const PoolSpec& s, const T* x, int64_t first, int64_t last, T* y, \
                              uint8_t* winners) {                                               \
    MaxForwardRows(s, x, first, last, y, winners);                                              \
  }                                                                                             \
  void MaxBackwardRows##suffix(const PoolSpec& s, const uint8_t* winners, const T* dy,          \
                               const T* dy2, int64_t first, int64_t last, T* dx) {              \
    MaxBackwardRows(s, winners, dy, dy2, first, last, dx);                                      \
  }                                                                                             \
  void AverageImage##suffix(const T* x, int64_t pixels, int64_t channels, T* y) {               \
    AverageImage(x, pixels, channels, y);                                                       \
  }                                                                                             \
  void SpreadImage##suffix(const T* dy, int64_t pixels, int64_t channels, T* dx) {              \
    SpreadImage(dy, pixels, channels, dx);                                                      \
  }
MP_POOLING(F32, float)
MP_POOLING(Bf16, bf16)
#undef MP_POOLING

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(MaxForwardRowsF32);
HWY_EXPORT(MaxForwardRowsBf16);
HWY_EXPORT(MaxBackwardRowsF32);
HWY_EXPORT(MaxBackwardRowsBf16);
HWY_EXPORT(AverageImageF32);
HWY_EXPORT(AverageImageBf16);
HWY_EXPORT(SpreadImageF32);
HWY_EXPORT(SpreadImageBf16);

template <>
void MaxPoolForward(const PoolSpec& spec, const float* x, float* y, uint8_t* winners) {
  const auto run = HWY_DYNAMIC_DISPATCH(MaxForwardRowsF32);
  ParallelFor(0, spec.batch * spec.OutHeight(), 1,
              [&](int64_t first, int64_t last) { run(spec, x, first, last, y, winners); });
}
template <>
void MaxPoolForward(const PoolSpec& spec, const bf16* x, bf16* y, uint8_t* winners) {
  const auto run = HWY_DYNAMIC_DISPATCH(MaxForwardRowsBf16);
  ParallelFor(0, spec.batch * spec.OutHeight(), 1,
              [&](int64_t first, int64_t last) { run(spec, x, first, last, y, winners); });
}

template <>
void MaxPoolBackward(const PoolSpec& spec, const uint8_t* winners, const float* dy,
                     const float* dy2, float* dx) {
  const auto run = HWY_DYNAMIC_DISPATCH(MaxBackwardRowsF32);
  ParallelFor(0, spec.batch * spec.height, 1,
              [&](int64_t first, int64_t last) { run(spec, winners, dy, dy2, first, last, dx); });
}
template <>
void MaxPoolBackward(const PoolSpec& spec, const uint8_t* winners, const bf16* dy, const bf16* dy2,
                     bf16* dx) {
  const auto run = HWY_DYNAMIC_DISPATCH(MaxBackwardRowsBf16);
  ParallelFor(0, spec.batch * spec.height, 1,
              [&](int64_t first, int64_t last) { run(spec, winners, dy, dy2, first, last, dx); });
}

namespace {

// run(image) for each; below one image per thread there is nothing to share out.
template <typename Run>
void ForImages(int64_t batch, const Run& run) {
  ParallelFor(0, batch, 1, [&](int64_t first, int64_t last) {
    for (int64_t image = first; image < last; ++image) run(image);
  });
}

}  // namespace

template <>
void AveragePoolForward(const float* x, int64_t batch, int64_t pixels, int64_t channels, float* y) {
  const auto run = HWY_DYNAMIC_DISPATCH(AverageImageF32);
  ForImages(batch,
            [&](int64_t i) { run(x + i * pixels * channels, pixels, channels, y + i * channels); });
}
template <>
void AveragePoolForward(const bf16* x, int64_t batch, int64_t pixels, int64_t channels, bf16* y) {
  const auto run = HWY_DYNAMIC_DISPATCH(AverageImageBf16);
  ForImages(batch,
            [&](int64_t i) { run(x + i * pixels * channels, pixels, channels, y + i * channels); });
}

template <>
void AveragePoolBackward(const float* dy, int64_t batch, int64_t pixels, int64_t channels,
                         float* dx) {
  const auto run = HWY_DYNAMIC_DISPATCH(SpreadImageF32);
  ForImages(batch, [&](int64_t i) {
    run(dy + i * channels, pixels, channels, dx + i * pixels * channels);
  });
}
template <>
void AveragePoolBackward(const bf16* dy, int64_t batch, int64_t pixels, int64_t channels,
                         bf16* dx) {
  const auto run = HWY_DYNAMIC_DISPATCH(SpreadImageBf16);
  ForImages(batch, [&](int64_t i) {
    run(dy + i * channels, pixels, channels, dx + i * pixels * channels);
  });
}

template <typename T>
static void LookUp(const uint8_t* x, int64_t pixels, int64_t channels, const T* table, T* y) {
  constexpr int64_t kGrain = 4096;
  ParallelFor(0, pixels, kGrain, [&](int64_t first, int64_t last) {
    for (int64_t at = first * channels; at < last * channels; at += channels) {
      for (int64_t c = 0; c < channels; ++c) y[at + c] = table[256 * c + x[at + c]];
    }
  });
}

template <>
void LookUpChannels(const uint8_t* x, int64_t pixels, int64_t channels, const float* table,
                    float* y) {
  LookUp(x, pixels, channels, table, y);
}
template <>
void LookUpChannels(const uint8_t* x, int64_t pixels, int64_t channels, const bf16* table,
                    bf16* y) {
  LookUp(x, pixels, channels, table, y);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
