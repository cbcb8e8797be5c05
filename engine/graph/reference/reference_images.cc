// Convolutions, batch norms, pools and the classifier's loss.
#include <algorithm>
#include <cmath>

#include "engine/graph/reference/reference_run.h"

namespace milepost::graph::reference {
namespace {

// Window elements: fn(input pixel, output pixel, place in the window), pixels counted over the
// batch.
template <typename Fn>
void ForEachWindow(const Shape& in, const Shape& out, const ImageAttributes& a, const Fn& fn) {
  for (int64_t b = 0; b < in[0]; ++b) {
    for (int64_t p = 0; p < out[1]; ++p) {
      for (int64_t q = 0; q < out[2]; ++q) {
        for (int64_t i = 0; i < a.kernel * a.kernel; ++i) {
          const int64_t y = p * a.stride - a.padding + i / a.kernel;
          const int64_t x = q * a.stride - a.padding + i % a.kernel;
          if (y < 0 || y >= in[1] || x < 0 || x >= in[2]) continue;
          fn((b * in[1] + y) * in[2] + x, (b * out[1] + p) * out[2] + q, i);
        }
      }
    }
  }
}

// Every product of a convolution: fn(index into x, into w, into y).
template <typename Fn>
void ForEachProduct(const Shape& x, const Shape& w, const Shape& y, const ImageAttributes& a,
                    const Fn& fn) {
  ForEachWindow(x, y, a, [&](int64_t from, int64_t to, int64_t place) {
    for (int64_t o = 0; o < w[0]; ++o) {
      for (int64_t i = 0; i < w[1]; ++i) {
        fn(from * w[1] + i, (o * w[1] + i) * a.kernel * a.kernel + place, to * w[0] + o);
      }
    }
  });
}

const Shape& ShapeOf(const Run& run, ValueId id) { return run.graph.values[id].shape; }
const Shape& InShape(const Run& run, size_t i) { return ShapeOf(run, run.op.inputs[i]); }
const Shape& OutShape(const Run& run, size_t i) { return ShapeOf(run, run.op.outputs[i].value); }

}  // namespace

void NormalizeImages(const Run& run) {
  const ImageAttributes& a = run.op.attributes.image;
  Array x = run.in(0);
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t c = i % a.mean.size();
    x[i] = (x[i] / 255 - a.mean[c]) / a.deviation[c];
  }
  run.Write(0, x);
}

void Convolution(const Run& run) {
  Array y(Elements(OutShape(run, 0)), 0.0);
  ForEachProduct(InShape(run, 0), InShape(run, 1), OutShape(run, 0), run.op.attributes.image,
                 [&](int64_t i, int64_t j, int64_t k) { y[k] += run.in(0)[i] * run.in(1)[j]; });
  run.Write(0, y);
}

void ConvolutionBackwardData(const Run& run) {  // dy, w -> dx
  Array dx(Elements(OutShape(run, 0)), 0.0);
  ForEachProduct(OutShape(run, 0), InShape(run, 1), InShape(run, 0), run.op.attributes.image,
                 [&](int64_t i, int64_t j, int64_t k) { dx[i] += run.in(0)[k] * run.in(1)[j]; });
  run.Write(0, dx);
}

void ConvolutionBackwardWeights(const Run& run) {  // x, dy -> dw
  Array dw(Elements(OutShape(run, 0)), 0.0);
  ForEachProduct(InShape(run, 0), OutShape(run, 0), InShape(run, 1), run.op.attributes.image,
                 [&](int64_t i, int64_t j, int64_t k) { dw[j] += run.in(0)[i] * run.in(1)[k]; });
  run.Write(0, dw);
}

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
static double Normalised(const Run& run, size_t i) {
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

void MaxPool(const Run& run) {
  const int64_t channels = run.dim(0, 3);
  Array y(Elements(OutShape(run, 0)), 0.0), winners(y.size(), -1.0);
  ForEachWindow(InShape(run, 0), OutShape(run, 0), run.op.attributes.image,
                [&](int64_t from, int64_t to, int64_t place) {
                  for (int64_t c = 0; c < channels; ++c) {
                    const double x = run.in(0)[from * channels + c];
                    double& best = y[to * channels + c];
                    double& winner = winners[to * channels + c];
                    if (winner >= 0 && x <= best) continue;
                    best = x;
                    winner = static_cast<double>(place);
                  }
                });
  run.Write(0, y);
  run.Write(1, winners);
}

void MaxPoolBackward(const Run& run) {  // winners, dy, dy2 -> dx
  const int64_t channels = run.dim(0, 3);
  Array dx(Elements(OutShape(run, 0)), 0.0);
  ForEachWindow(OutShape(run, 0), InShape(run, 0), run.op.attributes.image,
                [&](int64_t from, int64_t to, int64_t place) {
                  for (int64_t c = 0; c < channels; ++c) {
                    const int64_t k = to * channels + c;
                    if (run.in(0)[k] != static_cast<double>(place)) continue;
                    dx[from * channels + c] += run.in(1)[k] + (run.has_input(2) ? run.in(2)[k] : 0);
                  }
                });
  run.Write(0, dx);
}

void AveragePool(const Run& run) {  // and its backward, which has 4-dimensional images as output
  const bool backward = run.op.kind == OpKind::kAveragePoolBackward;
  const Shape& images = backward ? OutShape(run, 0) : InShape(run, 0);
  const int64_t pixels = images[1] * images[2];
  Array out(Elements(OutShape(run, 0)), 0.0);
  for (int64_t i = 0; i < Elements(images); ++i) {
    const int64_t k = i / (pixels * images[3]) * images[3] + i % images[3];
    out[backward ? i : k] += run.in(0)[backward ? k : i] / static_cast<double>(pixels);
  }
  run.Write(0, out);
}

void ClassifierLoss(const Run& run) {
  const int64_t classes = run.dim(0, 1);
  const double smoothing = run.op.attributes.label_smoothing;
  const bool training = run.op.kind == OpKind::kClassifierLossBackward;
  Array gradient = run.in(0), sums(kLossSums, 0.0);
  for (int64_t r = 0; r < run.dim(0, 0); ++r) {
    const double* row = run.in(0).data() + r * classes;
    const int32_t target = run.integers(1)[r];
    double total = 0, mean = 0;
    for (int64_t v = 0; v < classes; ++v) {
      total += std::exp(row[v]);
      mean += row[v] / static_cast<double>(classes);
    }
    const double lse = std::log(total);
    if (target >= 0) {
      sums[kLossSum] += lse - (1 - smoothing) * row[target] - smoothing * mean;
      sums[kLossTargets] += 1;
      const bool best = std::max_element(row, row + classes) - row == target;
      sums[kLossCorrect] += !training && best ? 1 : 0;
    }
    for (int64_t v = 0; v < classes; ++v) {
      const double wanted =
          (v == target ? 1 - smoothing : 0) + smoothing / static_cast<double>(classes);
      gradient[r * classes + v] =
          target < 0 ? 0 : (std::exp(row[v] - lse) - wanted) * run.LossGradientScale();
    }
  }
  run.Write(0, sums);
  if (training) run.Write(1, gradient);
}

}  // namespace milepost::graph::reference
