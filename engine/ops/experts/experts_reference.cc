#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

using Integers = std::vector<int32_t>;

// Of one row's logits, from `at` on.
Array SoftmaxOf(const Array& logits, int64_t at, int64_t n, double* log_sum_exp) {
  Array p(logits.begin() + at, logits.begin() + at + n);
  const double highest = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& v : p) sum += v = std::exp(v - highest);
  for (double& v : p) v /= sum;
  *log_sum_exp = highest + std::log(sum);
  return p;
}

void RouteExperts(const Run& run) {
  const graph::ExpertsAttributes& a = run.op.attributes.experts;
  const int64_t rows = run.dim(0, 0);
  Array weights;
  Integers& chosen = run.all_integers[run.op.outputs[1].value];
  chosen.clear();
  for (int64_t n = 0; n < rows; ++n) {
    double unused = 0;
    const Array p = SoftmaxOf(run.in(0), n * a.count, a.count, &unused);
    Integers order(static_cast<size_t>(a.count));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t left, int32_t right) {
      return run.in(0)[n * a.count + left] > run.in(0)[n * a.count + right];
    });
    double sum = 0;
    for (int64_t s = 0; s < a.per_token; ++s) sum += p[order[s]];
    for (int64_t s = 0; s < a.per_token; ++s) {
      chosen.push_back(order[s]);
      weights.push_back(p[order[s]] / (a.normalize ? sum : 1));
    }
  }
  run.Write(0, weights);
  Integers& slots = run.all_integers[run.op.outputs[2].value];
  Integers& offsets = run.all_integers[run.op.outputs[3].value];
  int32_t next = 0;
  for (int32_t e = 0; e < a.count; ++e) {
    offsets[e] = next;
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i] == e) slots[i] = next++;
    }
  }
  offsets[a.count] = next;
  if (run.op.outputs[4].value == graph::kNoValue) return;
  Array counts(static_cast<size_t>(a.count + 1), 0.0);
  if (run.has_input(1)) counts = run.in(1);
  for (int64_t e = 0; e < a.count; ++e) counts[e] += offsets[e + 1] - offsets[e];
  counts.back() += static_cast<double>(rows);
  run.Write(4, counts);
}

// Inputs logits, weights, chosen, dweights, slopes.
void RouteExpertsBackward(const Run& run) {
  const graph::ExpertsAttributes& a = run.op.attributes.experts;
  Array dlogits;
  for (int64_t n = 0; n < run.dim(0, 0); ++n) {
    double lse = 0;
    const Array p = SoftmaxOf(run.in(0), n * a.count, a.count, &lse);
    Array dp(static_cast<size_t>(a.count), 0.0);
    if (run.has_input(4)) dp.assign(run.in(4).begin(), run.in(4).end() - 1);
    double sum = 0, mean = 0;
    for (int64_t s = n * a.per_token; s < (n + 1) * a.per_token; ++s) {
      sum += p[run.integers(2)[s]];
      mean += run.in(3)[s] * run.in(1)[s];
    }
    for (int64_t s = n * a.per_token; s < (n + 1) * a.per_token; ++s) {
      const double own = run.in(3)[s];
      dp[run.integers(2)[s]] += a.normalize ? (own - mean) / sum : own;
    }
    double dot = 0;
    for (int64_t e = 0; e < a.count; ++e) dot += p[e] * dp[e];
    const double square = run.has_input(4) ? 2 * run.in(4).back() * lse : 0;
    for (int64_t e = 0; e < a.count; ++e) dlogits.push_back(p[e] * (dp[e] - dot + square));
  }
  run.Write(0, dlogits);
}

// Calls fn(first element of n's row, first element of its row of slot (n, s), s counted over all).
template <typename Fn>
void ForSlots(const Integers& slots, int64_t per_token, int64_t width, const Fn& fn) {
  for (size_t i = 0; i < slots.size(); ++i) {
    fn(static_cast<int64_t>(i) / per_token * width, slots[i] * width, i);
  }
}

void DispatchRows(const Run& run) {
  const int64_t width = run.dim(0, 1), per_token = run.dim(1, 1);
  Array y(run.in(0).size() * per_token);
  ForSlots(run.integers(1), per_token, width, [&](int64_t row, int64_t slot, size_t) {
    std::copy_n(run.in(0).begin() + row, width, y.begin() + slot);
  });
  run.Write(0, y);
}

void DispatchRowsBackward(const Run& run) {
  const int64_t width = run.dim(0, 1), per_token = run.dim(1, 1);
  Array dx(run.in(0).size() / per_token, 0.0);
  ForSlots(run.integers(1), per_token, width, [&](int64_t row, int64_t slot, size_t) {
    for (int64_t i = 0; i < width; ++i) dx[row + i] += run.in(0)[slot + i];
  });
  run.Write(0, dx);
}

