// The kernels behind classifier_cuda_kernel.h.
#ifndef MILEPOST_ENGINE_OPS_CLASSIFIER_CLASSIFIER_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_CLASSIFIER_CLASSIFIER_CUDA_KERNEL_INL_H_

#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/classifier/classifier_cuda_kernel.h"

namespace milepost::kernels::cuda {

// A running sum of e^(x - max), rescaled where the maximum grows.
struct OnlineSum {
  float max = -INFINITY;
  float sum = 0;

  // What exponents are relative to: -inf minus itself would be a NaN.
  MP_DEVICE static float Base(float max) { return max == -INFINITY ? 0.0f : max; }
  MP_DEVICE void Rebase(float new_max) {
    sum *= expf(max - Base(new_max));
    max = new_max;
  }
};

// body(width, i) for every piece of the row that is this thread's: width elements from i on, a
// constant: a pack where the row's address is aligned to it, single elements before and after.
template <int kThreads, typename T, typename Body>
MP_DEVICE void ForPieces(const T* row, int64_t n, int thread, const Body& body) {
  constexpr int kN = kPack<T>;
  const auto behind = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
  const int64_t head = behind == 0 ? 0 : kN - behind < n ? kN - behind : n;
  const int64_t packs = (n - head) / kN;
  if (thread < head) body(std::integral_constant<int, 1>(), thread);
  for (int64_t pack = thread; pack < packs; pack += kThreads) {
    body(std::integral_constant<int, kN>(), head + pack * kN);
  }
  const int64_t tail = head + packs * kN + thread;
  if (tail < n) body(std::integral_constant<int, 1>(), tail);
}

template <int kThreads, int kId, typename Context>
MP_DEVICE float BlockMaximum(Context& c, float value) {
  value = WarpMax(c, value);
  auto parts = c.template Shared<float, kThreads / kWarp, kId>();
  if (c.lane() == 0) parts.Set(c.warp(), value);
  c.Sync();
  for (int w = 0; w < kThreads / kWarp; ++w) value = fmaxf(value, parts.Get(w));
  return value;
}

// A block has a row.
template <typename T, bool kGradient, int kBlock>
struct ClassifierKernel {
  static constexpr int kThreads = kBlock;
  ClassifierArgs<T> a;
  RowLoss* losses;

  Grid grid() const { return {.x = a.rows}; }

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    T* row = a.logits + c.block() * (a.stride > 0 ? a.stride : a.vocabulary);
    const int target = c.Load(a.targets + c.block());
    if (target < 0) return Leave(c, row);
    const float wanted = Widen(c.Load(row + target));
    Sums sums = {.wrong = wanted - wanted == 0.0f ? 0 : 1};
    ForPieces<kThreads>(row, a.vocabulary, c.thread(), [&](auto width, int64_t i) {
      constexpr int kN = decltype(width)::value;
      Add(Read<kN>(c, row + i), i, target, wanted, sums);
    });
    const float max = BlockMaximum<kThreads, 0>(c, sums.online.max);
    sums.online.Rebase(max);
    const float sum =
        BlockSum<kThreads, 1>(c, sums.online.sum);  // behind it all have read `wanted`
    if (a.smoothing > 0) sums.total = BlockSum<kThreads, 2>(c, sums.total);
    if constexpr (!kGradient) sums.wrong = BlockSum<kThreads, 3>(c, sums.wrong);
    if (c.thread() == 0) c.Store(losses + c.block(), LossOf(wanted, max, sum, sums));
    if constexpr (kGradient) Gradient(c, row, target, wanted, max, sum);
  }

 private:
  struct Sums {
    OnlineSum online;
    float total = 0;  // of the logits
    int wrong = 0;    // logits that come before the target's, or it is not finite
  };

  template <typename Context>
  MP_DEVICE void Leave(Context& c, T* row) const {
    if (c.thread() == 0) c.Store(losses + c.block(), RowLoss{});
    if constexpr (kGradient) {
      ForPieces<kThreads>(row, a.vocabulary, c.thread(), [&](auto width, int64_t i) {
        const float zeros[decltype(width)::value] = {};
        Write(c, row + i, zeros);
      });
    }
  }

