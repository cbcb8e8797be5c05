#include <cmath>

#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

using graph::Attributes;

// Calls head(offset of the head's first element, input of its gamma) for the heads of q and k.
template <typename Head>
void ForNormedHeads(const Run& run, const Head& head) {
  const Attributes& a = run.op.attributes;
  const int64_t width = run.dim(0, 1);
  for (int64_t row = 0; row < run.dim(0, 0); ++row) {
    for (int64_t h = 0; h < a.heads + a.kv_heads; ++h) {
      head(row * width + h * run.dim(1, 0), h < a.heads ? 1 : 2);
    }
  }
}

double Gamma(const Run& run, int input, int64_t i) {
  return run.op.attributes.gamma_offset + run.in(input)[i];
}

double Rms(const Run& run, int64_t at) {
  const int64_t size = run.dim(1, 0);
  double squares = 0;
  for (int64_t i = at; i < at + size; ++i) squares += run.in(0)[i] * run.in(0)[i];
  return std::sqrt(squares / static_cast<double>(size) + run.op.attributes.epsilon);
}

void QkNorm(const Run& run) {
  Array out = run.in(0);
  ForNormedHeads(run, [&](int64_t at, int gamma) {
    const double rms = Rms(run, at);
    for (int64_t i = 0; i < run.dim(1, 0); ++i) out[at + i] *= Gamma(run, gamma, i) / rms;
  });
  run.Write(0, out);
}

// Inputs qkv, gamma_q, gamma_k, dout. With y = x / rms(x): dx = (g - y mean(g y)) / rms.
void QkNormBackward(const Run& run) {
  const int64_t size = run.dim(1, 0);
  const Array& dout = run.in(3);
  Array dqkv = dout;
  Array dgammas[] = {Array(size, 0.0), Array(size, 0.0)};
  ForNormedHeads(run, [&](int64_t at, int gamma) {
    const double rms = Rms(run, at);
    double mean = 0;
    for (int64_t i = 0; i < size; ++i) {
      const double y = run.in(0)[at + i] / rms;
      mean += dout[at + i] * Gamma(run, gamma, i) * y / static_cast<double>(size);
      dgammas[gamma - 1][i] += dout[at + i] * y;
    }
    for (int64_t i = 0; i < size; ++i) {
      const double y = run.in(0)[at + i] / rms;
      dqkv[at + i] = (dout[at + i] * Gamma(run, gamma, i) - y * mean) / rms;
    }
  });
  run.Write(0, dqkv);
  run.Write(1, dgammas[0]);
  run.Write(2, dgammas[1]);
}

}  // namespace

constinit const Rule kQkNorm = QkNorm;
constinit const Rule kQkNormBackward = QkNormBackward;

}  // namespace milepost::ops::reference
