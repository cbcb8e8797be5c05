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

// x[N,C] wte^T and the bias.
Array Logits(const Run& run) {
  const int64_t vocabulary = run.dim(1, 0);
  Array logits =
      MatMul(run.in(0), false, run.in(1), true, run.dim(0, 0), vocabulary, run.dim(0, 1));
  for (size_t i = 0; run.has_input(3) && i < logits.size(); ++i) {
    logits[i] += run.in(3)[i % static_cast<size_t>(vocabulary)];
  }
  return logits;
}

double LogSumExp(const double* row, int64_t n) {
  const double highest = *std::max_element(row, row + n);
  double total = 0;
  for (int64_t v = 0; v < n; ++v) total += std::exp(row[v] - highest);
  return highest + std::log(total);
}

// What the logits' gradients make of x, wte and the bias.
void WriteGradients(const Run& run, const Array& logits) {
  const int64_t rows = run.dim(0, 0), width = run.dim(0, 1), vocabulary = run.dim(1, 0);
  const Array dwte = MatMul(logits, true, run.in(0), false, vocabulary, width, rows);
  Array dx = MatMul(logits, false, run.in(1), false, rows, width, vocabulary);
  for (size_t i = 0; run.has_input(4) && i < dx.size(); ++i) dx[i] += run.in(4)[i];
  run.Write(1, dx);
  run.Write(2, dwte);
  run.Write(3, ColumnSums(logits, vocabulary));
}

// Of one rank, which has all columns: what it knows of each row.
void LmHeadParts(const Run& run) {
  const int64_t rows = run.dim(0, 0), vocabulary = run.dim(1, 0);
  const Array logits = Logits(run);
  Array parts(static_cast<size_t>(4 * rows), 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    const double* row = logits.data() + r * vocabulary;
    const int32_t target = run.integers(2)[r];
    if (target < 0) continue;
    const double* best = std::max_element(row, row + vocabulary);
    double sum = 0;
    for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(row[v] - *best);
    const double values[4] = {*best, sum, row[target], best - row == target ? 1.0 : 0.0};
    std::copy_n(values, 4, parts.begin() + 4 * r);
  }
  run.Write(0, parts);
  run.Write(1, logits);
}

// The loss; with gradients where the op has them. Of one rank: it needs no parts.
void LmHeadLoss(const Run& run) {
  const int64_t rows = run.dim(0, 0), vocabulary = run.dim(1, 0);
  Array logits = Logits(run);
  const bool training = run.op.kind == OpKind::kLmHeadLossBackward;
  const double scale = run.LossGradientScale();
  Array sums(kLossSums, 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    double* row = logits.data() + r * vocabulary;
    const int32_t target = run.integers(2)[r];
    const double lse = LogSumExp(row, vocabulary);
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
  WriteGradients(run, logits);
  run.Write(4, logits);
}

// log p(target), or what its gradients make.
void LmHeadLogProbs(const Run& run) {
  const int64_t rows = run.dim(0, 0), vocabulary = run.dim(1, 0);
  Array logits = Logits(run);
  const bool training = run.op.kind == OpKind::kLmHeadLogProbsBackward;
  Array log_probs(static_cast<size_t>(rows), 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    double* row = logits.data() + r * vocabulary;
    const int32_t target = run.integers(2)[r];
    const double lse = LogSumExp(row, vocabulary);
    if (target >= 0) log_probs[r] = row[target] - lse;
    for (int64_t v = 0; training && v < vocabulary; ++v) {
      const double one = v == target ? 1 : 0;
      row[v] = target < 0 ? 0 : (one - std::exp(row[v] - lse)) * run.in(5)[r];
    }
  }
  training ? WriteGradients(run, logits) : run.Write(0, log_probs);
}

void LmHeadLogits(const Run& run) {
  const Attributes& a = run.op.attributes;
  const int64_t width = run.dim(0, 1);
  const int64_t position = run.context.position < 0 ? a.sequence - 1 : run.context.position;
  Array x;
  for (int64_t b = 0; b < a.batch && !a.every_row; ++b) {
    const auto row = run.in(0).begin() + (b * a.sequence + position) * width;
    x.insert(x.end(), row, row + width);
  }
  if (a.every_row) x = run.in(0);
  const auto rows = static_cast<int64_t>(x.size()) / width;
  Array logits = MatMul(x, false, run.in(1), true, rows, run.dim(1, 0), width);
  for (size_t i = 0; run.has_input(2) && i < logits.size(); ++i) {
    logits[i] += run.in(2)[i % run.in(2).size()];
  }
  run.Write(0, logits);
}

}  // namespace

constinit const Rule kLmHeadParts = LmHeadParts;
constinit const Rule kLmHeadLoss = LmHeadLoss;
constinit const Rule kLmHeadLossBackward = LmHeadLoss;
constinit const Rule kLmHeadLogProbs = LmHeadLogProbs;
constinit const Rule kLmHeadLogProbsBackward = LmHeadLogProbs;
constinit const Rule kLmHeadLogits = LmHeadLogits;

}  // namespace milepost::ops::reference