  template <int kN>
  MP_DEVICE void Add(const Floats<kN>& x, int64_t i, int target, float wanted, Sums& sums) const {
    float max = x.v[0];
    MP_UNROLL
    for (int k = 1; k < kN; ++k) max = fmaxf(max, x.v[k]);
    if (!(max <= sums.online.max)) sums.online.Rebase(fmaxf(max, sums.online.max));
    MP_UNROLL
    for (int k = 0; k < kN; ++k) {
      sums.online.sum += expf(x.v[k] - OnlineSum::Base(sums.online.max));
      if (a.smoothing > 0) sums.total += x.v[k];
      if constexpr (!kGradient) {
        const bool before = i + k < target ? x.v[k] < wanted : x.v[k] <= wanted;
        if (!before) ++sums.wrong;
      }
    }
  }

  MP_DEVICE RowLoss LossOf(float wanted, float max, float sum, const Sums& sums) const {
    RowLoss row = {.target = 1, .correct = sums.wrong == 0 ? 1.0f : 0.0f};
    row.loss = log(static_cast<double>(sum)) + max - wanted;
    if (a.smoothing > 0) {
      const double mean = static_cast<double>(sums.total) / static_cast<double>(a.vocabulary);
      row.loss += a.smoothing * (wanted - mean);
    }
    return row;
  }

  template <typename Context>
  MP_DEVICE void Gradient(Context& c, T* row, int target, float wanted, float max,
                          float sum) const {
    const float scale = a.gradients == nullptr ? c.Load(a.scale) : -c.Load(a.gradients + c.block());
    const float factor = scale / sum;
    const float spread = scale * a.smoothing / static_cast<float>(a.vocabulary);
    const double at_target =
        exp(static_cast<double>(wanted) - max) / sum - 1.0 + static_cast<double>(a.smoothing);
    ForPieces<kThreads>(row, a.vocabulary, c.thread(), [&](auto width, int64_t i) {
      constexpr int kN = decltype(width)::value;
      auto x = Read<kN>(c, row + i);
      MP_UNROLL
      for (int k = 0; k < kN; ++k) {
        x.v[k] = expf(x.v[k] - max) * factor - spread;
        if (i + k == target) x.v[k] = static_cast<float>(at_target * scale) - spread;
      }
      Write(c, row + i, x.v);
    });
  }
};

template <typename Context>
MP_DEVICE int64_t NumberOf(Context& c, const LogitsRows& rows, int64_t row) {
  return rows.numbers == nullptr ? rows.begin + row : c.Load(rows.numbers + row);
}

// A block has a row.
template <typename T, int kBlock>
struct PartsKernel {
  static constexpr int kThreads = kBlock;
  const T* logits;
  LogitsRows rows;
  LogitsColumns columns;
  LogitsPart* parts;

  Grid grid() const { return {.x = rows.count}; }

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int target = c.Load(rows.targets + c.block());
    LogitsPart* part = parts + NumberOf(c, rows, c.block());
    if (target < 0) {
      if (c.thread() == 0) c.Store(part, LogitsPart{});
      return;
    }
    const T* row = logits + c.block() * columns.stride;
    const int64_t own = target - columns.first;
    const bool owns = own >= 0 && own < columns.count;
    const float wanted = owns ? Widen(c.Load(row + own)) : 0.0f;
    OnlineSum online;
    int before = owns && wanted - wanted == 0.0f ? 0 : 1;  // logits that come before the target's
    ForPieces<kThreads>(row, columns.count, c.thread(), [&](auto width, int64_t i) {
      constexpr int kN = decltype(width)::value;
      const Floats<kN> x = Read<kN>(c, row + i);
      float max = x.v[0];
      MP_UNROLL
      for (int k = 1; k < kN; ++k) max = fmaxf(max, x.v[k]);
      if (!(max <= online.max)) online.Rebase(fmaxf(max, online.max));
      MP_UNROLL
      for (int k = 0; k < kN; ++k) {
        online.sum += expf(x.v[k] - OnlineSum::Base(online.max));
        const bool behind = i + k < own ? x.v[k] < wanted : x.v[k] <= wanted;
        if (!behind) ++before;
      }
    });
    const float max = BlockMaximum<kThreads, 0>(c, online.max);
    online.Rebase(max);
    const float sum = BlockSum<kThreads, 1>(c, online.sum);
    before = BlockSum<kThreads, 2>(c, before);
    if (c.thread() != 0) return;
    c.Store(part, LogitsPart{max, sum, wanted, before == 0 ? 1.0f : 0.0f});
  }
};

