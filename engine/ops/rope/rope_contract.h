// What rotary positions are to both devices' kernels.
#ifndef MILEPOST_ENGINE_OPS_ROPE_ROPE_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_ROPE_ROPE_CONTRACT_H_

#include <cmath>
#include <cstdint>

#include "engine/ops/contract/host_device.h"

namespace milepost::kernels {

// f(i) = theta^(-2i / head_dim), stretched as in Llama 3 where factor > 1: f / factor where the
// wavelength 2 pi / f is above original_context / low_frequency, f where it is below
// original_context / high_frequency, between the two a mix linear in original_context / wavelength.
struct RopeParams {
  double theta = 10000;
  double factor = 1;
  double low_frequency = 1;
  double high_frequency = 4;
  double original_context = 8192;
};

// Of a head's pair i, in radians per position.
MP_HOST_DEVICE double RopeFrequency(const RopeParams& p, int64_t i, int64_t head_dim) {
  const double f = pow(p.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  const double wavelength = 2 * 3.14159265358979323846 / f;
  if (p.factor == 1 || wavelength < p.original_context / p.high_frequency) return f;
  if (wavelength > p.original_context / p.low_frequency) return f / p.factor;
  const double smooth =
      (p.original_context / wavelength - p.low_frequency) / (p.high_frequency - p.low_frequency);
  return (1 - smooth) * f / p.factor + smooth * f;
}

struct RopeShape {
  int64_t batch = 0;
  int64_t sequence = 0;
  int64_t width = 0;     // of a row of x
  int64_t heads = 0;     // that turn, at the row's front; the rest is passed on as it is
  int64_t head_dim = 0;  // even
  // [batch, sequence]: the table's row of each row of x. Null: its place in the sequence.
  const int32_t* positions = nullptr;
};

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_ROPE_ROPE_CONTRACT_H_
