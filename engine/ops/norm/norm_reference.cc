#include <cmath>

#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

using graph::OpKind;

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

void RmsNorm(const Run& run) {
  const bool residual = run.op.kind == OpKind::kResidualRmsNorm;
  Array x = run.in(0);
  for (size_t i = 0; residual && i < x.size(); ++i) x[i] += run.in(1)[i];
  const Array& gamma = run.in(residual ? 2 : 1);
  const double offset = run.op.attributes.gamma_offset;
  const int64_t width = static_cast<int64_t>(gamma.size());
  Array y(x.size());
  Array rstds(x.size() / width);
  for (size_t row = 0; row < rstds.size(); ++row) {
    double squares = 0;
    for (int64_t c = 0; c < width; ++c) squares += x[row * width + c] * x[row * width + c];
    rstds[row] = 1 / std::sqrt(squares / width + run.op.attributes.epsilon);
    for (int64_t c = 0; c < width; ++c) {
      y[row * width + c] = x[row * width + c] * rstds[row] * (offset + gamma[c]);
    }
  }
  if (residual) run.Write(0, x);
  run.Write(residual ? 1 : 0, y);
  run.Write(residual ? 2 : 1, rstds);
}

// Inputs x, gamma, rstd, dy, dsum.
void RmsNormBackward(const Run& run) {
  const Array& x = run.in(0);
  Array gamma = run.in(1);
  for (double& scale : gamma) scale += run.op.attributes.gamma_offset;
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

}  // namespace

constinit const Rule kLayerNorm = LayerNorm;
constinit const Rule kResidualLayerNorm = ResidualLayerNorm;
constinit const Rule kLayerNormBackward = LayerNormBackward;
constinit const Rule kResidualLayerNormBackward = LayerNormBackward;
constinit const Rule kRmsNorm = RmsNorm;
constinit const Rule kResidualRmsNorm = RmsNorm;
constinit const Rule kRmsNormBackward = RmsNormBackward;

}  // namespace milepost::ops::reference
