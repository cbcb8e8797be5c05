// The kernels behind experts_cuda_kernel.h.
#ifndef MILEPOST_ENGINE_OPS_EXPERTS_EXPERTS_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_EXPERTS_EXPERTS_CUDA_KERNEL_INL_H_

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/row_order_kernels.h"
#include "engine/ops/experts/experts_cuda_kernel.h"

namespace milepost::kernels::cuda {

// In generation: how many rows count.
template <typename Context>
MP_DEVICE int64_t RowsThatCount(Context& c, int64_t rows, const int64_t* last) {
  if (last == nullptr) return rows;
  const int64_t counted = c.Load(last) + 1;
  return counted < rows ? counted : rows;
}

// The softmax of a row of logits, of which each lane has every 32nd.
struct RoutingSoftmax {
  float highest, sum;

  template <typename Context, typename T>
  MP_DEVICE static RoutingSoftmax Of(Context& c, const T* logits, int64_t experts) {
    RoutingSoftmax s = {-INFINITY, 0};
    for (int64_t e = c.lane(); e < experts; e += kWarp) {
      s.highest = fmaxf(s.highest, Widen(c.Load(logits + e)));
    }
    s.highest = WarpMax(c, s.highest);
    for (int64_t e = c.lane(); e < experts; e += kWarp) {
      s.sum += expf(Widen(c.Load(logits + e)) - s.highest);
    }
    s.sum = WarpSum(c, s.sum);
    return s;
  }
  MP_DEVICE float Probability(float logit) const { return expf(logit - highest) / sum; }
};

// A row a warp: the experts behind each other by their logits, and their weights.
template <typename T>
struct PickExpertsKernel {
  static constexpr int kThreads = 256;
  ExpertRouting r;
  const int64_t* last;
  const T* logits;
  float* weights;
  int32_t* chosen;

