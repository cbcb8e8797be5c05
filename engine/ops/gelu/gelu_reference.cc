#include "engine/ops/gelu/gelu_reference.h"

#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

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

}  // namespace

constinit const Rule kGelu = Gelu;
constinit const Rule kGeluBackward = GeluBackward;

}  // namespace milepost::ops::reference
