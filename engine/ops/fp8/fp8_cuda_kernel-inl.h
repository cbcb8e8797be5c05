// The kernels behind fp8_cuda_kernel.h.
#ifndef MILEPOST_ENGINE_OPS_FP8_FP8_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_FP8_FP8_CUDA_KERNEL_INL_H_

#include <cstdint>
#include <limits>

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/flat.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/fp8/fp8_contract.h"

#if defined(__CUDACC__)
#include <cuda_fp8.h>
#endif

namespace milepost::kernels::cuda {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// FromFloat<Code>, by the device's own instruction (CUDA Math API, "FP8 Conversion"), which rounds
// and saturates like it, but takes an infinity for a large number.
template <typename Code>
MP_DEVICE Code CodeOf(float value) {
#if defined(__CUDA_ARCH__)
  constexpr auto kFormat = kDTypeOf<Code> == DType::kE4M3 ? __NV_E4M3 : __NV_E5M2;
  const bool finite = fabsf(value) < kInfinity;
  return {finite ? __nv_cvt_float_to_fp8(value, __NV_SATFINITE, kFormat) : kFp8NaN};
#else
  return FromFloat<Code>(value);
#endif
}

// A block takes the tiles of its slot: 8 threads a row, 8 elements each; then, through shared
// memory, 8 threads a column, 16 each. Both ways a tile has 128 bytes side by side.
template <typename Code>
struct QuantizeKernel {
  static constexpr int kThreads = 256;
  static constexpr int kRows = static_cast<int>(kFp8TileRows);
  static constexpr int kColumns = static_cast<int>(kFp8TileColumns);
  static constexpr int kRead = 8;                              // elements
  static constexpr int kReaders = kColumns / kRead;            // of a row
  static constexpr int kOnEach = kRows * kReaders / kThreads;  // rows of a thread
  static constexpr int kWrite = 16;                            // elements
  static constexpr int kWriters = kRows / kWrite;              // of a column
  static constexpr int kColumnsAtOnce = kThreads / kWriters;
  static constexpr int kColumn = kRows / 4 + 1;  // words: neighbours in other banks
  static_assert(kOnEach == 4);                   // the bytes of a word
  static constexpr int kTileTag = 0;
  static constexpr int kAmaxTag = 1;
  Stacked x;
  const float* record;
  bool first;
  Code* codes;
  Code* codes_t;
  float* slots;

  Grid grid() const {
    const int64_t tiles = CeilDiv(x.rows, kRows) * CeilDiv(x.columns, kColumns);
    return {.x = tiles < kAmaxSlots ? tiles : kAmaxSlots};
  }

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const float scale = c.Load(record + kScale);
    const int64_t wide = (x.columns + kColumns - 1) / kColumns;
    const int64_t tiles = (x.rows + kRows - 1) / kRows * wide;
    float amax = 0;
    for (int64_t tile = c.block(); tile < tiles; tile += c.blocks()) {
      amax = fmaxf(amax, Tile(c, tile / wide * kRows, tile % wide * kColumns, scale));
    }
    if (slots != nullptr) PutAmax(c, amax);
  }

 private:
  // Picked without an index, which would put the parts into local memory.
  MP_DEVICE const bf16* RowOf(int64_t row) const {
    const bool third = row >= x.first_row[2], second = row >= x.first_row[1];
    const bf16* part = third ? x.parts[2] : second ? x.parts[1] : x.parts[0];
    const int64_t begin = third ? x.first_row[2] : second ? x.first_row[1] : x.first_row[0];
    return part + (row - begin) * x.columns;
  }

  template <typename Context>
  MP_DEVICE float Tile(Context& c, int64_t row, int64_t column, float scale) const {
    auto turned = c.template Shared<uint32_t, kColumns * kColumn, kTileTag>();
    const int read = c.thread() % kReaders * kRead, four = c.thread() / kReaders;
    const bool within = column + read < x.columns && row + four * kOnEach < x.rows;
    // All of a thread's reads are under way before the first of its writes, which might be to the
    // same place for all that the compiler knows.
    Pack<bf16, kRead> values[kOnEach];
    MP_UNROLL
    for (int k = 0; k < kOnEach; ++k) {
      if (!within) continue;
      const bf16* from = RowOf(row + four * kOnEach + k) + column + read;
      values[k] = c.Load(reinterpret_cast<const Pack<bf16, kRead>*>(from));
    }
    float amax = 0;
    uint32_t words[kRead] = {};
    MP_UNROLL
    for (int k = 0; k < kOnEach; ++k) {
      if (!within) continue;
      Pack<Code, kRead> made;
      MP_UNROLL
      for (int i = 0; i < kRead; ++i) {
        const float value = Widen(values[k].v[i]), magnitude = fabsf(value);
        amax = magnitude <= amax ? amax : magnitude < kInfinity ? magnitude : kInfinity;  // or NaN
        made.v[i] = CodeOf<Code>(value * scale);
        words[i] |= static_cast<uint32_t>(made.v[i].bits) << (8 * k);
      }
      if (codes == nullptr) continue;
      Code* to = codes + (row + four * kOnEach + k) * x.columns + column + read;
      c.Store(reinterpret_cast<Pack<Code, kRead>*>(to), made);
    }
    if (codes_t == nullptr) return amax;
    MP_UNROLL
    for (int i = 0; i < kRead; ++i) turned.Set((read + i) * kColumn + four, words[i]);
    c.Sync();
    const int write = c.thread() % kWriters * kWrite;
    MP_UNROLL
    for (int k = 0; k < kColumns / kColumnsAtOnce; ++k) {
      const int turned_row = c.thread() / kWriters + k * kColumnsAtOnce;
      if (column + turned_row >= x.columns || row + write >= x.rows) continue;
      Pack<uint32_t, kWrite / 4> made;
      MP_UNROLL
      for (int i = 0; i < kWrite / 4; ++i) {
        made.v[i] = turned.Get(turned_row * kColumn + write / 4 + i);
      }
      Code* to = codes_t + (column + turned_row) * x.rows + row + write;
      c.Store(reinterpret_cast<Pack<uint32_t, kWrite / 4>*>(to), made);
    }
    c.Sync();
    return amax;
  }

