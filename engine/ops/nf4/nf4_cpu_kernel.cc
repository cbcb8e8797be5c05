#include "engine/ops/nf4/nf4_cpu_kernel.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "common/status_macros.h"
#include "engine/dtype/half.h"
#include "engine/dtype/nf4.h"
#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/nf4/nf4_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

constexpr int kCodes = 16;

// The scale of 64 elements; their codes to `codes`, two to a byte.
float PackBlockImpl(const float* values, uint8_t* codes) {
  const DF d;
  const DI32 di;
  const VF infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  VF most = hn::Zero(d);
  for (int64_t i = 0; i < kNf4Block; i += hn::Lanes(d)) {
    const VF magnitude = hn::Abs(hn::LoadU(d, values + i));
    // What is no number is as good as infinite.
    most = hn::Max(most, hn::IfThenElse(hn::Lt(magnitude, infinity), magnitude, infinity));
  }
  const float scale = hn::GetLane(hn::MaxOfLanes(d, most));
  std::memset(codes, kNf4Zero << 4 | kNf4Zero, kNf4Block / 2);
  if (scale == 0) return scale;
  alignas(64) int32_t each[kNf4Block];
  const VF inverse = hn::Set(d, 1 / scale);
  for (int64_t i = 0; i < kNf4Block; i += hn::Lanes(d)) {
    const VF value = hn::Mul(hn::LoadU(d, values + i), inverse);
    auto code = hn::Zero(di);
    for (int above = 1; above < kCodes; ++above) {
      const VF middle = hn::Set(d, (Nf4Value(above - 1) + Nf4Value(above)) / 2);
      code = hn::Sub(code, hn::BitCast(di, hn::VecFromMask(d, hn::Gt(value, middle))));
    }
    hn::Store(code, di, each + i);
  }
  for (int64_t i = 0; i < kNf4Block / 2; ++i) {
    codes[i] = static_cast<uint8_t>(each[2 * i] << 4 | each[2 * i + 1]);
  }
  return scale;
}