// What the ranks know of a row with a target, put together.
struct WholeRow {
  float max = -INFINITY;
  double sum = 0;  // of e^(logit - max)
  float target = 0;
  bool right = true;  // the target's logit is the first of the largest

  template <typename Context>
  MP_DEVICE static WholeRow Of(Context& c, const GatheredParts& parts, int64_t row, int target) {
    WholeRow whole;
    for (int64_t rank = 0; rank < parts.ranks; ++rank) {
      whole.max = fmaxf(whole.max, c.Load(&parts.parts[rank * parts.rows + row].max));
    }
    const int64_t owner = target / parts.each;
    whole.target = c.Load(&parts.parts[owner * parts.rows + row].target);
    for (int64_t rank = 0; rank < parts.ranks; ++rank) {
      const LogitsPart part = c.Load(parts.parts + rank * parts.rows + row);
      whole.sum += part.sum * exp(static_cast<double>(part.max) - whole.max);
      const bool behind = rank < owner   ? part.max < whole.target
                          : rank > owner ? part.max <= whole.target
                                         : part.first == 1.0f;
      if (!behind) whole.right = false;
    }
    if (!(whole.sum - whole.sum == 0)) whole.right = false;
    return whole;
  }
};

// A block has a row. Gradients may lie over the logits.
template <typename T>
struct PartsGradientKernel {
  static constexpr int kThreads = 256;
  const T* logits;
  LogitsRows rows;
  LogitsColumns columns;
  GatheredParts parts;
  const float* scale;
  T* gradients;

  Grid grid() const { return {.x = rows.count}; }

  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const T* row = logits + c.block() * columns.stride;
    T* gradient = gradients + c.block() * columns.stride;
    const int target = c.Load(rows.targets + c.block());
    const int64_t count = target < 0 ? 0 : columns.count;
    for (int64_t i = count + c.thread(); i < columns.each; i += kThreads) {
      c.Store(gradient + i, Narrow<T>(0.0f));
    }
    if (target < 0) return;
    const WholeRow whole = WholeRow::Of(c, parts, NumberOf(c, rows, c.block()), target);
    const float by = c.Load(scale);
    const auto factor = static_cast<float>(by / whole.sum);
    const double at_target = exp(static_cast<double>(whole.target) - whole.max) / whole.sum - 1.0;
    const int64_t own = target - columns.first;
    ForPieces<kThreads>(row, count, c.thread(), [&](auto width, int64_t i) {
      constexpr int kN = decltype(width)::value;
      auto x = Read<kN>(c, row + i);
      MP_UNROLL
      for (int k = 0; k < kN; ++k) {
        x.v[k] = expf(x.v[k] - whole.max) * factor;
        if (i + k == own) x.v[k] = static_cast<float>(at_target * by);
      }
      Write(c, gradient + i, x.v);
    });
  }
};

// sums = (or +=) those of all rows; one block.
struct PartsLossKernel {
  static constexpr int kThreads = 256;
  const int32_t* row_targets;
  GatheredParts parts;
  bool with_correct, accumulate;
  double* sums;

