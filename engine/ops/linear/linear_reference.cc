// Of 8-bit products, "codes" are the numbers that codes stand for.
#include "engine/ops/gelu/gelu_reference.h"
#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

using graph::Attributes;

void AddBias(Array& y, int64_t width, const Array& bias) {
  for (size_t i = 0; !bias.empty() && i < y.size(); ++i) y[i] += bias[i % width];
}

void Fp8Linear(const Run& run) {
  const int64_t width = run.dim(1, 0);
  Array y = MatMul(run.in(0), false, run.in(1), true, run.dim(0, 0), width, run.dim(0, 1));
  Array bias;
  for (size_t i = 4; i < run.op.inputs.size(); ++i) {
    bias.insert(bias.end(), run.in(i).begin(), run.in(i).end());
  }
  AddBias(y, width, bias);
  run.Write(0, y);
}

void Fp8LinearBackwardInput(const Run& run) {
  Array dx = MatMul(run.in(0), false, run.in(1), true, run.dim(0, 0), run.dim(1, 0), run.dim(0, 1));
  for (size_t i = 0; run.op.inputs.size() > 4 && i < dx.size(); ++i) dx[i] += run.in(4)[i];
  run.Write(0, dx);
}

void Fp8LinearBackwardWeight(const Run& run) {
  const int64_t in = run.dim(0, 0), out = run.dim(1, 0), rows = run.dim(0, 1);
  const size_t parts = static_cast<size_t>(run.op.attributes.parts);
  const bool biases = run.op.inputs.size() > 4;
  const Array sums = biases ? ColumnSums(run.in(4), out) : Array(out);
  if (!run.op.attributes.transposed) {
    run.Write(0, MatMul(run.in(0), false, run.in(1), true, in, out, rows));
    return run.Write(1, sums);
  }
  const Array all = MatMul(run.in(1), false, run.in(0), true, out, in, rows);
  int64_t first = 0;
  for (size_t i = 0; i < parts; ++i) {
    const int64_t last = first + run.graph.values[run.op.outputs[i].value].shape[0];
    run.Write(i, Array(all.begin() + first * in, all.begin() + last * in));
    if (biases) run.Write(parts + i, Array(sums.begin() + first, sums.begin() + last));
    first = last;
  }
}

// The weights of a transposed layer, stacked: [M,K] of all parts. Otherwise the one weight.
Array LinearWeight(const Run& run) {
  Array weight = run.in(1);
  for (int64_t i = 1; i < run.op.attributes.parts; ++i) {
    weight.insert(weight.end(), run.in(1 + i).begin(), run.in(1 + i).end());
  }
  return weight;
}

void Linear(const Run& run) {
  if (run.op.attributes.fp8) return Fp8Linear(run);
  const Attributes& a = run.op.attributes;
  const int64_t width = run.graph.values[run.op.outputs.back().value].shape[1];
  Array bias;
  for (size_t i = 1 + a.parts; i < run.op.inputs.size(); ++i) {
    bias.insert(bias.end(), run.in(i).begin(), run.in(i).end());
  }
  Array y = MatMul(run.in(0), false, LinearWeight(run), a.transposed, run.dim(0, 0), width,
                   run.dim(0, 1));
  AddBias(y, width, bias);
  run.Write(0, y);
  if (!a.gelu) return;
  for (double& v : y) v = TanhGelu(v);
  run.Write(1, y);
}

void LinearBackwardInput(const Run& run) {
  if (run.op.attributes.fp8) return Fp8LinearBackwardInput(run);
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
  if (run.op.attributes.fp8) return Fp8LinearBackwardWeight(run);
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

}  // namespace

constinit const Rule kLinear = Linear;
constinit const Rule kLinearBackwardInput = LinearBackwardInput;
constinit const Rule kLinearBackwardWeight = LinearBackwardWeight;

}  // namespace milepost::ops::reference
