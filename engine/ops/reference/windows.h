// Windows over images, for the reference of what has them.
#ifndef MILEPOST_ENGINE_OPS_REFERENCE_WINDOWS_H_
#define MILEPOST_ENGINE_OPS_REFERENCE_WINDOWS_H_

#include <cstdint>

#include "engine/graph/graph.h"

namespace milepost::ops::reference {

// Window elements: fn(input pixel, output pixel, place in the window), pixels counted over the
// batch.
template <typename Fn>
void ForEachWindow(const graph::Shape& in, const graph::Shape& out, const graph::ImageAttributes& a,
                   const Fn& fn) {
  for (int64_t b = 0; b < in[0]; ++b) {
    for (int64_t p = 0; p < out[1]; ++p) {
      for (int64_t q = 0; q < out[2]; ++q) {
        for (int64_t i = 0; i < a.kernel * a.kernel; ++i) {
          const int64_t y = p * a.stride - a.padding + i / a.kernel;
          const int64_t x = q * a.stride - a.padding + i % a.kernel;
          if (y < 0 || y >= in[1] || x < 0 || x >= in[2]) continue;
          fn((b * in[1] + y) * in[2] + x, (b * out[1] + p) * out[2] + q, i);
        }
      }
    }
  }
}

}  // namespace milepost::ops::reference

#endif  // MILEPOST_ENGINE_OPS_REFERENCE_WINDOWS_H_
