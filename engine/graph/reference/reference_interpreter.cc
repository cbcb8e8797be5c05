#include "engine/graph/reference/reference_interpreter.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/check.h"
#include "engine/graph/reference/reference_run.h"

namespace milepost::graph {

namespace reference {

Array MatMul(const Array& a, bool transpose_a, const Array& b, bool transpose_b, int64_t m,
             int64_t n, int64_t k) {
  Array out(m * n, 0.0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t p = 0; p < k; ++p) {
      const double left = transpose_a ? a[p * m + i] : a[i * k + p];
      for (int64_t j = 0; j < n; ++j) {
        out[i * n + j] += left * (transpose_b ? b[j * k + p] : b[p * n + j]);
      }
    }
  }
  return out;
}

Array ColumnSums(const Array& a, int64_t columns) {
  Array sums(columns, 0.0);
  for (size_t i = 0; i < a.size(); ++i) sums[i % columns] += a[i];
  return sums;
}

}  // namespace reference

namespace {

using reference::Array;
using reference::ColumnSums;
using reference::MatMul;
using reference::Run;

// The row of a table that row r of the batch reads: where the index is not given, `fallback`.
int64_t TableRow(const Run& run, size_t index, int64_t r, int64_t fallback) {
  return run.has_input(index) ? run.integers(index)[r] : fallback;
}

void Embedding(const Run& run) {
  const int64_t width = run.dim(1, 1);
  const int64_t rows = run.dim(0, 0);
  Array x(rows * width);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t position = TableRow(run, 3, r, r % run.op.attributes.sequence);
    const int64_t segment = TableRow(run, 5, r, 0);
    for (int64_t c = 0; c < width; ++c) {
      double sum = run.in(1)[run.integers(0)[r] * width + c];
      if (run.has_input(2)) sum += run.in(2)[position * width + c];
      if (run.has_input(4)) sum += run.in(4)[segment * width + c];
      x[r * width + c] = sum * run.Dropout(r * width + c);
    }
  }
  run.Write(0, x);
}

void EmbeddingBackward(const Run& run) {
  const int64_t width = run.dim(1, 1);
  const int64_t rows = run.dim(0, 0);
  Array tables[3];
  for (size_t i = 0; i < 3; ++i) {
    const ValueId output = run.op.outputs[i].value;
    if (output != kNoValue) tables[i].assign(run.values[output].size(), 0.0);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t places[3] = {run.integers(0)[r],
                               TableRow(run, 2, r, r % run.op.attributes.sequence),
                               TableRow(run, 3, r, 0)};
    for (int64_t c = 0; c < width; ++c) {
      const double g = run.in(1)[r * width + c] * run.Dropout(r * width + c);
      for (size_t i = 0; i < 3; ++i) {
        if (!tables[i].empty()) tables[i][places[i] * width + c] += g;
      }
    }
  }
  for (size_t i = 0; i < 3; ++i) run.Write(i, tables[i]);
}

void Dropout(const Run& run) {
  Array y = run.in(0);
  for (size_t i = 0; i < y.size(); ++i) y[i] *= run.Dropout(static_cast<int64_t>(i));
  run.Write(0, y);
}

// Outputs `first`, first + 1, first + 2: y, mean, rstd.
void Normalise(const Run& run, const Array& x, const Array& gamma, const Array& beta,
               size_t first) {
  const int64_t width = static_cast<int64_t>(gamma.size());
  const int64_t rows = static_cast<int64_t>(x.size()) / width;
  Array y(x.size());
  Array means(rows);
  Array rstds(rows);
  for (int64_t r = 0; r < rows; ++r) {
    double mean = 0;
    for (int64_t c = 0; c < width; ++c) mean += x[r * width + c] / width;
    double variance = 0;
    for (int64_t c = 0; c < width; ++c) {
      variance += (x[r * width + c] - mean) * (x[r * width + c] - mean) / width;
    }
    const double rstd = 1 / std::sqrt(variance + run.op.attributes.epsilon);
    means[r] = mean;
    rstds[r] = rstd;
    for (int64_t c = 0; c < width; ++c) {
      y[r * width + c] = (x[r * width + c] - mean) * rstd * gamma[c] + beta[c];
    }
  }
  run.Write(first, y);
  run.Write(first + 1, means);
  run.Write(first + 2, rstds);
}