// out, or dy and dweights.
void CombineRows(const Run& run) {
  const int64_t width = run.dim(0, 1), per_token = run.dim(2, 1);
  Array out(run.in(0).size() / per_token, 0.0);
  ForSlots(run.integers(2), per_token, width, [&](int64_t row, int64_t slot, size_t s) {
    for (int64_t i = 0; i < width; ++i) out[row + i] += run.in(1)[s] * run.in(0)[slot + i];
  });
  run.Write(0, out);
}

void CombineRowsBackward(const Run& run) {
  const int64_t width = run.dim(0, 1), per_token = run.dim(2, 1);
  Array dy(run.in(0).size()), dweights(run.in(1).size(), 0.0);
  ForSlots(run.integers(2), per_token, width, [&](int64_t row, int64_t slot, size_t s) {
    for (int64_t i = 0; i < width; ++i) {
      dweights[s] += run.in(3)[row + i] * run.in(0)[slot + i];
      dy[slot + i] = run.in(1)[s] * run.in(3)[row + i];
    }
  });
  run.Write(0, dy);
  run.Write(1, dweights);
}

// Calls fn(rows' begin, their end, the index of a weight, its first column of y) for all weights.
// `weight`: the shape of one by its index.
template <typename Shapes, typename Fn>
void ForExpertWeights(const Integers& offsets, int64_t parts, const Shapes& weight, const Fn& fn) {
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    int64_t column = 0;
    for (int64_t part = 0; part < parts; ++part) {
      const size_t index = e * parts + part;
      fn(offsets[e], offsets[e + 1], index, column);
      column += weight(index)[0];
    }
  }
}

void ExpertLinear(const Run& run) {
  const int64_t in = run.dim(0, 1), width = run.out_shape(0)[1];
  Array y(run.dim(0, 0) * width, 0.0);
  const auto shape = [&](size_t i) { return run.in_shape(2 + i); };
  ForExpertWeights(run.integers(1), run.op.attributes.parts, shape,
                   [&](int64_t begin, int64_t end, size_t w, int64_t column) {
                     for (int64_t row = begin; row < end; ++row) {
                       for (int64_t i = 0; i < shape(w)[0] * in; ++i) {
                         y[row * width + column + i / in] +=
                             run.in(0)[row * in + i % in] * run.in(2 + w)[i];
                       }
                     }
                   });
  run.Write(0, y);
}

void ExpertLinearBackwardInput(const Run& run) {
  const int64_t in = run.out_shape(0)[1], width = run.dim(0, 1);
  Array dx(run.dim(0, 0) * in, 0.0);
  const auto shape = [&](size_t i) { return run.in_shape(2 + i); };
  ForExpertWeights(run.integers(1), run.op.attributes.parts, shape,
                   [&](int64_t begin, int64_t end, size_t w, int64_t column) {
                     for (int64_t row = begin; row < end; ++row) {
                       for (int64_t i = 0; i < shape(w)[0] * in; ++i) {
                         dx[row * in + i % in] +=
                             run.in(0)[row * width + column + i / in] * run.in(2 + w)[i];
                       }
                     }
                   });
  run.Write(0, dx);
}

void ExpertLinearBackwardWeight(const Run& run) {
  const int64_t in = run.dim(0, 1), width = run.dim(1, 1);
  const auto shape = [&](size_t i) { return run.out_shape(i); };
  ForExpertWeights(run.integers(2), run.op.attributes.parts, shape,
                   [&](int64_t begin, int64_t end, size_t w, int64_t column) {
                     Array dw(shape(w)[0] * in, 0.0);
                     for (int64_t row = begin; row < end; ++row) {
                       for (int64_t i = 0; i < shape(w)[0] * in; ++i) {
                         dw[i] += run.in(1)[row * width + column + i / in] *
                                  run.in(0)[row * in + i % in];
                       }
                     }
                     run.Write(w, dw);
                   });
}

void ExpertBalance(const Run& run) {
  const graph::ExpertsAttributes& a = run.op.attributes.experts;
  const Integers& targets = run.integers(0);
  const double all = run.in(1).back();
  const auto valid = static_cast<double>(
      std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; }));
  const double factor = run.LossGradientScale() * valid / all;
  Array slopes(static_cast<size_t>(a.count), 0.0);
  for (int64_t e = 0; e < a.count; ++e) {
    slopes[e] = factor * a.balance_loss * static_cast<double>(a.count) * run.in(1)[e] / all;
  }
  slopes.push_back(factor * a.z_loss);
  run.Write(0, slopes);
}

}  // namespace

constinit const Rule kRouteExperts = RouteExperts;
constinit const Rule kRouteExpertsBackward = RouteExpertsBackward;
constinit const Rule kDispatchRows = DispatchRows;
constinit const Rule kDispatchRowsBackward = DispatchRowsBackward;
constinit const Rule kExpertLinear = ExpertLinear;
constinit const Rule kExpertLinearBackwardInput = ExpertLinearBackwardInput;
constinit const Rule kExpertLinearBackwardWeight = ExpertLinearBackwardWeight;
constinit const Rule kCombineRows = CombineRows;
constinit const Rule kCombineRowsBackward = CombineRowsBackward;
constinit const Rule kExpertBalance = ExpertBalance;

}  // namespace milepost::ops::reference
