// "Codes" are the numbers that codes stand for. A scaling of zeros, which values are at first,
// rounds nothing.
#include <algorithm>
#include <cmath>

#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

using graph::kNoValue;
using graph::ValueId;

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
  return dtype == DType::kE5M2 ? Nearest(x, 2, -14, 57344) : Nearest(x, 3, -6, 448);
}

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

}  // namespace

constinit const Rule kQuantize = Quantize;
constinit const Rule kGatherAmaxes = kNotOnValues;
constinit const Rule kUpdateScalings = kNotOnValues;

}  // namespace milepost::ops::reference
