#include <cmath>

#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

// Calls part(index, offset of its first element, input of its gamma) for q and for k of all rows.
template <typename Part>
void ForNormedParts(const Run& run, const Part& part) {
  for (int64_t row = 0; row < run.dim(0, 0); ++row) {
    const int64_t at = row * run.dim(0, 1);
    part(row, at, 1);
    part(row, at + run.dim(1, 0), 2);
  }
}

double WideGamma(const Run& run, int input, int64_t i) {
  return run.op.attributes.gamma_offset + run.in(input)[i];
}

void WideQkNorm(const Run& run) {
  Array out = run.in(0);
  Array rstds[] = {Array(run.dim(0, 0)), Array(run.dim(0, 0))};
  ForNormedParts(run, [&](int64_t row, int64_t at, int gamma) {
    const int64_t size = run.dim(gamma, 0);
    double squares = 0;
    for (int64_t i = at; i < at + size; ++i) squares += run.in(0)[i] * run.in(0)[i];
    const double mean = squares / static_cast<double>(size);
    const double rstd = 1 / std::sqrt(mean + run.op.attributes.epsilon);
    rstds[gamma - 1][row] = rstd;
    for (int64_t i = 0; i < size; ++i) out[at + i] *= rstd * WideGamma(run, gamma, i);
  });
  run.Write(0, out);
  run.Write(1, rstds[0]);
  run.Write(2, rstds[1]);
}

// Inputs qkv, gamma_q, gamma_k, rstd_q, rstd_k, dout. With y = x rstd: dx = rstd (g - y mean(g y)).
void WideQkNormBackward(const Run& run) {
  const Array& dout = run.in(5);
  Array dqkv = dout;
  Array dgammas[] = {Array(run.dim(1, 0), 0.0), Array(run.dim(2, 0), 0.0)};
  ForNormedParts(run, [&](int64_t row, int64_t at, int gamma) {
    const int64_t size = run.dim(gamma, 0);
    const double rstd = run.in(gamma + 2)[row];
    double mean = 0;
    for (int64_t i = 0; i < size; ++i) {
      const double y = run.in(0)[at + i] * rstd;
      mean += dout[at + i] * WideGamma(run, gamma, i) * y / static_cast<double>(size);
      dgammas[gamma - 1][i] += dout[at + i] * y;
    }
    for (int64_t i = 0; i < size; ++i) {
      const double y = run.in(0)[at + i] * rstd;
      dqkv[at + i] = rstd * (dout[at + i] * WideGamma(run, gamma, i) - y * mean);
    }
  });
  run.Write(0, dqkv);
  run.Write(1, dgammas[0]);
  run.Write(2, dgammas[1]);
}

}  // namespace

constinit const Rule kWideQkNorm = WideQkNorm;
constinit const Rule kWideQkNormBackward = WideQkNormBackward;

}  // namespace milepost::ops::reference
