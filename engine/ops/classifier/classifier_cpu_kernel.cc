#include "engine/ops/classifier/classifier_cpu_kernel.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/classifier/classifier_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

// A row stays in the second-level cache, so it is read three times: maximum, sum, result.
template <typename T>
HWY_INLINE float RowMax(const T* row, int64_t n) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  VF best0 = hn::Set(d, ToFloat(row[0])), best1 = best0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    best0 = hn::Max(best0, LoadF(d, row + i));
    best1 = hn::Max(best1, LoadF(d, row + i + lanes));
  }
  float best = hn::GetLane(hn::MaxOfLanes(d, hn::Max(best0, best1)));
  for (; i < n; ++i) best = std::max(best, ToFloat(row[i]));
  return best;
}

// Sum of e^(x - max); what is left of a vector at the end counts lane by lane.
template <typename T>
HWY_INLINE double RowSum(const T* row, int64_t n, float max) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  const VF vmax = hn::Set(d, max);
  VF sum0 = hn::Zero(d), sum1 = sum0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    sum0 = hn::Add(sum0, FastExp(d, hn::Sub(LoadF(d, row + i), vmax)));
    sum1 = hn::Add(sum1, FastExp(d, hn::Sub(LoadF(d, row + i + lanes), vmax)));
  }
  alignas(64) float parts[kMaxLanes];
  hn::Store(hn::Add(sum0, sum1), d, parts);
  double sum = 0.0;
  for (int64_t lane = 0; lane < lanes; ++lane) sum += parts[lane];
  for (; i < n; ++i) sum += std::exp(ToFloat(row[i]) - max);
  return sum;
}

// -log p(target); NaN where a logit is not finite.
template <typename T>
double RowLoss(const T* row, int32_t target, int64_t n) {
  const float max = RowMax(row, n);
  return std::log(RowSum(row, n, max)) + max - ToFloat(row[target]);
}

template <typename T>
double RowLossAndGradient(T* row, int32_t target, int64_t n, float scale) {
  const DF d;
  if (target < 0) {
    std::fill(row, row + n, FromFloat<T>(0.0f));
    return 0.0;
  }
  const float max = RowMax(row, n);
  const double sum = RowSum(row, n, max);
  const double at_target = ToFloat(row[target]);
  const VF vmax = hn::Set(d, max);
  const VF factor = hn::Set(d, static_cast<float>(scale / sum));
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    const VF e = FastExp(d, hn::Sub(LoadUpTo(d, row + i, count), vmax));
    StoreUpTo(hn::Mul(e, factor), d, row + i, count);
  });
  row[target] = FromFloat<T>(static_cast<float>((std::exp(at_target - max) / sum - 1.0) * scale));
  return std::log(sum) + max - at_target;
}

// Whether `target` is the first of the largest logits of the row, `max`.
template <typename T>
HWY_INLINE bool IsFirst(const T* row, int64_t target, float max) {
  if (!(ToFloat(row[target]) == max)) return false;
  bool before = false;
  for (int64_t i = 0; i < target; ++i) before |= ToFloat(row[i]) == max;
  return !before;
}

// `target`: outside [0, n) it is another rank's.
template <typename T>
LogitsPart RowPart(const T* row, int64_t target, int64_t n) {
  if (n == 0) return {.max = -std::numeric_limits<float>::infinity()};
  LogitsPart part = {.max = RowMax(row, n)};
  part.sum = static_cast<float>(RowSum(row, n, part.max));
  if (target < 0 || target >= n) return part;
  part.target = ToFloat(row[target]);
  part.first = IsFirst(row, target, part.max) ? 1.0f : 0.0f;
  return part;
}

// e^(x - max) * factor, and at the target `at_target`.
template <typename T>
void RowPartGradient(const T* row, int64_t target, int64_t n, float max, float factor,
                     float at_target, T* gradient) {
  const DF d;
  const VF vmax = hn::Set(d, max);
  const VF vfactor = hn::Set(d, factor);
  ForVectors(n, [&](int64_t i, int64_t count) MP_SIMD {
    const VF e = FastExp(d, hn::Sub(LoadUpTo(d, row + i, count), vmax));
    StoreUpTo(hn::Mul(e, vfactor), d, gradient + i, count);
  });
  if (target >= 0 && target < n) gradient[target] = FromFloat<T>(at_target);
}

}  // namespace

