// The kernel behind adamw_8bit_cuda_kernel.h.
#ifndef MILEPOST_ENGINE_OPTIM_ADAMW_8BIT_ADAMW_8BIT_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPTIM_ADAMW_8BIT_ADAMW_8BIT_CUDA_KERNEL_INL_H_

#include <array>
#include <cstdint>

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/flat_update_kernels.h"
#include "engine/optim/adamw/adamw_cuda_kernel-inl.h"
#include "engine/optim/adamw_8bit/adamw_8bit_cuda_kernel.h"

namespace milepost::kernels::cuda {

// The code of value / scale (CodeBorders says how).
MP_DEVICE uint8_t CodeOf(const CodeBorders& b, float value, float scale) {
  const float x = fabsf(value) / (scale > 0 ? scale : 1.0f);
  float factor = b.factor[0], parts = b.parts[0];
  MP_UNROLL
  for (int e = 1; e < 7; ++e) {
    const bool above = x > b.lower[e];
    factor = above ? b.factor[e] : factor;
    parts = above ? b.parts[e] : parts;
  }
  const float t = x * factor - parts * (1.0f / 9);
  const float i = fminf(fmaxf(ceilf(t) - 1.0f, 0.0f), parts - 1.0f);
  float index = parts - (b.first_parts - 1.0f) + i;
  if (x > b.one) index = b.most;
  if (!(x > b.lower[0])) index = 0.0f;
  if (b.with_sign) {  // 0 is code 127; there is no -1
    index = 127.0f + (value < 0.0f ? -fminf(index, 127.0f) : index);
  } else if (value > 0.0f) {
    index = fmaxf(index, 1.0f);  // a v that is not 0 never becomes 0
  }
  return static_cast<uint8_t>(static_cast<int>(index));
}

template <typename T, typename P = float, typename G = float>
struct AdamW8BitKernel {
  static constexpr int kThreads = 256;
  static constexpr int kEach = static_cast<int>(kQuantizedBlock) / kWarp;  // of a lane
  QuantizedUpdate<T, P, G> a;
  std::array<float, 256> m_codes, v_codes;
  CodeBorders m_borders, v_borders;

  Grid grid() const { return {.x = a.chunk_count}; }

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const UpdateControl control = c.Load(a.control);
    if (control.skip != 0) return;
    const auto m_table = c.template Shared<float, 256, 0>();
    const auto v_table = c.template Shared<float, 256, 1>();
    m_table.Set(c.thread(), m_codes[c.thread()]);
    v_table.Set(c.thread(), v_codes[c.thread()]);
    c.Sync();
    const FlatChunk chunk = c.Load(a.chunks + c.block());
    const SegmentFactors f = c.Load(a.factors + chunk.segment);
    const StepFactors s = c.Load(a.step);
    for (int at = c.warp() * 256; at < chunk.count; at += kThreads / kWarp * 256) {
      Block(c, m_table, v_table, s, f, control.gradient_scale, chunk.begin + at, chunk.count - at);
    }
  }

 private:
  // Codes of the lane's elements, widened; what is missing of a short block is 0.
  template <typename Context, typename Array>
  MP_DEVICE static Floats<kEach> Decode(Context& c, const Array& table, const uint8_t* codes,
                                        float scale, int count) {
    Floats<kEach> out;
    Pack<uint8_t, kEach> pack = {};
    if (count >= kEach) {
      pack = c.Load(reinterpret_cast<const Pack<uint8_t, kEach>*>(codes));
    } else {
      MP_UNROLL
      for (int k = 0; k < kEach; ++k) pack.v[k] = k < count ? c.Load(codes + k) : uint8_t{0};
    }
    MP_UNROLL
    for (int k = 0; k < kEach; ++k) out.v[k] = table.Get(pack.v[k]) * scale;
    return out;
  }

