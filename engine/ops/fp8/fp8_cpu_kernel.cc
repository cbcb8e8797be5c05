#include "engine/ops/fp8/fp8_cpu_kernel.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/kernels/cpu/parallel.h"

namespace milepost::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

const bf16* RowOf(const Stacked& x, int64_t row) {
  int part = 0;
  while (part + 1 < kMostStacked && row >= x.first_row[part + 1]) ++part;
  return x.parts[part] + (row - x.first_row[part]) * x.columns;
}

// One tile. Returns its largest magnitude, at least `amax`.
template <typename Code>
float QuantizeTile(const Stacked& x, int64_t row, int64_t column, float scale, float amax,
                   Code* codes, Code* codes_t) {
  const int64_t rows = std::min(kFp8TileRows, x.rows - row);
  const int64_t columns = std::min(kFp8TileColumns, x.columns - column);
  for (int64_t r = 0; r < rows; ++r) {
    const bf16* from = RowOf(x, row + r) + column;
    Code made[kFp8TileColumns];
    for (int64_t c = 0; c < columns; ++c) {
      const float value = ToFloat(from[c]);
      const float magnitude = std::fabs(value);
      amax = magnitude <= amax ? amax : magnitude < kInfinity ? magnitude : kInfinity;
      made[c] = FromFloat<Code>(value * scale);
    }
    if (codes != nullptr) std::copy_n(made, columns, codes + (row + r) * x.columns + column);
    if (codes_t == nullptr) continue;
    for (int64_t c = 0; c < columns; ++c) codes_t[(column + c) * x.rows + row + r] = made[c];
  }
  return amax;
}

}  // namespace

template <typename Code>
void Quantize(const Stacked& x, const float* record, bool first, Code* codes, Code* codes_t,
              float* slots) {
  const int64_t across = (x.columns + kFp8TileColumns - 1) / kFp8TileColumns;
  const int64_t tiles = (x.rows + kFp8TileRows - 1) / kFp8TileRows * across;
  ParallelFor(0, kAmaxSlots, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      float amax = first || slots == nullptr ? 0 : slots[slot];
      for (int64_t tile = slot; tile < tiles; tile += kAmaxSlots) {
        amax = QuantizeTile(x, tile / across * kFp8TileRows, tile % across * kFp8TileColumns,
                            record[kScale], amax, codes, codes_t);
      }
      if (slots != nullptr) slots[slot] = amax;
    }
  });
}

float AmaxOf(const float* slots) { return *std::max_element(slots, slots + kAmaxSlots); }

template <typename Code>
void Dequantize(const Code* codes, int64_t n, const float* record, bf16* out) {
  bf16 table[256];
  for (int i = 0; i < 256; ++i) {
    table[i] = ToBf16(ToFloat(Code{static_cast<uint8_t>(i)}) * record[kInverse]);
  }
  ParallelFor(0, n, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = table[codes[i].bits];
  });
}

#define MP_INSTANTIATE(Code)                                                        \
  template void Quantize(const Stacked&, const float*, bool, Code*, Code*, float*); \
  template void Dequantize(const Code*, int64_t, const float*, bf16*)
MP_INSTANTIATE(e4m3);
MP_INSTANTIATE(e5m2);
#undef MP_INSTANTIATE

}  // namespace milepost::kernels
