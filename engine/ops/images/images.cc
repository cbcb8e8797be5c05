#include "engine/ops/images/images.h"

#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::Builder;
using graph::kImageChannels;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::Shape;
using graph::ValueId;

}  // namespace

void CheckDeviations(Builder& b, absl::string_view name,
                     const std::array<double, kImageChannels>& deviation) {
  for (double value : deviation) {
    if (!(value > 0)) b.Fail(name, "every channel's deviation must be above 0");
  }
}

constinit const OpDefinition kNormalizeImages = {.gradient = NoGradient, .cheap = Always};

ValueId NormalizeImages(Builder& b, absl::string_view name, ValueId images,
                        const std::array<double, kImageChannels>& mean,
                        const std::array<double, kImageChannels>& deviation) {
  const Shape expected = {b.options().batch, b.Dimension(name, "images", images, 1),
                          b.Dimension(name, "images", images, 2), kImageChannels};
  if (!b.Expect(name, "images", images, DType::kU8, expected)) return kNoValue;
  CheckDeviations(b, name, deviation);
  const ValueId x = b.AddActivation(name, "", b.compute_dtype(), expected);
  Op& op = b.AddOp(OpKind::kNormalizeImages, {images});
  op.attributes.image.mean = mean;
  op.attributes.image.deviation = deviation;
  op.outputs = {{.value = x}};
  return x;
}

}  // namespace milepost::ops