LogitsPart RowPartF32(const float* row, int64_t target, int64_t n) {
  return RowPart(row, target, n);
}
LogitsPart RowPartBf16(const bf16* row, int64_t target, int64_t n) {
  return RowPart(row, target, n);
}
LogitsPart RowPartF16(const f16* row, int64_t target, int64_t n) { return RowPart(row, target, n); }
void RowPartGradientF32(const float* row, int64_t target, int64_t n, float max, float factor,
                        float at_target, float* gradient) {
  RowPartGradient(row, target, n, max, factor, at_target, gradient);
}
void RowPartGradientBf16(const bf16* row, int64_t target, int64_t n, float max, float factor,
                         float at_target, bf16* gradient) {
  RowPartGradient(row, target, n, max, factor, at_target, gradient);
}
void RowPartGradientF16(const f16* row, int64_t target, int64_t n, float max, float factor,
                        float at_target, f16* gradient) {
  RowPartGradient(row, target, n, max, factor, at_target, gradient);
}

double RowLossF32(const float* row, int32_t target, int64_t n) { return RowLoss(row, target, n); }
double RowLossBf16(const bf16* row, int32_t target, int64_t n) { return RowLoss(row, target, n); }
double RowLossF16(const f16* row, int32_t target, int64_t n) { return RowLoss(row, target, n); }
double RowLossAndGradientF32(float* row, int32_t target, int64_t n, float scale) {
  return RowLossAndGradient(row, target, n, scale);
}
double RowLossAndGradientBf16(bf16* row, int32_t target, int64_t n, float scale) {
  return RowLossAndGradient(row, target, n, scale);
}
double RowLossAndGradientF16(f16* row, int32_t target, int64_t n, float scale) {
  return RowLossAndGradient(row, target, n, scale);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(RowLossF32);
HWY_EXPORT(RowLossBf16);
HWY_EXPORT(RowLossF16);
HWY_EXPORT(RowLossAndGradientF32);
HWY_EXPORT(RowLossAndGradientBf16);
HWY_EXPORT(RowLossAndGradientF16);
HWY_EXPORT(RowPartF32);
HWY_EXPORT(RowPartBf16);
HWY_EXPORT(RowPartF16);
HWY_EXPORT(RowPartGradientF32);
HWY_EXPORT(RowPartGradientBf16);
HWY_EXPORT(RowPartGradientF16);

namespace {

// body(row) for every row, in parallel.
template <typename Body>
void ForRows(int64_t rows, int64_t vocabulary, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, 4096 / vocabulary);
  ParallelFor(0, rows, grain, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) body(row);
  });
}

// row_loss(row) for every row in parallel, then the sum in row order.
template <typename RowLoss>
void SumLosses(const int32_t* targets, int64_t rows, int64_t vocabulary, void* workspace,
               LossSum* sum, const RowLoss& row_loss) {
  double* losses = static_cast<double*>(workspace);
  ForRows(rows, vocabulary, [&](int64_t row) { losses[row] = row_loss(row); });
  for (int64_t row = 0; row < rows; ++row) {
    if (targets[row] < 0) continue;
    sum->loss += losses[row];
    ++sum->targets;
  }
}

// Whether the target's logit is the first of the largest; what is not finite is never right.
template <typename T>
bool IsCorrect(const T* row, int32_t target, int64_t n) {
  const float wanted = ToFloat(row[target]);
  bool wrong = !std::isfinite(wanted);
  for (int64_t i = 0; i < target; ++i) wrong |= !(ToFloat(row[i]) < wanted);
  for (int64_t i = target; i < n; ++i) wrong |= !(ToFloat(row[i]) <= wanted);
  return !wrong;
}

// SumLosses of the loss alone, and how many rows are right.
template <typename T, typename RowLoss>
void SumForward(const T* logits, const int32_t* targets, int64_t rows, int64_t vocabulary,
                void* workspace, LossSum* sum, const RowLoss& row_loss) {
  auto* correct = reinterpret_cast<uint8_t*>(static_cast<double*>(workspace) + rows);
  SumLosses(targets, rows, vocabulary, workspace, sum, [&](int64_t row) {
    const T* x = logits + row * vocabulary;
    correct[row] = targets[row] >= 0 && IsCorrect(x, targets[row], vocabulary);
    return targets[row] < 0 ? 0.0 : row_loss(x, targets[row], vocabulary);
  });
  for (int64_t row = 0; row < rows; ++row) sum->correct += correct[row];
}

template <typename T, typename RowLoss>
void LogProbs(const T* logits, const int32_t* targets, int64_t rows, int64_t vocabulary,
              float* log_probs, const RowLoss& run) {
  ForRows(rows, vocabulary, [&](int64_t row) {
    const bool none = targets[row] < 0;
    const double loss = none ? 0 : run(logits + row * vocabulary, targets[row], vocabulary);
    log_probs[row] = static_cast<float>(-loss);
  });
}

template <typename T, typename RowLossAndGradient>
void LogProbsBackward(T* logits, const int32_t* targets, int64_t rows, int64_t vocabulary,
                      const float* gradients, const RowLossAndGradient& run) {
  ForRows(rows, vocabulary, [&](int64_t row) {
    run(logits + row * vocabulary, targets[row], vocabulary, -gradients[row]);
  });
}

