#include <cmath>

#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

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

}  // namespace

constinit const Rule kSwiGlu = SwiGlu;
constinit const Rule kSwiGluBackward = SwiGluBackward;

}  // namespace milepost::ops::reference
