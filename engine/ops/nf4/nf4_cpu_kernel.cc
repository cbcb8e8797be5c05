#include "engine/ops/nf4/nf4_cpu_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/status_macros.h"
#include "engine/dtype/half.h"
#include "engine/dtype/nf4.h"
#include "engine/kernels/cpu/parallel.h"

namespace milepost::kernels {
namespace {

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

// The block's scale; its codes to `codes`, two to a byte.
float PackBlock(const float* values, int64_t count, uint8_t* codes) {
  float scale = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(values[i]);
    scale = magnitude <= scale ? scale : magnitude < HUGE_VALF ? magnitude : HUGE_VALF;  // or NaN
  }
  std::memset(codes, kNf4Zero << 4 | kNf4Zero, kNf4Block / 2);
  if (scale == 0) return scale;
  uint8_t each[kNf4Block] = {};
  const float inverse = 1 / scale;
  for (int64_t i = 0; i < count; ++i) each[i] = static_cast<uint8_t>(Nf4Code(values[i] * inverse));
  std::fill(each + count, each + kNf4Block, kNf4Zero);
  for (int64_t i = 0; i < kNf4Block / 2; ++i) {
    codes[i] = static_cast<uint8_t>(each[2 * i] << 4 | each[2 * i + 1]);
  }
  return scale;
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
      T table[16];
      for (int code = 0; code < 16; ++code) table[code] = FromFloat<T>(Nf4Value(code) * scale);
      const int64_t begin = block * kNf4Block;
      const int64_t end = std::min(begin + kNf4Block, elements);
      for (int64_t i = begin; i < end; ++i) {
        out[i] = table[i % 2 == 0 ? packed[i / 2] >> 4 : packed[i / 2] & 15];
      }
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
      const float scale = PackBlock(at, elements, codes);
      for (int64_t i = 0; i < elements; ++i) {
        at[i] = Nf4Value(i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15) * scale;
      }
    }
  });
}

}  // namespace milepost::kernels