// A whole block's 64 elements.
template <typename T>
void UnpackBlockAs(const uint8_t* codes, float scale, T* out) {
  static constexpr auto kValues = Nf4Values();
  const DF d;
  alignas(64) T values[kCodes];
  for (int64_t i = 0; i < kCodes; i += hn::Lanes(d)) {
    StoreF(hn::Mul(hn::LoadU(d, kValues.data() + i), hn::Set(d, scale)), d, values + i);
  }
#if HWY_TARGET == HWY_SCALAR
  for (int64_t i = 0; i < kNf4Block / 2; ++i) {
    out[2 * i] = values[codes[i] >> 4];
    out[2 * i + 1] = values[codes[i] & 15];
  }
#else
  alignas(16) uint8_t low[kCodes], high[kCodes];
  for (int i = 0; i < kCodes; ++i) {
    low[i] = static_cast<uint8_t>(values[i].bits);
    high[i] = static_cast<uint8_t>(values[i].bits >> 8);
  }
  const hn::FixedTag<uint8_t, kCodes> bytes;
  const auto lows = hn::Load(bytes, low), highs = hn::Load(bytes, high);
  auto* to = reinterpret_cast<uint8_t*>(out);
  const auto put = [&](hn::Vec<decltype(bytes)> code) MP_SIMD {
    const auto a = hn::TableLookupBytes(lows, code), b = hn::TableLookupBytes(highs, code);
    hn::StoreU(hn::InterleaveLower(bytes, a, b), bytes, to);
    hn::StoreU(hn::InterleaveUpper(bytes, a, b), bytes, to + kCodes);
    to += 2 * kCodes;
  };
  for (int64_t i = 0; i < kNf4Block / 2; i += kCodes) {
    const auto both = hn::LoadU(bytes, codes + i);
    const auto first = hn::ShiftRight<4>(both), second = hn::And(both, hn::Set(bytes, 15));
    put(hn::InterleaveLower(bytes, first, second));
    put(hn::InterleaveUpper(bytes, first, second));
  }
#endif
}
void UnpackBlockBf16(const uint8_t* codes, float scale, bf16* out) {
  UnpackBlockAs(codes, scale, out);
}
void UnpackBlockF16(const uint8_t* codes, float scale, f16* out) {
  UnpackBlockAs(codes, scale, out);
}

}  // namespace
}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {
namespace {

HWY_EXPORT(PackBlockImpl);
HWY_EXPORT(UnpackBlockBf16);
HWY_EXPORT(UnpackBlockF16);

constexpr int64_t kPieceBlocks = (1 << 20) / kNf4Block;
constexpr int64_t kScaleBytes = sizeof(float);

// Bytes of a packed tensor, where its codes and scales are wanted.
struct PackedRange {
  int64_t begin;
  int64_t end;
  uint8_t* out;  // where `begin` goes

  void Put(int64_t at, const void* bytes, int64_t count) const {
    const int64_t from = std::max(at, begin), to = std::min(at + count, end);
    if (from >= to) return;
    std::memcpy(out + (from - begin), static_cast<const uint8_t*>(bytes) + (from - at),
                static_cast<size_t>(to - from));
  }
};

// The scale of a block, which may be a tensor's unfinished last one; its codes to `codes`.
float PackBlock(const float* values, int64_t count, uint8_t* codes) {
  const auto pack = HWY_DYNAMIC_DISPATCH(PackBlockImpl);
  if (count == kNf4Block) return pack(values, codes);
  float whole[kNf4Block] = {};
  std::copy_n(values, count, whole);
  return pack(whole, codes);
}

// Blocks [first, last) of a tensor, whose elements are at `values`.
void PackBlocks(int64_t elements, int64_t first, int64_t last, const float* values,
                const PackedRange& range) {
  ParallelFor(first, last, 64, [&](int64_t from, int64_t to) {
    for (int64_t block = from; block < to; ++block) {
      const int64_t begin = block * kNf4Block;
      const int64_t count = std::min(kNf4Block, elements - begin);
      uint8_t codes[kNf4Block / 2];
      const float scale = PackBlock(values + (begin - first * kNf4Block), count, codes);
      range.Put(begin / 2, codes, kNf4Block / 2);
      range.Put(Nf4ScalesAt(elements) + block * kScaleBytes, &scale, kScaleBytes);
    }
  });
}

void UnpackBlock(const uint8_t* codes, float scale, float* out) {
  static constexpr auto kValues = Nf4Values();
  for (int64_t i = 0; i < kNf4Block / 2; ++i) {
    out[2 * i] = kValues[codes[i] >> 4] * scale;
    out[2 * i + 1] = kValues[codes[i] & 15] * scale;
  }
}
void UnpackBlock(const uint8_t* codes, float scale, bf16* out) {
  HWY_DYNAMIC_DISPATCH(UnpackBlockBf16)(codes, scale, out);
}
void UnpackBlock(const uint8_t* codes, float scale, f16* out) {
  HWY_DYNAMIC_DISPATCH(UnpackBlockF16)(codes, scale, out);
}

}  // namespace

absl::Status PackNf4(int64_t elements, int64_t begin, int64_t end, const ReadElements& read,
                     uint8_t* out) {
  const int64_t scales = Nf4ScalesAt(elements), blocks = Nf4Blocks(elements);
  const PackedRange range = {begin, end, out};
  // Blocks of which codes are wanted, and scales.
  constexpr int64_t kCodeBytes = kNf4Block / 2;
  const int64_t codes_begin = std::min(begin / kCodeBytes, blocks);
  const int64_t codes_end =
      begin >= scales ? codes_begin
                      : std::min((std::min(end, scales) + kCodeBytes - 1) / kCodeBytes, blocks);
  const int64_t scales_begin = std::max<int64_t>(begin - scales, 0) / kScaleBytes;
  const int64_t scales_end = std::max<int64_t>(end - scales + kScaleBytes - 1, 0) / kScaleBytes;
  std::vector<float> values;
  const auto wanted = [&](int64_t block) {
    return (block >= codes_begin && block < codes_end) ||
           (block >= scales_begin && block < scales_end);
  };
  for (int64_t block = 0; block < blocks;) {
    if (!wanted(block)) {
      ++block;
      continue;
    }
    int64_t last = block + 1;
    while (last < blocks && last - block < kPieceBlocks && wanted(last)) ++last;
    const int64_t first_element = block * kNf4Block;
    const int64_t last_element = std::min(last * kNf4Block, elements);
    values.resize(static_cast<size_t>(last_element - first_element));
    MP_RETURN_IF_ERROR(read(first_element, last_element, values.data()));
    PackBlocks(elements, block, last, values.data(), range);
    block = last;
  }
  return absl::OkStatus();
}

template <typename T>
void UnpackNf4(const uint8_t* packed, int64_t elements, T* out) {
  const uint8_t* scales = packed + Nf4ScalesAt(elements);
  ParallelFor(0, Nf4Blocks(elements), 64, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      float scale = 0;
      std::memcpy(&scale, scales + block * kScaleBytes, sizeof(scale));
      const uint8_t* codes = packed + block * kNf4Block / 2;
      const int64_t begin = block * kNf4Block;
      const int64_t count = std::min(kNf4Block, elements - begin);
      T whole[kNf4Block];
      const bool direct = count == kNf4Block;
      UnpackBlock(codes, scale, direct ? out + begin : whole);  // codes fill whole blocks
      if (!direct) std::copy_n(whole, count, out + begin);
    }
  });
}
template void UnpackNf4(const uint8_t*, int64_t, float*);
template void UnpackNf4(const uint8_t*, int64_t, bf16*);
template void UnpackNf4(const uint8_t*, int64_t, f16*);

void RoundToNf4(float* values, int64_t count) {
  ParallelFor(0, Nf4Blocks(count), 64, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      float* at = values + block * kNf4Block;
      const int64_t elements = std::min(kNf4Block, count - block * kNf4Block);
      uint8_t codes[kNf4Block / 2];
      float whole[kNf4Block];
      const float scale = PackBlock(at, elements, codes);
      UnpackBlock(codes, scale, whole);
      std::copy_n(whole, elements, at);
    }
  });
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