void LayerNorm(const Run& run) { Normalise(run, run.in(0), run.in(1), run.in(2), 0); }

void ResidualLayerNorm(const Run& run) {
  Array sum = run.in(0);
  for (size_t i = 0; i < sum.size(); ++i) {
    sum[i] += run.in(1)[i] * run.Dropout(static_cast<int64_t>(i));
  }
  Normalise(run, sum, run.in(2), run.in(3), 1);
  run.Write(0, sum);
}

// Inputs x, gamma, mean, rstd, dy, dsum.
void LayerNormBackward(const Run& run) {
  const bool residual = run.op.kind == OpKind::kResidualLayerNormBackward;
  const Array& x = run.in(0);
  const Array& gamma = run.in(1);
  const Array& dy = run.in(4);
  const int64_t width = static_cast<int64_t>(gamma.size());
  Array dx(x.size());
  Array dgamma(width, 0.0);
  Array dbeta(width, 0.0);
  for (size_t row = 0; row < x.size() / width; ++row) {
    const double mean = run.in(2)[row];
    const double rstd = run.in(3)[row];
    double sum_g = 0;
    double sum_gx = 0;
    for (int64_t c = 0; c < width; ++c) {
      const size_t i = row * width + c;
      const double normal = (x[i] - mean) * rstd;
      dgamma[c] += dy[i] * normal;
      dbeta[c] += dy[i];
      sum_g += dy[i] * gamma[c] / width;
      sum_gx += dy[i] * gamma[c] * normal / width;
    }
    for (int64_t c = 0; c < width; ++c) {
      const size_t i = row * width + c;
      dx[i] = rstd * (dy[i] * gamma[c] - sum_g - (x[i] - mean) * rstd * sum_gx) +
              (run.has_input(5) ? run.in(5)[i] : 0);
    }
  }
  run.Write(0, dx);
  run.Write(residual ? 2 : 1, dgamma);
  run.Write(residual ? 3 : 2, dbeta);
  if (!residual) return;
  for (size_t i = 0; i < dx.size(); ++i) dx[i] *= run.Dropout(static_cast<int64_t>(i));
  run.Write(1, dx);
}

// The weights of a transposed layer, stacked: [M,K] of all parts. Otherwise the one weight.
Array LinearWeight(const Run& run) {
  Array weight = run.in(1);
  for (int64_t i = 1; i < run.op.attributes.parts; ++i) {
    weight.insert(weight.end(), run.in(1 + i).begin(), run.in(1 + i).end());
  }
  return weight;
}

const double kGeluScale = std::sqrt(2 / std::numbers::pi);
constexpr double kGeluCubic = 0.044715;