  Grid grid() const { return {.x = 1}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    double loss = 0, targets = 0, correct = 0;
    for (int64_t row = c.thread(); row < parts.rows; row += kThreads) {
      const int target = c.Load(row_targets + row);
      if (target < 0) continue;
      const WholeRow whole = WholeRow::Of(c, parts, row, target);
      loss += log(whole.sum) + whole.max - whole.target;
      targets += 1;
      if (with_correct && whole.right) correct += 1;
    }
    const double totals[3] = {BlockSum<kThreads, 0>(c, loss), BlockSum<kThreads, 0>(c, targets),
                              BlockSum<kThreads, 0>(c, correct)};
    if (c.thread() != 0) return;
    MP_UNROLL
    for (int i = 0; i < 3; ++i) {
      c.Store(sums + i, accumulate ? c.Load(sums + i) + totals[i] : totals[i]);
    }
  }
};

// sums = (or +=) those of all rows; one block.
struct LossSumKernel {
  static constexpr int kThreads = 256;
  const RowLoss* losses;
  int64_t rows;
  bool with_correct, accumulate;
  double* sums;

  Grid grid() const { return {.x = 1}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    double loss = 0, targets = 0, correct = 0;
    for (int64_t i = c.thread(); i < rows; i += kThreads) {
      loss += c.Load(&losses[i].loss);
      targets += c.Load(&losses[i].target);
      if (with_correct) correct += c.Load(&losses[i].correct);
    }
    const double totals[3] = {BlockSum<kThreads, 0>(c, loss), BlockSum<kThreads, 0>(c, targets),
                              BlockSum<kThreads, 0>(c, correct)};
    if (c.thread() != 0) return;
    MP_UNROLL
    for (int i = 0; i < 3; ++i) {
      c.Store(sums + i, accumulate ? c.Load(sums + i) + totals[i] : totals[i]);
    }
  }
};

struct LogProbsKernel {
  static constexpr int kThreads = 256;
  const RowLoss* losses;
  int64_t rows;
  float* log_probs;

  Grid grid() const { return {.x = CeilDiv(rows, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t row = c.block() * kThreads + c.thread();
    if (row < rows) c.Store(log_probs + row, static_cast<float>(-c.Load(&losses[row].loss)));
  }
};

// run(kernel) launches it.
template <typename T, typename Run>
absl::Status RunParts(const T* logits, const LogitsRows& rows, const LogitsColumns& columns,
                      LogitsPart* parts, const Run& run) {
  constexpr int64_t kSmall = 4096;
  return columns.each < kSmall ? run(PartsKernel<T, 128>{logits, rows, columns, parts})
                               : run(PartsKernel<T, 512>{logits, rows, columns, parts});
}

// run(kernel) launches it. `losses`: [rows].
template <bool kGradient, typename T, typename Run>
absl::Status RunRows(const ClassifierArgs<T>& a, RowLoss* losses, const Run& run) {
  constexpr int64_t kSmall = 4096;  // a smaller vocabulary leaves most of a large block idle
  return a.vocabulary < kSmall ? run(ClassifierKernel<T, kGradient, 128>{a, losses})
                               : run(ClassifierKernel<T, kGradient, 512>{a, losses});
}

template <typename T, typename Run>
absl::Status RunLogProbs(const ClassifierArgs<T>& a, RowLoss* losses, float* log_probs,
                         const Run& run) {
  MP_RETURN_IF_ERROR(RunRows<false>(a, losses, run));
  return run(LogProbsKernel{losses, a.rows, log_probs});
}

template <bool kGradient, typename T, typename Run>
absl::Status RunClassifier(const ClassifierArgs<T>& a, RowLoss* losses, const Run& run) {
  MP_RETURN_IF_ERROR(RunRows<kGradient>(a, losses, run));
  if (a.gradients != nullptr) return absl::OkStatus();
  return run(LossSumKernel{losses, a.rows, !kGradient, a.accumulate, a.sums});
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_CLASSIFIER_CLASSIFIER_CUDA_KERNEL_INL_H_
