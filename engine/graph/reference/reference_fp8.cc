// 8-bit products: "codes" are the numbers that codes stand for.
#include <algorithm>
#include <cmath>

#include "engine/graph/reference/reference_run.h"

namespace milepost::graph::reference {
namespace {

// A number of `mantissa` bits behind its leading one, of exponents from `least` on: the nearest, of
// two the even one.
double Nearest(double x, int mantissa, int least, double largest) {
  int exponent = 0;
  std::frexp(x, &exponent);  // |x| in [2^(exponent-1), 2^exponent)
  const int step = std::max(exponent - 1, least) - mantissa;
  const double nearest = std::ldexp(std::nearbyint(std::ldexp(x, -step)), step);
  return std::clamp(nearest, -largest, largest);
}

double Rounded(double x, DType dtype) {
  return dtype == DType::kF8E5M2 ? Nearest(x, 2, -14, 57344) : Nearest(x, 3, -6, 448);
}

void AddBias(Array& y, int64_t width, const Array& bias) {
  for (size_t i = 0; !bias.empty() && i < y.size(); ++i) y[i] += bias[i % width];
}

}  // namespace

void Quantize(const Run& run) {
  const size_t parts = static_cast<size_t>(run.op.attributes.parts);
  Array x;
  for (size_t i = 0; i < parts; ++i) x.insert(x.end(), run.in(i).begin(), run.in(i).end());
  const double scale = run.in(parts)[1];
  double amax = 0;
  for (const double v : x) amax = std::max(amax, std::abs(v));
  const ValueId codes = run.op.outputs[run.op.outputs[0].value != kNoValue ? 0 : 1].value;
  for (double& v : x) {
    if (scale > 0) v = Rounded(v * scale, run.graph.values[codes].dtype) / scale;
  }
  run.Write(0, x);
  const int64_t columns = run.dim(0, 1), rows = static_cast<int64_t>(x.size()) / columns;
  Array turned(x.size());
  for (int64_t i = 0; i < rows * columns; ++i) turned[i % columns * rows + i / columns] = x[i];
  run.Write(1, turned);
  if (run.op.outputs[2].value == kNoValue) return;
  double& slot = run.values[run.op.outputs[2].value][0];
  slot = run.context.first_micro_step ? amax : std::max(slot, amax);
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

}  // namespace milepost::graph::reference
