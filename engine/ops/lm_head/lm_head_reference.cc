#include <algorithm>
#include <cmath>

#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

using graph::Attributes;
using graph::kLossCorrect;
using graph::kLossSum;
using graph::kLossSums;
using graph::kLossTargets;
using graph::OpKind;

// The loss of x[N,C] wte^T; with gradients where the op has them.
void LmHeadLoss(const Run& run) {
  const int64_t rows = run.dim(0, 0);
  const int64_t width = run.dim(0, 1);
  const int64_t vocabulary = run.dim(1, 0);
  Array logits = MatMul(run.in(0), false, run.in(1), true, rows, vocabulary, width);
  const bool training = run.op.kind == OpKind::kLmHeadLossBackward;
  const double scale = run.LossGradientScale();
  Array sums(kLossSums, 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    double* row = logits.data() + r * vocabulary;
    for (int64_t v = 0; run.has_input(3) && v < vocabulary; ++v) row[v] += run.in(3)[v];
    const int32_t target = run.integers(2)[r];
    const double highest = *std::max_element(row, row + vocabulary);
    double total = 0;
    for (int64_t v = 0; v < vocabulary; ++v) total += std::exp(row[v] - highest);
    const double lse = highest + std::log(total);
    if (target >= 0) {
      const int64_t best = std::max_element(row, row + vocabulary) - row;
      sums[kLossSum] += lse - row[target];
      sums[kLossTargets] += 1;
      sums[kLossCorrect] += !training && best == target ? 1 : 0;
    }
    for (int64_t v = 0; v < vocabulary; ++v) {
      row[v] = target < 0 ? 0 : (std::exp(row[v] - lse) - (v == target ? 1 : 0)) * scale;
    }
  }
  run.Write(0, sums);
  if (!training) return;
  const Array dwte = MatMul(logits, true, run.in(0), false, vocabulary, width, rows);
  Array dx = MatMul(logits, false, run.in(1), false, rows, width, vocabulary);
  for (size_t i = 0; run.has_input(4) && i < dx.size(); ++i) dx[i] += run.in(4)[i];
  run.Write(1, dx);
  run.Write(2, dwte);
  run.Write(3, ColumnSums(logits, vocabulary));
}

// log p(target) of x[N,C] wte^T, and what its gradients make of x and wte.
void LmHeadLogProbs(const Run& run) {
  const int64_t rows = run.dim(0, 0), width = run.dim(0, 1), vocabulary = run.dim(1, 0);
  Array logits = MatMul(run.in(0), false, run.in(1), true, rows, vocabulary, width);
  const bool training = run.op.kind == OpKind::kLmHeadLogProbsBackward;
  Array log_probs(static_cast<size_t>(rows), 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    double* row = logits.data() + r * vocabulary;
    for (int64_t v = 0; run.has_input(3) && v < vocabulary; ++v) row[v] += run.in(3)[v];
    const int32_t target = run.integers(2)[r];
    const double highest = *std::max_element(row, row + vocabulary);
    double total = 0;
    for (int64_t v = 0; v < vocabulary; ++v) total += std::exp(row[v] - highest);
    const double lse = highest + std::log(total);
    if (target >= 0) log_probs[r] = row[target] - lse;
    for (int64_t v = 0; training && v < vocabulary; ++v) {
      const double one = v == target ? 1 : 0;
      row[v] = target < 0 ? 0 : (one - std::exp(row[v] - lse)) * run.in(5)[r];
    }
  }
  if (!training) return run.Write(0, log_probs);
  Array dx = MatMul(logits, false, run.in(1), false, rows, width, vocabulary);
  for (size_t i = 0; run.has_input(4) && i < dx.size(); ++i) dx[i] += run.in(4)[i];
  run.Write(1, dx);
  run.Write(2, MatMul(logits, true, run.in(0), false, vocabulary, width, rows));
  run.Write(3, ColumnSums(logits, vocabulary));
}

void LmHeadLogits(const Run& run) {
  const Attributes& a = run.op.attributes;
  const int64_t width = run.dim(0, 1);
  const int64_t position = run.context.position < 0 ? a.sequence - 1 : run.context.position;
  Array x;
  for (int64_t b = 0; b < a.batch; ++b) {
    const auto row = run.in(0).begin() + (b * a.sequence + position) * width;
    x.insert(x.end(), row, row + width);
  }
  Array logits = MatMul(x, false, run.in(1), true, a.batch, run.dim(1, 0), width);
  for (size_t i = 0; run.has_input(2) && i < logits.size(); ++i) {
    logits[i] += run.in(2)[i % run.in(2).size()];
  }
  run.Write(0, logits);
}

}  // namespace

constinit const Rule kLmHeadLoss = LmHeadLoss;
constinit const Rule kLmHeadLossBackward = LmHeadLoss;
constinit const Rule kLmHeadLogProbs = LmHeadLogProbs;
constinit const Rule kLmHeadLogProbsBackward = LmHeadLogProbs;
constinit const Rule kLmHeadLogits = LmHeadLogits;

}  // namespace milepost::ops::reference
