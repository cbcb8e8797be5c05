#include <algorithm>
#include <cmath>

#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

using graph::Attributes;

void BatchNormSums(const Run& run) {
  const int64_t channels = run.dim(0, 3);
  Array sums(2 * channels, 0.0);
  for (size_t i = 0; i < run.in(0).size(); ++i) {
    const double x = run.in(0)[i];
    sums[i % channels] += x;
    sums[channels + i % channels] += x * x;
  }
  run.Write(0, sums);
}

// There is one rank.
void ReduceStatistics(const Run& run) { run.Write(0, run.in(0)); }

void BatchNormStatistics(const Run& run) {
  const Attributes& a = run.op.attributes;
  const int64_t channels = run.dim(0, 1);
  const auto rows = static_cast<double>(a.image.rows);
  Array mean(channels), rstd(channels), move_mean(channels), move_variance(channels);
  for (int64_t c = 0; c < channels; ++c) {
    mean[c] = run.in(0)[c] / rows;
    const double squares = run.in(0)[channels + c] - rows * mean[c] * mean[c];
    rstd[c] = 1 / std::sqrt(squares / rows + a.epsilon);
    move_mean[c] = a.image.momentum * (mean[c] - run.in(1)[c]);
    move_variance[c] = a.image.momentum * (squares / (rows - 1) - run.in(2)[c]);
  }
  run.Write(0, mean);
  run.Write(1, rstd);
  run.Write(2, move_mean);
  run.Write(3, move_variance);
  run.Write(4, {1.0});
}

void BatchNormRunning(const Run& run) {
  Array rstd = run.in(1);
  for (double& value : rstd) value = 1 / std::sqrt(value + run.op.attributes.epsilon);
  run.Write(0, run.in(0));
  run.Write(1, rstd);
}

// Element i of what goes into the ReLU, without a residual.
double Normalised(const Run& run, size_t i) {
  const size_t c = i % run.in(1).size();
  return (run.in(0)[i] - run.in(1)[c]) * run.in(2)[c] * run.in(3)[c] + run.in(4)[c];
}

void BatchNorm(const Run& run) {
  Array y(run.in(0).size());
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = Normalised(run, i) + (run.has_input(5) ? run.in(5)[i] : 0);
    if (run.op.attributes.image.relu) y[i] = std::max(y[i], 0.0);
  }
  run.Write(0, y);
}

void BatchNormBackwardSums(const Run& run) {  // x, mean, rstd, gamma, beta, dy, dy2, y
  const size_t channels = run.in(1).size();
  Array g = run.in(5), sums(2 * channels, 0.0);
  for (size_t i = 0; i < g.size(); ++i) {
    const size_t c = i % channels;
    if (run.has_input(6)) g[i] += run.in(6)[i];
    const double y = run.has_input(7) ? run.in(7)[i] : Normalised(run, i);
    if (run.op.attributes.image.relu && y <= 0) g[i] = 0;
    sums[c] += g[i];
    sums[channels + c] += g[i] * (run.in(0)[i] - run.in(1)[c]) * run.in(2)[c];
  }
  run.Write(0, sums);
  run.Write(1, Array(sums.begin() + channels, sums.end()));
  run.Write(2, Array(sums.begin(), sums.begin() + channels));
  run.Write(3, g);
}

void BatchNormBackward(const Run& run) {  // x, mean, rstd, gamma, beta, g, sums
  const size_t channels = run.in(1).size();
  const double rows = static_cast<double>(run.in(0).size()) / static_cast<double>(channels);
  Array dx(run.in(0).size());
  for (size_t i = 0; i < dx.size(); ++i) {
    const size_t c = i % channels;
    const double g = run.op.attributes.image.relu && Normalised(run, i) <= 0 ? 0 : run.in(5)[i];
    const double xhat = (run.in(0)[i] - run.in(1)[c]) * run.in(2)[c];
    dx[i] = run.in(3)[c] * run.in(2)[c] *
            (g - run.in(6)[c] / rows - xhat * run.in(6)[channels + c] / rows);
  }
  run.Write(0, dx);
}

}  // namespace

constinit const Rule kBatchNormSums = BatchNormSums;
constinit const Rule kReduceStatistics = ReduceStatistics;
constinit const Rule kBatchNormStatistics = BatchNormStatistics;
constinit const Rule kBatchNormRunning = BatchNormRunning;
constinit const Rule kBatchNorm = BatchNorm;
constinit const Rule kBatchNormBackwardSums = BatchNormBackwardSums;
constinit const Rule kBatchNormBackward = BatchNormBackward;
constinit const Rule kAverageStatistics = kNotOnValues;

}  // namespace milepost::ops::reference