int64_t NumberOf(const LogitsRows& rows, int64_t row) {
  return rows.numbers == nullptr ? rows.begin + row : rows.numbers[row];
}

template <typename T, typename RowPart>
void Parts(const T* logits, const LogitsRows& rows, const LogitsColumns& columns, LogitsPart* parts,
           const RowPart& run) {
  ForRows(rows.count, std::max<int64_t>(columns.each, 1), [&](int64_t row) {
    const int32_t target = rows.targets[row];
    if (target < 0 && rows.numbers != nullptr) return;
    LogitsPart& part = parts[NumberOf(rows, row)];
    part = target < 0 ? LogitsPart{}
                      : run(logits + row * columns.stride, target - columns.first, columns.count);
  });
}

// What the ranks know of a row with a target, put together.
struct WholeRow {
  float max = -std::numeric_limits<float>::infinity();
  double sum = 0;  // of e^(logit - max)
  double target = 0;
  bool right = true;  // the target's logit is the first of the largest
};

WholeRow Together(const GatheredParts& parts, int64_t row, int32_t target) {
  WholeRow whole;
  const auto of = [&](int64_t rank) { return parts.parts[rank * parts.rows + row]; };
  for (int64_t rank = 0; rank < parts.ranks; ++rank) whole.max = std::max(whole.max, of(rank).max);
  const int64_t owner = target / parts.each;
  whole.target = of(owner).target;
  for (int64_t rank = 0; rank < parts.ranks; ++rank) {
    const LogitsPart part = of(rank);
    whole.sum += part.sum * std::exp(double{part.max} - whole.max);
    const bool behind = rank < owner   ? part.max < whole.target
                        : rank > owner ? part.max <= whole.target
                                       : part.first == 1;
    whole.right = whole.right && behind;
  }
  whole.right = whole.right && std::isfinite(whole.sum);
  return whole;
}

template <typename T, typename Gradient>
void PartsGradient(const T* logits, const LogitsRows& rows, const LogitsColumns& columns,
                   const GatheredParts& parts, float scale, T* gradients, const Gradient& run) {
  ForRows(rows.count, std::max<int64_t>(columns.each, 1), [&](int64_t row) {
    const int32_t target = rows.targets[row];
    T* gradient = gradients + row * columns.stride;
    const int64_t count = target < 0 ? 0 : columns.count;
    std::fill(gradient + count, gradient + columns.each, FromFloat<T>(0.0f));
    if (target < 0) return;
    const WholeRow whole = Together(parts, NumberOf(rows, row), target);
    const double at_target = (std::exp(whole.target - whole.max) / whole.sum - 1.0) * scale;
    run(logits + row * columns.stride, target - columns.first, count, whole.max,
        static_cast<float>(scale / whole.sum), static_cast<float>(at_target), gradient);
  });
}

}  // namespace

template <>
void ClassifierParts(const float* logits, const LogitsRows& rows, const LogitsColumns& columns,
                     LogitsPart* parts) {
  Parts(logits, rows, columns, parts, HWY_DYNAMIC_DISPATCH(RowPartF32));
}
template <>
void ClassifierParts(const bf16* logits, const LogitsRows& rows, const LogitsColumns& columns,
                     LogitsPart* parts) {
  Parts(logits, rows, columns, parts, HWY_DYNAMIC_DISPATCH(RowPartBf16));
}
template <>
void ClassifierParts(const f16* logits, const LogitsRows& rows, const LogitsColumns& columns,
                     LogitsPart* parts) {
  Parts(logits, rows, columns, parts, HWY_DYNAMIC_DISPATCH(RowPartF16));
}

template <>
void ClassifierPartsGradient(const float* logits, const LogitsRows& rows,
                             const LogitsColumns& columns, const GatheredParts& parts, float scale,
                             float* gradients) {
  PartsGradient(logits, rows, columns, parts, scale, gradients,
                HWY_DYNAMIC_DISPATCH(RowPartGradientF32));
}
template <>
void ClassifierPartsGradient(const bf16* logits, const LogitsRows& rows,
                             const LogitsColumns& columns, const GatheredParts& parts, float scale,
                             bf16* gradients) {
  PartsGradient(logits, rows, columns, parts, scale, gradients,
                HWY_DYNAMIC_DISPATCH(RowPartGradientBf16));
}
template <>
void ClassifierPartsGradient(const f16* logits, const LogitsRows& rows,
                             const LogitsColumns& columns, const GatheredParts& parts, float scale,
                             f16* gradients) {
  PartsGradient(logits, rows, columns, parts, scale, gradients,
                HWY_DYNAMIC_DISPATCH(RowPartGradientF16));
}

