#include <cmath>
#include <numbers>

#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

using graph::Attributes;
using graph::OpKind;
using graph::RopeAttributes;
using graph::Shape;

double RopeFrequency(const RopeAttributes& rope, int64_t pair, int64_t head_dim) {
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

}  // namespace

constinit const Rule kRopeTable = RopeTable;
constinit const Rule kRope = Rope;
constinit const Rule kRopeBackward = Rope;

}  // namespace milepost::ops::reference