  // Quantizes the block; every lane has the elements of its own.
  template <typename Context>
  MP_DEVICE static void Encode(Context& c, const CodeBorders& borders, Floats<kEach>& x, int count,
                               uint8_t* codes, float* scale_at) {
    float largest = 0;
    MP_UNROLL
    for (int k = 0; k < kEach; ++k) {
      if (k >= count) x.v[k] = 0.0f;
      largest = fmaxf(largest, fabsf(x.v[k]));
    }
    const float scale = WarpMax(c, largest);
    Pack<uint8_t, kEach> pack;
    MP_UNROLL
    for (int k = 0; k < kEach; ++k) pack.v[k] = CodeOf(borders, x.v[k], scale);
    if (count >= kEach) {
      c.Store(reinterpret_cast<Pack<uint8_t, kEach>*>(codes), pack);
    } else {
      MP_UNROLL
      for (int k = 0; k < kEach; ++k) {
        if (k < count) c.Store(codes + k, pack.v[k]);
      }
    }
    if (c.lane() == 0) c.Store(scale_at, scale);
  }

  // At random where it is bf16: a lane's elements lie within one row of 16, so that each has a word
  // of a call of its own.
  template <typename Context>
  MP_DEVICE void StoreMaster(Context& c, const StepFactors& s, const SegmentFactors& f, int64_t i,
                             const Floats<kEach>& p, int count) const {
    if constexpr (sizeof(P) == 2) {
      const auto element = static_cast<uint64_t>(i + f.element_offset);
      Pack<bf16, kEach> rounded;
      MP_UNROLL
      for (int k = 0; k < kEach; ++k) {
        const uint32_t word = WordOf(element + k, s.step, f.round_master);
        rounded.v[k] = RoundAtRandom(p.v[k], static_cast<uint16_t>(word >> 16));
      }
      if (count >= kEach) return c.Store(reinterpret_cast<Pack<bf16, kEach>*>(a.p + i), rounded);
      MP_UNROLL
      for (int k = 0; k < kEach; ++k) {
        if (k < count) c.Store(a.p + i + k, rounded.v[k]);
      }
    } else {
      WriteUpTo(c, a.p + i, p.v, count);
    }
  }

  // The quantized block from element `begin` of the shard on, of which `count` are the tensor's.
  template <typename Context, typename Array>
  MP_DEVICE void Block(Context& c, const Array& m_table, const Array& v_table, const StepFactors& s,
                       const SegmentFactors& f, float scale, int64_t begin, int count) const {
    const int mine = count - c.lane() * kEach;
    const int64_t i = begin + c.lane() * kEach;
    const int64_t block = begin / kQuantizedBlock;
    const float m_scale = c.Load(a.state.m_scale + block);
    const float v_scale = c.Load(a.state.v_scale + block);
    c.SyncWarp();  // before lane 0 replaces them
    auto m = Decode(c, m_table, a.state.m + i, m_scale, mine);
    auto v = Decode(c, v_table, a.state.v + i, v_scale, mine);
    const auto g = ReadUpTo<kEach>(c, a.g + i, mine);
    auto p = ReadUpTo<kEach>(c, a.p + i, mine);
    MP_UNROLL
    for (int k = 0; k < kEach; ++k) AdamWRule::Apply(s, f, scale, g.v[k], p.v[k], m.v[k], v.v[k]);
    Encode(c, m_borders, m, mine, a.state.m + i, a.state.m_scale + block);
    Encode(c, v_borders, v, mine, a.state.v + i, a.state.v_scale + block);
    StoreMaster(c, s, f, i, p, mine);
    if (a.copy != nullptr) WriteUpTo(c, a.copy + i, p.v, mine);
  }
};

template <typename T, typename P = float, typename G = float>
AdamW8BitKernel<T, P, G> MakeAdamW8Bit(const QuantizedUpdate<T, P, G>& update) {
  return {update, SignedCodes(), UnsignedCodes(), SignedBorders(), UnsignedBorders()};
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPTIM_ADAMW_8BIT_ADAMW_8BIT_CUDA_KERNEL_INL_H_
