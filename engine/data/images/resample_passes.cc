#include "engine/data/images/resample_passes.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/data/images/resample_passes.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::data::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
constexpr int32_t kHalf = 1 << (kWeightBits - 1);

uint8_t Byte(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255)); }

void ExactPixel(const uint8_t* in, const int32_t* weights, int64_t count, uint8_t* out) {
  int32_t sums[3] = {kHalf, kHalf, kHalf};
  for (int64_t k = 0; k < count; ++k) {
    for (int c = 0; c < 3; ++c) sums[c] += in[k * 3 + c] * weights[k];
  }
  for (int c = 0; c < 3; ++c) out[c] = Byte(sums[c]);
}

#if HWY_TARGET != HWY_SCALAR
void FastPixel(const uint8_t* in, const int32_t* weights, int64_t count, uint8_t* out) {
  const hn::FixedTag<int32_t, 4> d32;  // one pixel and a byte of the next
  const hn::FixedTag<uint8_t, 4> d8;
  auto sum = hn::Set(d32, kHalf);
  for (int64_t k = 0; k < count; ++k) {
    const auto value = hn::PromoteTo(d32, hn::LoadU(d8, in + k * 3));
    sum = hn::Add(sum, hn::Mul(value, hn::Set(d32, weights[k])));
  }
  hn::StoreU(hn::DemoteTo(d8, hn::ShiftRight<kWeightBits>(sum)), d8, out);
}
#endif

void Row(const uint8_t* in, const Resampler::Weights& weights, int64_t width, bool flip,
         bool exact_end, uint8_t* out) {
  for (int64_t i = 0; i < width;
       ++i) {  // upwards: the fourth byte is overwritten by the next pixel
    const auto at = static_cast<size_t>(flip ? width - 1 - i : i);
    const uint8_t* pixel = in + weights.first[at] * 3;
    const int32_t* values = weights.values.data() + at * static_cast<size_t>(weights.taps);
#if HWY_TARGET != HWY_SCALAR
    if (!exact_end) {
      FastPixel(pixel, values, weights.count[at], out + i * 3);
      continue;
    }
#endif
    ExactPixel(pixel, values, weights.count[at], out + i * 3);
  }
}

void Column(const uint8_t* in, const int32_t* weights, int64_t count, int64_t bytes, uint8_t* out) {
  const hn::ScalableTag<int32_t> d32;
  const hn::Rebind<uint8_t, decltype(d32)> d8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d32));
  int64_t i = 0;
  for (; i + lanes <= bytes; i += lanes) {
    auto sum = hn::Set(d32, kHalf);
    for (int64_t k = 0; k < count; ++k) {
      const auto value = hn::PromoteTo(d32, hn::LoadU(d8, in + k * bytes + i));
      sum = hn::Add(sum, hn::Mul(value, hn::Set(d32, weights[k])));
    }
    hn::StoreU(hn::DemoteTo(d8, hn::ShiftRight<kWeightBits>(sum)), d8, out + i);
  }
  for (; i < bytes; ++i) {
    int32_t sum = kHalf;
    for (int64_t k = 0; k < count; ++k) sum += in[k * bytes + i] * weights[k];
    out[i] = Byte(sum);
  }
}

}  // namespace
}  // namespace milepost::data::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::data {

HWY_EXPORT(Row);
HWY_EXPORT(Column);

void ResampleRow(const uint8_t* in, const Resampler::Weights& weights, int64_t width, bool flip,
                 bool exact_end, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(Row)(in, weights, width, flip, exact_end, out);
}

void ResampleColumn(const uint8_t* in, const int32_t* weights, int64_t count, int64_t bytes,
                    uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(Column)(in, weights, count, bytes, out);
}

}  // namespace milepost::data
#endif  // HWY_ONCE
