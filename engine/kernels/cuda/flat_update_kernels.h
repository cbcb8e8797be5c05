// The kernel behind optimizers that change each element by itself. A rule changes one: Apply(step,
// segment, gradient scale, g, p, states), with kStates states. Its operations and the fused ones
// are the CPU's, in order.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_FLAT_UPDATE_KERNELS_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_FLAT_UPDATE_KERNELS_H_

#include <cstdint>

#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/flat_update.h"
#include "engine/kernels/cuda/random.h"

namespace milepost::kernels::cuda {

// A thread has four times four elements. Where anything is rounded at random these are 16 apart
// within a group of 64 of the tensor: those whose random words four Philox calls give.
template <typename Rule, typename T, typename S, typename P = float, typename G = float>
struct FlatUpdateKernel {
  static constexpr int kThreads = 256;
  static constexpr bool kRoundsMaster = sizeof(P) == 2;
  static constexpr bool kRoundsStates = sizeof(S) == 2;
  static constexpr bool kRounds = kRoundsMaster || kRoundsStates;
  FlatUpdate<T, S, P, G> a;

  Grid grid() const { return {.x = a.chunk_count}; }

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const UpdateControl control = c.Load(a.control);
    if (control.skip != 0) return;
    const FlatChunk chunk = c.Load(a.chunks + c.block());
    const SegmentFactors f = c.Load(a.factors + chunk.segment);
    const StepFactors s = c.Load(a.step);
    const int64_t begin = chunk.begin, end = begin + chunk.count;
    // Of the tensor's group of 64 in which the chunk begins.
    const int64_t group = begin - (begin + f.element_offset) % 64;
    // Where nothing is rounded neighbours have neighbouring elements: whole lines of memory.
    const int64_t first = kRounds ? c.thread() / 4 * 64 + c.thread() % 4 * 4 : c.thread() * 4;
    constexpr int kApart = kRounds ? 16 : kThreads * 4;
    for (int64_t at = group + first; at < end; at += kThreads * 16) {
      Sixteen<kApart>(c, s, f, control.gradient_scale, at, begin, end);
    }
  }

 private:
  // Words of a thread's elements: word j of call k is that of element 16 j + k.
  struct Words {
    RandomWords calls[4];
  };
  MP_DEVICE static Words WordsFrom(uint64_t element, uint64_t step, const RandomKey& key) {
    Words words;
    MP_UNROLL
    for (int k = 0; k < 4; ++k) words.calls[k] = WordsOf(element + k, step, key);
    return words;
  }

  template <typename Context, typename V>
  MP_DEVICE static void StoreRounded(Context& c, V* to, const float (&values)[4],
                                     const Words& words, int j, int64_t count) {
    if constexpr (sizeof(V) == 2) {
      Pack<bf16, 4> rounded;
      MP_UNROLL
      for (int k = 0; k < 4; ++k) rounded.v[k] = RoundAtRandom(values[k], words.calls[k][j]);
      if (count >= 4) {
        c.Store(reinterpret_cast<Pack<bf16, 4>*>(to), rounded);
      } else {
        MP_UNROLL
        for (int k = 0; k < 4; ++k) {
          if (k < count) c.Store(to + k, rounded.v[k]);
        }
      }
    } else {
      WriteUpTo(c, to, values, count);
    }
  }

  // Four times four elements, kApart from each other.
  template <int kApart, typename Context>
  MP_DEVICE void Sixteen(Context& c, const StepFactors& s, const SegmentFactors& f, float scale,
                         int64_t at, int64_t begin, int64_t end) const {
    constexpr int kStates = Rule::kStates;
    Words p_words, state_words[kStates];
    const auto element = static_cast<uint64_t>(at + f.element_offset);
    if constexpr (kRoundsMaster) p_words = WordsFrom(element, s.step, f.round_master);
    if constexpr (kRoundsStates) {
      MP_UNROLL
      for (int n = 0; n < kStates; ++n) {
        state_words[n] = WordsFrom(element, s.step, f.round_states[n]);
      }
    }
    MP_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int64_t i = at + kApart * j;
      if (i < begin || i >= end) continue;
      const int64_t count = end - i;
      const auto g = ReadUpTo<4>(c, a.g + i, count);
      auto p = ReadUpTo<4>(c, a.p + i, count);
      Floats<4> states[kStates];
      MP_UNROLL
      for (int n = 0; n < kStates; ++n) states[n] = ReadUpTo<4>(c, a.states[n] + i, count);
      MP_UNROLL
      for (int k = 0; k < 4; ++k) {
        float own[kStates];
        MP_UNROLL
        for (int n = 0; n < kStates; ++n) own[n] = states[n].v[k];
        Rule::Apply(s, f, scale, g.v[k], p.v[k], own);
        MP_UNROLL
        for (int n = 0; n < kStates; ++n) states[n].v[k] = own[n];
      }
      MP_UNROLL
      for (int n = 0; n < kStates; ++n) {
        StoreRounded(c, a.states[n] + i, states[n].v, state_words[n], j, count);
      }
      StoreRounded(c, a.p + i, p.v, p_words, j, count);
      if (a.copy != nullptr) WriteUpTo(c, a.copy + i, p.v, count);
    }
  }
};

// The types of parameters, states, masters and gradients that there are: MP_FLAT_UPDATE(T, S, P,
// G).
#define MP_FOR_FLAT_UPDATES(MP_FLAT_UPDATE)   \
  MP_FLAT_UPDATE(float, float, float, float); \
  MP_FLAT_UPDATE(bf16, float, float, float);  \
  MP_FLAT_UPDATE(f16, float, float, float);   \
  MP_FLAT_UPDATE(float, bf16, float, float);  \
  MP_FLAT_UPDATE(bf16, bf16, float, float);   \
  MP_FLAT_UPDATE(f16, bf16, float, float);    \
  MP_FLAT_UPDATE(bf16, float, bf16, float);   \
  MP_FLAT_UPDATE(bf16, bf16, bf16, float);    \
  MP_FLAT_UPDATE(bf16, float, float, bf16);   \
  MP_FLAT_UPDATE(bf16, bf16, float, bf16);    \
  MP_FLAT_UPDATE(bf16, float, bf16, bf16);    \
  MP_FLAT_UPDATE(bf16, bf16, bf16, bf16)

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_FLAT_UPDATE_KERNELS_H_