void ClassifierPartsLoss(const int32_t* targets, const GatheredParts& parts, bool with_correct,
                         LossSum* sum) {
  for (int64_t row = 0; row < parts.rows; ++row) {
    if (targets[row] < 0) continue;
    const WholeRow whole = Together(parts, row, targets[row]);
    sum->loss += std::log(whole.sum) + whole.max - whole.target;
    ++sum->targets;
    sum->correct += with_correct && whole.right ? 1 : 0;
  }
}

template <>
void ClassifierForwardBackward(float* logits, const int32_t* targets, int64_t rows,
                               int64_t vocabulary, float scale, void* workspace, LossSum* sum) {
  const auto run = HWY_DYNAMIC_DISPATCH(RowLossAndGradientF32);
  SumLosses(targets, rows, vocabulary, workspace, sum, [&](int64_t row) {
    return run(logits + row * vocabulary, targets[row], vocabulary, scale);
  });
}
template <>
void ClassifierForwardBackward(bf16* logits, const int32_t* targets, int64_t rows,
                               int64_t vocabulary, float scale, void* workspace, LossSum* sum) {
  const auto run = HWY_DYNAMIC_DISPATCH(RowLossAndGradientBf16);
  SumLosses(targets, rows, vocabulary, workspace, sum, [&](int64_t row) {
    return run(logits + row * vocabulary, targets[row], vocabulary, scale);
  });
}
template <>
void ClassifierForwardBackward(f16* logits, const int32_t* targets, int64_t rows,
                               int64_t vocabulary, float scale, void* workspace, LossSum* sum) {
  const auto run = HWY_DYNAMIC_DISPATCH(RowLossAndGradientF16);
  SumLosses(targets, rows, vocabulary, workspace, sum, [&](int64_t row) {
    return run(logits + row * vocabulary, targets[row], vocabulary, scale);
  });
}

template <>
void ClassifierForward(const float* logits, const int32_t* targets, int64_t rows,
                       int64_t vocabulary, void* workspace, LossSum* sum) {
  SumForward(logits, targets, rows, vocabulary, workspace, sum, HWY_DYNAMIC_DISPATCH(RowLossF32));
}
template <>
void ClassifierForward(const bf16* logits, const int32_t* targets, int64_t rows, int64_t vocabulary,
                       void* workspace, LossSum* sum) {
  SumForward(logits, targets, rows, vocabulary, workspace, sum, HWY_DYNAMIC_DISPATCH(RowLossBf16));
}
template <>
void ClassifierForward(const f16* logits, const int32_t* targets, int64_t rows, int64_t vocabulary,
                       void* workspace, LossSum* sum) {
  SumForward(logits, targets, rows, vocabulary, workspace, sum, HWY_DYNAMIC_DISPATCH(RowLossF16));
}

template <>
void ClassifierLogProbs(const float* logits, const int32_t* targets, int64_t rows,
                        int64_t vocabulary, float* log_probs) {
  LogProbs(logits, targets, rows, vocabulary, log_probs, HWY_DYNAMIC_DISPATCH(RowLossF32));
}
template <>
void ClassifierLogProbsBackward(float* logits, const int32_t* targets, int64_t rows,
                                int64_t vocabulary, const float* gradients) {
  LogProbsBackward(logits, targets, rows, vocabulary, gradients,
                   HWY_DYNAMIC_DISPATCH(RowLossAndGradientF32));
}
template <>
void ClassifierLogProbs(const bf16* logits, const int32_t* targets, int64_t rows,
                        int64_t vocabulary, float* log_probs) {
  LogProbs(logits, targets, rows, vocabulary, log_probs, HWY_DYNAMIC_DISPATCH(RowLossBf16));
}
template <>
void ClassifierLogProbsBackward(bf16* logits, const int32_t* targets, int64_t rows,
                                int64_t vocabulary, const float* gradients) {
  LogProbsBackward(logits, targets, rows, vocabulary, gradients,
                   HWY_DYNAMIC_DISPATCH(RowLossAndGradientBf16));
}
template <>
void ClassifierLogProbs(const f16* logits, const int32_t* targets, int64_t rows, int64_t vocabulary,
                        float* log_probs) {
  LogProbs(logits, targets, rows, vocabulary, log_probs, HWY_DYNAMIC_DISPATCH(RowLossF16));
}
template <>
void ClassifierLogProbsBackward(f16* logits, const int32_t* targets, int64_t rows,
                                int64_t vocabulary, const float* gradients) {
  LogProbsBackward(logits, targets, rows, vocabulary, gradients,
                   HWY_DYNAMIC_DISPATCH(RowLossAndGradientF16));
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