  Grid grid() const { return {.x = CeilDiv(r.rows * kWarp, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t row = c.block() * (kThreads / kWarp) + c.warp();
    if (row >= RowsThatCount(c, r.rows, last)) return;
    const T* own = logits + row * r.experts;
    const auto softmax = RoutingSoftmax::Of(c, own, r.experts);
    Pick pick = {INFINITY, -1};
    float sum = 0;
    for (int64_t k = row * r.per_token; k < (row + 1) * r.per_token; ++k) {
      pick = Next(c, own, pick);
      const float weight = softmax.Probability(Widen(c.Load(own + pick.expert)));
      sum += weight;
      if (c.lane() != 0) continue;
      c.Store(chosen + k, pick.expert);
      c.Store(weights + k, weight);
    }
    if (!r.normalize || c.lane() != 0) return;
    for (int64_t k = row * r.per_token; k < (row + 1) * r.per_token; ++k) {
      c.Store(weights + k, c.Load(weights + k) / sum);
    }
  }

 private:
  // A NaN is the smallest number of all; of equal ones the first expert comes first.
  struct Pick {
    float logit;
    int32_t expert;
    MP_DEVICE bool Before(const Pick& other) const {
      return logit > other.logit || (logit == other.logit && expert < other.expert);
    }
  };

  // The first one behind `before`.
  template <typename Context>
  MP_DEVICE Pick Next(Context& c, const T* own, const Pick& before) const {
    Pick best = {-INFINITY, static_cast<int32_t>(r.experts)};  // behind every expert
    for (int64_t e = c.lane(); e < r.experts; e += kWarp) {
      const float logit = Widen(c.Load(own + e));
      const Pick pick = {logit != logit ? -INFINITY : logit, static_cast<int32_t>(e)};
      if (before.Before(pick) && pick.Before(best)) best = pick;
    }
    for (int mask = kWarp / 2; mask > 0; mask /= 2) {
      const Pick other = {c.ShuffleXor(best.logit, mask), c.ShuffleXor(best.expert, mask)};
      if (other.Before(best)) best = other;
    }
    return best;
  }
};

// What the rows picked, one after the other; those of rows that do not count are behind all others.
struct PickedExperts {
  ExpertRouting r;
  const int64_t* last;
  const int32_t* chosen;

  template <typename Context>
  MP_DEVICE int32_t Of(Context& c, int64_t pick) const {
    const int64_t counted = RowsThatCount(c, r.rows, last) * r.per_token;
    return pick < counted ? c.Load(chosen + pick) : static_cast<int32_t>(r.experts);
  }
};

// A place in the order of experts a thread, and one behind the last.
struct RouteSlotsKernel {
  static constexpr int kThreads = 256;
  PickedExperts picked;
  const int32_t* order;
  int64_t picks;
  int32_t* slots;
  int32_t* offsets;

  Grid grid() const { return {.x = CeilDiv(picks + 1, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t place = c.block() * kThreads + c.thread();
    if (place > picks) return;
    const auto at = static_cast<int32_t>(place);
    const int64_t before = place == 0 ? -1 : picked.Of(c, c.Load(order + place - 1));
    int64_t expert = picked.r.experts;
    if (place < picks) {
      const int32_t pick = c.Load(order + place);
      expert = picked.Of(c, pick);
      c.Store(slots + pick, at);
    }
    for (int64_t e = before + 1; e <= expert; ++e) c.Store(offsets + e, at);
  }
};

// An expert a thread, and all rows.
struct CountRowsKernel {
  static constexpr int kThreads = 256;
  ExpertRouting r;
  const int32_t* offsets;
  const float* before;
  float* counts;

  Grid grid() const { return {.x = CeilDiv(r.experts + 1, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t e = c.block() * kThreads + c.thread();
    if (e > r.experts) return;
    const int64_t own =
        e < r.experts ? c.Load(offsets + e + 1) - c.Load(offsets + e) : int64_t{r.rows};
    const float so_far = before == nullptr ? 0.0f : c.Load(before + e);
    c.Store(counts + e, so_far + static_cast<float>(own));
  }
};

// What lies in the workspace of routing: RoutingWorkspace.
struct RoutingScratch {
  int32_t* order;
  RowKey* keys;
};

// run(kernel) launches it.
template <typename T, typename Run>
absl::Status RunRouteExperts(const ExpertRouting& r, const int64_t* last, const T* logits,
                             const RoutedTo& to, const RoutingScratch& scratch, const Run& run) {
  const int64_t picks = r.rows * r.per_token;
  const PickedExperts picked = {r, last, to.chosen};
  MP_RETURN_IF_ERROR(run(PickExpertsKernel<T>{r, last, logits, to.weights, to.chosen}));
  MP_RETURN_IF_ERROR(RunRowOrder(picked, picks, scratch.keys, scratch.order, run));
  MP_RETURN_IF_ERROR(run(RouteSlotsKernel{picked, scratch.order, picks, to.slots, to.offsets}));
  if (to.counts == nullptr) return absl::OkStatus();
  return run(CountRowsKernel{r, to.offsets, to.before, to.counts});
}

// A row a warp, by the formulas of the CPU's (experts_cpu_kernel.cc: RouteRowBackward).
template <typename T>
struct RouteBackwardKernel {
  static constexpr int kThreads = 256;
  ExpertRouting r;
  const T* logits;
  const float* weights;
  const int32_t* chosen;
  const float* dweights;
  const float* slopes;
  T* dlogits;

  Grid grid() const { return {.x = CeilDiv(r.rows * kWarp, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t row = c.block() * (kThreads / kWarp) + c.warp();
    if (row >= r.rows) return;
    const T* own = logits + row * r.experts;
    const auto softmax = RoutingSoftmax::Of(c, own, r.experts);
    const Chosen of = ChosenOf(c, own, softmax, row * r.per_token);
    float dot = 0;
    for (int64_t e = c.lane(); e < r.experts; e += kWarp) {
      dot = fmaf(softmax.Probability(Widen(c.Load(own + e))), Gradient(c, of, e), dot);
    }
    dot = WarpSum(c, dot);
    const float log_sum_exp = softmax.highest + logf(softmax.sum);
    const float square = slopes == nullptr ? 0.0f : 2 * c.Load(slopes + r.experts) * log_sum_exp;
    for (int64_t e = c.lane(); e < r.experts; e += kWarp) {
      const float p = softmax.Probability(Widen(c.Load(own + e)));
      c.Store(dlogits + row * r.experts + e, Narrow<T>(p * (Gradient(c, of, e) - dot + square)));
    }
  }

 private:
  // Of a row: its first pick, the sum of their probabilities, and the mean of their gradients.
  struct Chosen {
    int64_t first;
    float sum, mean;
  };

  template <typename Context>
  MP_DEVICE Chosen ChosenOf(Context& c, const T* own, const RoutingSoftmax& softmax,
                            int64_t first) const {
    Chosen of = {first, 1, 0};
    if (!r.normalize) return of;
    of.sum = 0;
    for (int64_t k = first; k < first + r.per_token; ++k) {
      of.sum += softmax.Probability(Widen(c.Load(own + c.Load(chosen + k))));
      of.mean = fmaf(c.Load(dweights + k), c.Load(weights + k), of.mean);
    }
    return of;
  }
  // Of an expert's probability.
  template <typename Context>
  MP_DEVICE float Gradient(Context& c, const Chosen& of, int64_t expert) const {
    float gradient = slopes == nullptr ? 0.0f : c.Load(slopes + expert);
    for (int64_t k = of.first; k < of.first + r.per_token; ++k) {
      if (c.Load(chosen + k) == expert) gradient += (c.Load(dweights + k) - of.mean) / of.sum;
    }
    return gradient;
  }
};

// A pack of a row for each thread, in blocks of 256. kN: kPack<T> where the width is a multiple of
// it, else 1.
template <int kN>
struct RowPack {
  static constexpr int kThreads = 256;
  int64_t row, column;

  static Grid GridOf(const RoutedRows& s) {
    return {.x = CeilDiv(s.rows * (s.width / kN), kThreads)};
  }
  // Behind the last row there is none.
  template <typename Context>
  MP_DEVICE static RowPack Of(Context& c, const RoutedRows& s) {
    const int64_t packs = s.width / kN, i = c.block() * kThreads + c.thread();
    return {i / packs, i % packs * kN};
  }
};

template <typename T, int kN>
struct DispatchRowsKernel {
  static constexpr int kThreads = RowPack<kN>::kThreads;
  using P = Pack<T, kN>;
  RoutedRows s;
  const T* x;
  const int32_t* slots;
  T* y;

  Grid grid() const { return RowPack<kN>::GridOf(s); }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const auto [row, column] = RowPack<kN>::Of(c, s);
    if (row >= s.rows) return;
    const P pack = c.Load(reinterpret_cast<const P*>(x + row * s.width + column));
    for (int64_t k = row * s.per_token; k < (row + 1) * s.per_token; ++k) {
      c.Store(reinterpret_cast<P*>(y + c.Load(slots + k) * s.width + column), pack);
    }
  }
};

template <typename T, int kN>
struct CombineRowsKernel {
  static constexpr int kThreads = RowPack<kN>::kThreads;
  RoutedRows s;
  const T* y;
  const float* weights;
  const int32_t* slots;
  T* out;

  Grid grid() const { return RowPack<kN>::GridOf(s); }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const auto [row, column] = RowPack<kN>::Of(c, s);
    if (row >= s.rows) return;
    float sum[kN] = {};
    for (int64_t k = row * s.per_token; k < (row + 1) * s.per_token; ++k) {
      const auto part = Read<kN>(c, y + c.Load(slots + k) * s.width + column);
      const float weight = weights == nullptr ? 1.0f : c.Load(weights + k);
      MP_UNROLL
      for (int j = 0; j < kN; ++j) sum[j] = fmaf(weight, part.v[j], sum[j]);
    }
    Write(c, out + row * s.width + column, sum);
  }
};

// A pick of a row a warp.
template <typename T, int kN>
struct CombineBackwardKernel {
  static constexpr int kThreads = 256;
  RoutedRows s;
  const T* y;
  const float* weights;
  const int32_t* slots;
  const T* dout;
  T* dy;
  float* dweights;

  Grid grid() const { return {.x = CeilDiv(s.rows * s.per_token * kWarp, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t pick = c.block() * (kThreads / kWarp) + c.warp();
    if (pick >= s.rows * s.per_token) return;
    const int64_t from = pick / s.per_token * s.width, to = c.Load(slots + pick) * s.width;
    const float weight = c.Load(weights + pick);
    float sum = 0;
    for (int64_t column = c.lane() * kN; column < s.width; column += kWarp * kN) {
      const auto gradient = Read<kN>(c, dout + from + column);
      const auto value = Read<kN>(c, y + to + column);
      float own[kN];
      MP_UNROLL
      for (int j = 0; j < kN; ++j) {
        sum = fmaf(gradient.v[j], value.v[j], sum);
        own[j] = weight * gradient.v[j];
      }
      Write(c, dy + to + column, own);
    }
    sum = WarpSum(c, sum);
    if (c.lane() == 0) c.Store(dweights + pick, sum);
  }
};

// One block. Of how many rows of targets there are, the share that has one is the micro-batch's
// share of the global batch's: the gradient's factor is one over these.
struct ExpertBalanceKernel {
  static constexpr int kThreads = 256;
  BalanceOf b;
  float* slopes;

  Grid grid() const { return {.x = 1}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    int valid = 0;
    for (int64_t i = c.thread(); i < b.rows; i += kThreads) valid += c.Load(b.targets + i) >= 0;
    valid = BlockSum<kThreads, 0>(c, valid);
    const double all = c.Load(b.counts + b.experts);
    const double factor = static_cast<double>(c.Load(b.factor)) * valid / all;
    for (int64_t e = c.thread(); e < b.experts; e += kThreads) {
      const double share = static_cast<double>(c.Load(b.counts + e)) / all;
      const double slope = factor * b.balance_loss * static_cast<double>(b.experts) * share;
      c.Store(slopes + e, static_cast<float>(slope));
    }
    if (c.thread() == 0) c.Store(slopes + b.experts, static_cast<float>(factor * b.z_loss));
  }
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_EXPERTS_EXPERTS_CUDA_KERNEL_INL_H_
