#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

using graph::ImageAttributes;

void NormalizeImages(const Run& run) {
  const ImageAttributes& a = run.op.attributes.image;
  Array x = run.in(0);
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t c = i % a.mean.size();
    x[i] = (x[i] / 255 - a.mean[c]) / a.deviation[c];
  }
  run.Write(0, x);
}

}  // namespace

constinit const Rule kNormalizeImages = NormalizeImages;

}  // namespace milepost::ops::reference
