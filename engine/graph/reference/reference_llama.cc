// RMSNorm, SwiGLU and rotary positions.
#include <cmath>
#include <numbers>

#include "engine/graph/reference/reference_run.h"

namespace milepost::graph::reference {

void RmsNorm(const Run& run) {
  const bool residual = run.op.kind == OpKind::kResidualRmsNorm;
  Array x = run.in(0);
  for (size_t i = 0; residual && i < x.size(); ++i) x[i] += run.in(1)[i];
  const Array& gamma = run.in(residual ? 2 : 1);
  const int64_t width = static_cast<int64_t>(gamma.size());
  Array y(x.size());
  Array rstds(x.size() / width);
  for (size_t row = 0; row < rstds.size(); ++row) {
    double squares = 0;
    for (int64_t c = 0; c < width; ++c) squares += x[row * width + c] * x[row * width + c];
    rstds[row] = 1 / std::sqrt(squares / width + run.op.attributes.epsilon);
    for (int64_t c = 0; c < width; ++c) {
      y[row * width + c] = x[row * width + c] * rstds[row] * gamma[c];
    }
  }
  if (residual) run.Write(0, x);
  run.Write(residual ? 1 : 0, y);
  run.Write(residual ? 2 : 1, rstds);
}

// Inputs x, gamma, rstd, dy, dsum.
void RmsNormBackward(const Run& run) {
  const Array& x = run.in(0);
  const Array& gamma = run.in(1);
  const Array& dy = run.in(3);
  const int64_t width = static_cast<int64_t>(gamma.size());
  Array dx(x.size());
  Array dgamma(width, 0.0);
  for (size_t row = 0; row < x.size() / width; ++row) {
    const double rstd = run.in(2)[row];
    double sum = 0;  // of dy gamma x
    for (int64_t c = 0; c < width; ++c) {
      const size_t i = row * width + c;
      dgamma[c] += dy[i] * x[i] * rstd;
      sum += dy[i] * gamma[c] * x[i];
    }
    for (int64_t c = 0; c < width; ++c) {
      const size_t i = row * width + c;
      dx[i] = rstd * dy[i] * gamma[c] - rstd * rstd * rstd * x[i] * sum / width +
              (run.has_input(4) ? run.in(4)[i] : 0);
    }
  }
  run.Write(0, dx);
  run.Write(1, dgamma);
}

void SwiGlu(const Run& run) {
  const int64_t width = run.dim(0, 1) / 2;
  const Array& x = run.in(0);
  Array y(x.size() / 2);
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t at = i / width * 2 * width + i % width;
    y[i] = x[at] / (1 + std::exp(-x[at])) * x[at + width];
  }
  run.Write(0, y);
}

void SwiGluBackward(const Run& run) {
  const int64_t width = run.dim(0, 1) / 2;
  const Array& x = run.in(0);
  const Array& dy = run.in(1);
  Array dx(x.size());
  for (size_t i = 0; i < dy.size(); ++i) {
    const size_t at = i / width * 2 * width + i % width;
    const double gate = x[at];
    const double s = 1 / (1 + std::exp(-gate));
    dx[at] = dy[i] * x[at + width] * (s + gate * s * (1 - s));
    dx[at + width] = dy[i] * gate * s;
  }
  run.Write(0, dx);
}

// Calls head(offset of the head's first element, input of its gamma) for the heads of q and k.
template <typename Head>
static void ForNormedHeads(const Run& run, const Head& head) {
  const Attributes& a = run.op.attributes;
  const int64_t width = run.dim(0, 1);
  for (int64_t row = 0; row < run.dim(0, 0); ++row) {
    for (int64_t h = 0; h < a.heads + a.kv_heads; ++h) {
      head(row * width + h * run.dim(1, 0), h < a.heads ? 1 : 2);
    }
  }
}

