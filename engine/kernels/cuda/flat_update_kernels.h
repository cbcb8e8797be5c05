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

// A thread changes four times four elements, in accesses of whole lines of memory. Where values are
// rounded at random, a warp has 512 neighbouring elements at a time. Four Philox calls give a
// thread the words of sixteen elements that are 16 apart, within a group of 64 of the tensor. What
// is used of the words goes to the threads that need it through shared memory.
template <typename Rule, typename T, typename S, typename P = float, typename G = float>
struct FlatUpdateKernel {
  static constexpr int kStates = Rule::kStates;
  static constexpr bool kRoundsMaster = sizeof(P) == 2;
  static constexpr bool kRoundsStates = sizeof(S) == 2;
  // Random roundings of an element.
  static constexpr int kRoundings = (kRoundsMaster ? 1 : 0) + (kRoundsStates ? kStates : 0);
  static constexpr bool kRounds = kRoundings > 0;
  static constexpr int kThreads = kRoundings > 4 ? 128 : 256;  // for the words to fit
  static constexpr int kWarps = kThreads / kWarp;
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
    // Where anything is rounded, all threads of a warp go on, or none.
    const int64_t first = kRounds ? c.warp() * 16 * kWarp : c.thread() * 4;
    for (int64_t at = group + first; at < end; at += kThreads * 16) {
      DrawHalves(c, s, f, static_cast<uint64_t>(at + f.element_offset));
      Sixteen(c, s, f, control.gradient_scale, at, begin, end);
    }
  }

 private:
  // The upper halves of the random words of four neighbouring elements.
  using Halves = Pack<uint16_t, 4>;
  // A warp's, for one rounding: 16 for each of 8 groups of 64 elements, apart so that the threads
  // that write at once meet different banks.
  static constexpr int kGroupHalves = 16 + 4;
  static constexpr int kWarpHalves = 8 * kGroupHalves;
  static_assert(kWarps * kRoundings * kWarpHalves * sizeof(Halves) <= 48 << 10,
                "a block's static shared memory");

  template <typename Context>
  MP_DEVICE static auto Shared(Context& c) {
    return c.template Shared<Halves, kWarps * kRoundings * kWarpHalves, 0>();
  }

  template <typename Context>
  MP_DEVICE static void DrawHalves(Context& c, const StepFactors& s, const SegmentFactors& f,
                                   uint64_t element) {
    if constexpr (kRounds) {
      c.SyncWarp();  // the last ones have been read
      const int lane = c.lane();
      element += lane / 4 * 64 + lane % 4 * 4;
      const int at = lane / 4 * kGroupHalves + lane % 4;
      if constexpr (kRoundsMaster) Draw(c, s, f.round_master, 0, at, element);
      if constexpr (kRoundsStates) {
        MP_UNROLL
        for (int n = 0; n < kStates; ++n) {
          Draw(c, s, f.round_states[n], n + (kRoundsMaster ? 1 : 0), at, element);
        }
      }
      c.SyncWarp();
    }
  }

  template <typename Context>
  MP_DEVICE static void Draw(Context& c, const StepFactors& s, const RandomKey& key, int rounding,
                             int at, uint64_t element) {
    RandomWords calls[4];  // word j of call k is that of element 16 j + k
    MP_UNROLL
    for (int k = 0; k < 4; ++k) calls[k] = WordsOf(element + k, s.step, key);
    auto shared = Shared(c);
    MP_UNROLL
    for (int j = 0; j < 4; ++j) {
      Halves halves;
      MP_UNROLL
      for (int k = 0; k < 4; ++k) halves.v[k] = static_cast<uint16_t>(calls[k][j] >> 16);
      shared.Set((c.warp() * kRoundings + rounding) * kWarpHalves + at + 4 * j, halves);
    }
  }

  template <typename Context, typename V>
  MP_DEVICE static void StoreRounded(Context& c, V* to, const float (&values)[4], int rounding,
                                     int j, int64_t count) {
    if constexpr (sizeof(V) == 2) {
      const int group = 2 * j + c.lane() / 16;
      const Halves halves = Shared(c).Get((c.warp() * kRoundings + rounding) * kWarpHalves +
                                          group * kGroupHalves + c.lane() % 16);
      Pack<bf16, 4> rounded;
      MP_UNROLL
      for (int k = 0; k < 4; ++k) rounded.v[k] = RoundAtRandom(values[k], halves.v[k]);
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

  // Four times four elements.
  template <typename Context>
  MP_DEVICE void Sixteen(Context& c, const StepFactors& s, const SegmentFactors& f, float scale,
                         int64_t at, int64_t begin, int64_t end) const {
    MP_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int64_t i = at + 4 * (kRounds ? kWarp * j + c.lane() : kThreads * j);
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
        StoreRounded(c, a.states[n] + i, states[n].v, n + (kRoundsMaster ? 1 : 0), j, count);
      }
      StoreRounded(c, a.p + i, p.v, 0, j, count);
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
