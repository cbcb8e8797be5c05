#include "engine/ops/reference/reference_run.h"
#include "engine/ops/reference/windows.h"

namespace milepost::ops::reference {
namespace {

using graph::Elements;
using graph::ImageAttributes;
using graph::Shape;

// Every product of a convolution: fn(index into x, into w, into y).
template <typename Fn>
void ForEachProduct(const Shape& x, const Shape& w, const Shape& y, const ImageAttributes& a,
                    const Fn& fn) {
  ForEachWindow(x, y, a, [&](int64_t from, int64_t to, int64_t place) {
    for (int64_t o = 0; o < w[0]; ++o) {
      for (int64_t i = 0; i < w[1]; ++i) {
        fn(from * w[1] + i, (o * w[1] + i) * a.kernel * a.kernel + place, to * w[0] + o);
      }
    }
  });
}

void Convolution(const Run& run) {
  Array y(Elements(run.out_shape(0)), 0.0);
  ForEachProduct(run.in_shape(0), run.in_shape(1), run.out_shape(0), run.op.attributes.image,
                 [&](int64_t i, int64_t j, int64_t k) { y[k] += run.in(0)[i] * run.in(1)[j]; });
  run.Write(0, y);
}

void ConvolutionBackwardData(const Run& run) {  // dy, w -> dx
  Array dx(Elements(run.out_shape(0)), 0.0);
  ForEachProduct(run.out_shape(0), run.in_shape(1), run.in_shape(0), run.op.attributes.image,
                 [&](int64_t i, int64_t j, int64_t k) { dx[i] += run.in(0)[k] * run.in(1)[j]; });
  run.Write(0, dx);
}

void ConvolutionBackwardWeights(const Run& run) {  // x, dy -> dw
  Array dw(Elements(run.out_shape(0)), 0.0);
  ForEachProduct(run.in_shape(0), run.out_shape(0), run.in_shape(1), run.op.attributes.image,
                 [&](int64_t i, int64_t j, int64_t k) { dw[j] += run.in(0)[i] * run.in(1)[k]; });
  run.Write(0, dw);
}

}  // namespace

constinit const Rule kConvolution = Convolution;
constinit const Rule kConvolutionBackwardData = ConvolutionBackwardData;
constinit const Rule kConvolutionBackwardWeights = ConvolutionBackwardWeights;

}  // namespace milepost::ops::reference