static double Rms(const Run& run, int64_t at) {
  const int64_t size = run.dim(1, 0);
  double squares = 0;
  for (int64_t i = at; i < at + size; ++i) squares += run.in(0)[i] * run.in(0)[i];
  return std::sqrt(squares / static_cast<double>(size) + run.op.attributes.epsilon);
}

void QkNorm(const Run& run) {
  Array out = run.in(0);
  ForNormedHeads(run, [&](int64_t at, int gamma) {
    const double rms = Rms(run, at);
    for (int64_t i = 0; i < run.dim(1, 0); ++i) out[at + i] *= run.in(gamma)[i] / rms;
  });
  run.Write(0, out);
}

// Inputs qkv, gamma_q, gamma_k, dout. With y = x / rms(x): dx = (g - y mean(g y)) / rms.
void QkNormBackward(const Run& run) {
  const int64_t size = run.dim(1, 0);
  const Array& dout = run.in(3);
  Array dqkv = dout;
  Array dgammas[] = {Array(size, 0.0), Array(size, 0.0)};
  ForNormedHeads(run, [&](int64_t at, int gamma) {
    const double rms = Rms(run, at);
    double mean = 0;
    for (int64_t i = 0; i < size; ++i) {
      const double y = run.in(0)[at + i] / rms;
      mean += dout[at + i] * run.in(gamma)[i] * y / static_cast<double>(size);
      dgammas[gamma - 1][i] += dout[at + i] * y;
    }
    for (int64_t i = 0; i < size; ++i) {
      const double y = run.in(0)[at + i] / rms;
      dqkv[at + i] = (dout[at + i] * run.in(gamma)[i] - y * mean) / rms;
    }
  });
  run.Write(0, dqkv);
  run.Write(1, dgammas[0]);
  run.Write(2, dgammas[1]);
}

static double RopeFrequency(const RopeAttributes& rope, int64_t pair, int64_t head_dim) {
  const double f = std::pow(rope.theta, -2.0 * static_cast<double>(pair) / head_dim);
  if (rope.factor == 1) return f;
  const double turns = rope.original_context * f / (2 * std::numbers::pi);  // over the old context
  if (turns < rope.low_frequency) return f / rope.factor;
  if (turns > rope.high_frequency) return f;
  const double keep = (turns - rope.low_frequency) / (rope.high_frequency - rope.low_frequency);
  return f * (keep + (1 - keep) / rope.factor);
}

void RopeTable(const Run& run) {
  const Shape& shape = run.graph.values[run.op.outputs[0].value].shape;
  const int64_t half = shape[1] / 2;
  Array table(shape[0] * shape[1]);
  for (int64_t t = 0; t < shape[0]; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const int64_t position = run.has_input(0) ? run.integers(0)[t] : t;
      const double angle = position * RopeFrequency(run.op.attributes.rope, i, shape[1]);
      table[t * shape[1] + i] = std::cos(angle);
      table[t * shape[1] + half + i] = std::sin(angle);
    }
  }
  run.Write(0, table);
}

// The backward turns the other way.
void Rope(const Run& run) {
  const double direction = run.op.kind == OpKind::kRope ? 1 : -1;
  const Attributes& a = run.op.attributes;
  const int64_t size = run.dim(1, 1);
  const int64_t half = size / 2;
  const int64_t width = run.dim(0, 1);
  Array out = run.in(0);
  for (int64_t row = 0; row < run.dim(0, 0); ++row) {
    const double* cosines =
        run.in(1).data() + (run.has_input(2) ? run.integers(2)[row] : row % a.sequence) * size;
    for (int64_t head = 0; head < a.heads + a.kv_heads; ++head) {
      for (int64_t i = 0; i < half; ++i) {
        double& x = out[row * width + head * size + i];
        double& y = out[row * width + head * size + half + i];
        const double sine = direction * cosines[half + i];
        const double turned = x * cosines[i] - y * sine;
        y = y * cosines[i] + x * sine;
        x = turned;
      }
    }
  }
  run.Write(0, out);
}

}  // namespace milepost::graph::reference
