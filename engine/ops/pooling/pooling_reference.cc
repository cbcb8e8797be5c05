#include "engine/ops/reference/reference_run.h"
#include "engine/ops/reference/windows.h"

namespace milepost::ops::reference {
namespace {

using graph::Elements;
using graph::OpKind;
using graph::Shape;

void MaxPool(const Run& run) {
  const int64_t channels = run.dim(0, 3);
  Array y(Elements(run.out_shape(0)), 0.0), winners(y.size(), -1.0);
  ForEachWindow(run.in_shape(0), run.out_shape(0), run.op.attributes.image,
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
  Array dx(Elements(run.out_shape(0)), 0.0);
  ForEachWindow(run.out_shape(0), run.in_shape(0), run.op.attributes.image,
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
  const Shape& images = backward ? run.out_shape(0) : run.in_shape(0);
  const int64_t pixels = images[1] * images[2];
  Array out(Elements(run.out_shape(0)), 0.0);
  for (int64_t i = 0; i < Elements(images); ++i) {
    const int64_t k = i / (pixels * images[3]) * images[3] + i % images[3];
    out[backward ? i : k] += run.in(0)[backward ? k : i] / static_cast<double>(pixels);
  }
  run.Write(0, out);
}

}  // namespace

constinit const Rule kMaxPool = MaxPool;
constinit const Rule kMaxPoolBackward = MaxPoolBackward;
constinit const Rule kAveragePool = AveragePool;
constinit const Rule kAveragePoolBackward = AveragePool;

}  // namespace milepost::ops::reference