  // The block's slot, and those that have no block.
  template <typename Context>
  MP_DEVICE void PutAmax(Context& c, float amax) const {
    amax = WarpMax(c, amax);
    auto parts = c.template Shared<float, kThreads / kWarp, kAmaxTag>();
    if (c.lane() == 0) parts.Set(c.warp(), amax);
    c.Sync();
    if (c.thread() > 0) return;
    for (int i = 1; i < kThreads / kWarp; ++i) amax = fmaxf(amax, parts.Get(i));
    float* slot = slots + c.block();
    c.Store(slot, first ? amax : fmaxf(amax, c.Load(slot)));
    if (!first) return;
    for (int64_t s = c.block() + c.blocks(); s < kAmaxSlots; s += c.blocks()) {
      c.Store(slots + s, 0.0f);
    }
  }
};

template <typename Context>
MP_DEVICE float AmaxOfSlots(Context& c, const float* slots) {
  float amax = 0;
  for (int i = c.lane(); i < kAmaxSlots; i += kWarp) amax = fmaxf(amax, c.Load(slots + i));
  return WarpMax(c, amax);
}

// A warp.
struct CalibrateScalingKernel {
  static constexpr int kThreads = kWarp;
  const float* slots;
  float* record;

  Grid grid() const { return {.x = 1}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const float amax = AmaxOfSlots(c, slots);
    if (c.thread() > 0) return;
    float made[kScalingFloats] = {};
    made[kInverse] = c.Load(record + kInverse);
    made[kScale] = c.Load(record + kScale);
    made[kLargest] = c.Load(record + kLargest);
    SetScale(amax, made);
    c.Store(record + kInverse, made[kInverse]);
    c.Store(record + kScale, made[kScale]);
  }
};

// A warp a tensor.
struct CollectAmaxesKernel {
  static constexpr int kThreads = kWarp;
  const float* slots;
  int64_t tensors;
  float* amaxes;

  Grid grid() const { return {.x = tensors}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const float amax = AmaxOfSlots(c, slots + c.block() * kAmaxSlots);
    if (c.thread() == 0) c.Store(amaxes + c.block(), amax);
  }
};

// A warp a tensor, a lane a number of its record.
struct UpdateScalingsKernel {
  static constexpr int kThreads = kWarp;
  static_assert(kScalingFloats == kWarp);
  const float* amaxes;  // [ranks, tensors]
  int64_t ranks;
  int64_t tensors;
  const UpdateControl* control;
  float* records;

  Grid grid() const { return {.x = tensors}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    if (c.Load(control).skip != 0) return;
    float amax = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      amax = fmaxf(amax, c.Load(amaxes + rank * tensors + c.block()));
    }
    float* record = records + c.block() * kScalingFloats;
    float own = c.Load(record + c.lane());
    if (!(amax <= 3.4028235e38f)) return;  // the same in every lane
    const int next = static_cast<int>(c.Shuffle(own, kNextAmax));
    if (c.lane() == kFirstAmax + next) own = amax;
    const bool kept = c.lane() >= kFirstAmax && c.lane() < kFirstAmax + kAmaxHistory;
    const float most = WarpMax(c, kept ? own : 0.0f);
    float made[kFirstAmax] = {c.Shuffle(own, kInverse), c.Shuffle(own, kScale), 0,
                              c.Shuffle(own, kLargest)};
    SetScale(most, made);
    if (c.lane() == kInverse) own = made[kInverse];
    if (c.lane() == kScale) own = made[kScale];
    if (c.lane() == kNextAmax) own = static_cast<float>((next + 1) % kAmaxHistory);
    c.Store(record + c.lane(), own);
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_FP8_FP8_CUDA_KERNEL_INL_H_
