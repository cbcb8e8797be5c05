#include "engine/ops/gelu/gelu_reference.h"
#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

void GeGlu(const Run& run) {
  const int64_t width = run.dim(0, 1) / 2;
  const Array& x = run.in(0);
  Array y(x.size() / 2);
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t at = i / width * 2 * width + i % width;
    y[i] = TanhGelu(x[at]) * x[at + width];
  }
  run.Write(0, y);
}

void GeGluBackward(const Run& run) {
  const int64_t width = run.dim(0, 1) / 2;
  const Array& x = run.in(0);
  const Array& dy = run.in(1);
  Array dx(x.size());
  for (size_t i = 0; i < dy.size(); ++i) {
    const size_t at = i / width * 2 * width + i % width;
    dx[at] = dy[i] * x[at + width] * TanhGeluSlope(x[at]);
    dx[at + width] = dy[i] * TanhGelu(x[at]);
  }
  run.Write(0, dx);
}

}  // namespace

constinit const Rule kGeGlu = GeGlu;
constinit const Rule kGeGluBackward = GeGluBackward;

}  // namespace milepost::ops::reference