double Phi(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }
double TanhGelu(double x) {
  return 0.5 * x * (1 + std::tanh(kGeluScale * (x + kGeluCubic * x * x * x)));
}
double TanhGeluSlope(double x) {
  const double t = std::tanh(kGeluScale * (x + kGeluCubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kGeluScale * (1 + 3 * kGeluCubic * x * x);
}

void Linear(const Run& run) {
  const Attributes& a = run.op.attributes;
  const int64_t width = run.graph.values[run.op.outputs.back().value].shape[1];
  Array bias;
  for (size_t i = 1 + a.parts; i < run.op.inputs.size(); ++i) {
    bias.insert(bias.end(), run.in(i).begin(), run.in(i).end());
  }
  Array y = MatMul(run.in(0), false, LinearWeight(run), a.transposed, run.dim(0, 0), width,
                   run.dim(0, 1));
  for (size_t i = 0; !bias.empty() && i < y.size(); ++i) y[i] += bias[i % width];
  run.Write(0, y);
  if (!a.gelu) return;
  for (double& v : y) v = TanhGelu(v);
  run.Write(1, y);
}

void LinearBackwardInput(const Run& run) {
  const int64_t width = run.graph.values[run.op.outputs[0].value].shape[1];
  Array dx = MatMul(run.in(0), false, LinearWeight(run), !run.op.attributes.transposed,
                    run.dim(0, 0), width, run.dim(0, 1));
  if (run.op.attributes.gelu) {
    for (size_t i = 0; i < dx.size(); ++i) dx[i] *= TanhGeluSlope(run.in(2)[i]);
    return run.Write(0, dx);
  }
  const size_t dsum = 1 + run.op.attributes.parts;
  for (size_t i = 0; run.op.inputs.size() > dsum && i < dx.size(); ++i) dx[i] += run.in(dsum)[i];
  run.Write(0, dx);
}

void LinearBackwardWeight(const Run& run) {
  const int64_t rows = run.dim(0, 0);
  const int64_t in = run.dim(0, 1);
  const int64_t out = run.dim(1, 1);
  const Array sums = ColumnSums(run.in(1), out);
  const size_t parts = run.op.attributes.parts;
  if (!run.op.attributes.transposed) {
    run.Write(0, MatMul(run.in(0), true, run.in(1), false, in, out, rows));
    return run.Write(1, sums);
  }
  const Array all = MatMul(run.in(1), true, run.in(0), false, out, in, rows);
  int64_t first = 0;
  for (size_t i = 0; i < parts; ++i) {
    const int64_t last = first + run.graph.values[run.op.outputs[i].value].shape[0];
    run.Write(i, Array(all.begin() + first * in, all.begin() + last * in));
    run.Write(parts + i, Array(sums.begin() + first, sums.begin() + last));
    first = last;
  }
}

void Gelu(const Run& run) {
  Array y = run.in(0);
  for (double& v : y) v = run.op.attributes.exact ? v * Phi(v) : TanhGelu(v);
  run.Write(0, y);
}

void GeluBackward(const Run& run) {
  Array dx = run.in(1);
  for (size_t i = 0; i < dx.size(); ++i) {
    const double x = run.in(0)[i];
    dx[i] *= run.op.attributes.exact
                 ? Phi(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi)
                 : TanhGeluSlope(x);
  }
  run.Write(0, dx);
}

// One (sequence, head) of packed qkv[B,T,(H+2G)D]: element d of q, k or v at position t.
struct Head {
  int64_t batch;
  int64_t head;
  int64_t sequence;
  int64_t heads;
  int64_t kv_heads;
  int64_t size;  // elements of one head
  bool causal;
  const int32_t* documents;  // of the sequence, or null

  int64_t Packed(int64_t part, int64_t t, int64_t d) const {
    const int64_t shared = head * kv_heads / heads;
    const int64_t at = part == 0 ? head : heads + (part - 1) * kv_heads + shared;
    return ((batch * sequence + t) * (heads + 2 * kv_heads) + at) * size + d;
  }
  int64_t Out(int64_t t, int64_t d) const {
    return (batch * sequence + t) * heads * size + head * size + d;
  }
  bool Sees(int64_t query, int64_t key) const {
    return (!causal || key <= query) &&
           (documents == nullptr || documents[query] == documents[key]);
  }
  int64_t Lse(int64_t t) const { return (batch * heads + head) * sequence + t; }
  double Score(const Array& qkv, int64_t query, int64_t key) const {
    double score = 0;
    for (int64_t d = 0; d < size; ++d) {
      score += qkv[Packed(0, query, d)] * qkv[Packed(1, key, d)];
    }
    return score / std::sqrt(static_cast<double>(size));
  }
};

template <typename Fn>
void ForEachHead(const Run& run, const Fn& fn) {
  const Attributes& a = run.op.attributes;
  const int64_t size = run.dim(0, 1) / (a.heads + 2 * a.kv_heads);
  const size_t documents = run.op.kind == OpKind::kAttention ? 1 : 4;
  const int32_t* ids = run.has_input(documents) ? run.integers(documents).data() : nullptr;
  const int64_t step = ids == nullptr ? 0 : a.sequence;
  for (int64_t b = 0; b < a.batch; ++b) {
    for (int64_t h = 0; h < a.heads; ++h) {
      fn(Head{b, h, a.sequence, a.heads, a.kv_heads, size, a.causal, ids + b * step});
    }
  }
}

void AttentionHead(const Head& head, const Array& qkv, Array& out, Array& lse) {
  for (int64_t t = 0; t < head.sequence; ++t) {
    Array scores(head.sequence, -HUGE_VAL);
    for (int64_t s = 0; s < head.sequence; ++s) {
      if (head.Sees(t, s)) scores[s] = head.Score(qkv, t, s);
    }
    const double highest = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (double score : scores) total += std::exp(score - highest);
    lse[head.Lse(t)] = highest + std::log(total);
    for (int64_t s = 0; s < head.sequence; ++s) {
      const double p = std::exp(scores[s] - lse[head.Lse(t)]);
      for (int64_t d = 0; d < head.size; ++d) out[head.Out(t, d)] += p * qkv[head.Packed(2, s, d)];
    }
  }
}

void Attention(const Run& run) {
  Array out(run.values[run.op.outputs[0].value].size(), 0.0);
  Array lse(run.values[run.op.outputs[1].value].size(), 0.0);
  ForEachHead(run, [&](const Head& head) { AttentionHead(head, run.in(0), out, lse); });
  run.Write(0, out);
  run.Write(1, lse);
}

void AttentionBackwardHead(const Run& run, const Head& head, Array& dqkv) {
  const Array& qkv = run.in(0);
  const Array& dout = run.in(3);
  const double scale = 1 / std::sqrt(static_cast<double>(head.size));
  for (int64_t t = 0; t < head.sequence; ++t) {
    double row = 0;  // sum of dout * out: what softmax's backward subtracts
    for (int64_t d = 0; d < head.size; ++d) row += dout[head.Out(t, d)] * run.in(1)[head.Out(t, d)];
    for (int64_t s = 0; s < head.sequence; ++s) {
      if (!head.Sees(t, s)) continue;
      const double p = std::exp(head.Score(qkv, t, s) - run.in(2)[head.Lse(t)]);
      double dp = 0;
      for (int64_t d = 0; d < head.size; ++d) {
        dp += dout[head.Out(t, d)] * qkv[head.Packed(2, s, d)];
        dqkv[head.Packed(2, s, d)] += p * dout[head.Out(t, d)];
      }
      const double dscore = p * (dp - row) * scale;
      for (int64_t d = 0; d < head.size; ++d) {
        dqkv[head.Packed(0, t, d)] += dscore * qkv[head.Packed(1, s, d)];
        dqkv[head.Packed(1, s, d)] += dscore * qkv[head.Packed(0, t, d)];
      }
    }
  }
}

void AttentionBackward(const Run& run) {
  Array dqkv(run.in(0).size(), 0.0);
  ForEachHead(run, [&](const Head& head) { AttentionBackwardHead(run, head, dqkv); });
  run.Write(0, dqkv);
}

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

// Of images; false: another kind of op.
bool ExecuteImages(const Run& run) {
  switch (run.op.kind) {
    case OpKind::kNormalizeImages:
      return reference::NormalizeImages(run), true;
    case OpKind::kConvolution:
      return reference::Convolution(run), true;
    case OpKind::kConvolutionBackwardData:
      return reference::ConvolutionBackwardData(run), true;
    case OpKind::kConvolutionBackwardWeights:
      return reference::ConvolutionBackwardWeights(run), true;
    case OpKind::kBatchNormSums:
      return reference::BatchNormSums(run), true;
    case OpKind::kReduceStatistics:
      return reference::ReduceStatistics(run), true;
    case OpKind::kBatchNormStatistics:
      return reference::BatchNormStatistics(run), true;
    case OpKind::kBatchNormRunning:
      return reference::BatchNormRunning(run), true;
    case OpKind::kBatchNorm:
      return reference::BatchNorm(run), true;
    case OpKind::kBatchNormBackwardSums:
      return reference::BatchNormBackwardSums(run), true;
    case OpKind::kBatchNormBackward:
      return reference::BatchNormBackward(run), true;
    case OpKind::kMaxPool:
      return reference::MaxPool(run), true;
    case OpKind::kMaxPoolBackward:
      return reference::MaxPoolBackward(run), true;
    case OpKind::kAveragePool:
    case OpKind::kAveragePoolBackward:
      return reference::AveragePool(run), true;
    case OpKind::kClassifierLoss:
    case OpKind::kClassifierLossBackward:
      return reference::ClassifierLoss(run), true;
    default:
      return false;
  }
}

void Execute(const Run& run) {
  if (ExecuteImages(run)) return;
  switch (run.op.kind) {
    case OpKind::kEmbedding:
      return Embedding(run);
    case OpKind::kLayerNorm:
      return LayerNorm(run);
    case OpKind::kResidualLayerNorm:
      return ResidualLayerNorm(run);
    case OpKind::kRmsNorm:
    case OpKind::kResidualRmsNorm:
      return reference::RmsNorm(run);
    case OpKind::kQuantize:
      return reference::Quantize(run);
    case OpKind::kLinear:
      return run.op.attributes.fp8 ? reference::Fp8Linear(run) : Linear(run);
    case OpKind::kSwiGlu:
      return reference::SwiGlu(run);
    case OpKind::kQkNorm:
      return reference::QkNorm(run);
    case OpKind::kQkNormBackward:
      return reference::QkNormBackward(run);
    case OpKind::kRopeTable:
      return reference::RopeTable(run);
    case OpKind::kRope:
    case OpKind::kRopeBackward:
      return reference::Rope(run);
    case OpKind::kGelu:
      return Gelu(run);
    case OpKind::kDropout:
      return Dropout(run);
    case OpKind::kAttention:
      return Attention(run);
    case OpKind::kCachedAttention:
      return reference::CachedAttention(run);
    case OpKind::kLmHeadLoss:
    case OpKind::kLmHeadLossBackward:
      return LmHeadLoss(run);
    case OpKind::kLmHeadLogits:
      return LmHeadLogits(run);
    case OpKind::kEmbeddingBackward:
      return EmbeddingBackward(run);
    case OpKind::kLayerNormBackward:
    case OpKind::kResidualLayerNormBackward:
      return LayerNormBackward(run);
    case OpKind::kRmsNormBackward:
      return reference::RmsNormBackward(run);
    case OpKind::kSwiGluBackward:
      return reference::SwiGluBackward(run);
    case OpKind::kLinearBackwardInput:
      return run.op.attributes.fp8 ? reference::Fp8LinearBackwardInput(run)
                                   : LinearBackwardInput(run);
    case OpKind::kLinearBackwardWeight:
      return run.op.attributes.fp8 ? reference::Fp8LinearBackwardWeight(run)
                                   : LinearBackwardWeight(run);
    case OpKind::kGeluBackward:
      return GeluBackward(run);
    case OpKind::kAttentionBackward:
      return AttentionBackward(run);
    default:
      MP_CHECK(false) << Name(run.op.kind) << " works on flat groups, not on values";
  }
}

}  // namespace

ReferenceInterpreter::ReferenceInterpreter(const Graph& graph)
    : graph_(graph), values_(graph.values.size()), integers_(graph.values.size()) {
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const Value& value = graph.values[i];
    if (value.dtype == DType::kI32) {
      integers_[i].resize(Elements(value.shape), 0);
    } else {
      values_[i].resize(Elements(value.shape), 0.0);
    }
  }
}

void ReferenceInterpreter::Run(const ReferenceContext& context) {
  for (const Op& op : graph_.ops) RunOp(op, context);
}

void ReferenceInterpreter::RunOp(const Op& op, const ReferenceContext& context) {
  Execute({graph_, op, context, values_, integers_});
}

}  // namespace milepost::graph
