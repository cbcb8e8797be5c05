// The builder's image ops.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/graph/builder.h"

namespace milepost::graph {

ValueId Builder::Images(int64_t height, int64_t width) {
  return Input("images", DType::kU8, {options_.batch, height, width, kImageChannels});
}

ValueId Builder::ClassifierLoss(absl::string_view name, ValueId logits, ValueId targets,
                                double label_smoothing, double weight) {
  const int64_t classes = Dimension(name, "logits", logits, 1);
  if (!Expect(name, "logits", logits, options_.compute_dtype, {rows(), classes}) ||
      !Expect(name, "targets", targets, DType::kI32, {rows()})) {
    return kNoValue;
  }
  if (!(label_smoothing >= 0 && label_smoothing < 1)) {
    Fail(name, absl::StrCat("label smoothing ", label_smoothing, " is not in [0, 1)"));
  }
  Op& op = AddOp(OpKind::kClassifierLoss, {logits, targets});
  op.attributes.label_smoothing = label_smoothing;
  return AddLoss(name, targets, weight, op);
}

ValueId Builder::Statistic(absl::string_view name, DType dtype, const Shape& shape,
                           double initial) {
  if (dtype != DType::kF32 && dtype != DType::kI64) {
    Fail(name, absl::StrCat("a statistic is F32 or I64, not ", Name(dtype)));
  }
  const ValueId id = AddValue(name, dtype, shape, ValueKind::kStatistic);
  graph_.statistics.push_back({.value = id, .initial = initial});
  return id;
}

Shape Builder::ImageShape(absl::string_view op, absl::string_view operand, ValueId value) {
  if (value < 0 || value >= static_cast<ValueId>(graph_.values.size())) {
    Fail(op, absl::StrCat(operand, " is no value of this graph"));
    return {};
  }
  const Value& found = graph_.values[value];
  if (found.shape.size() == 4 && found.dtype == options_.compute_dtype) return found.shape;
  Fail(op, absl::StrCat(operand, " (", found.name, ") is ", Name(found.dtype), "[",
                        absl::StrJoin(found.shape, ","), "], expected images of ",
                        Name(options_.compute_dtype)));
  return {};
}

Shape Builder::WindowedShape(absl::string_view op, const Shape& shape, int64_t kernel,
                             const ConvolutionOptions& options) {
  const int64_t smallest = std::min(shape[1], shape[2]) + 2 * options.padding;
  if (kernel < 1 || kernel > 15 || options.stride < 1 || options.padding < 0 ||
      options.padding >= kernel || smallest < kernel) {
    Fail(op, absl::StrCat("windows of ", kernel, " with stride ", options.stride, " and padding ",
                          options.padding, " do not fit images of ", shape[1], " x ", shape[2]));
    return {};
  }
  const auto windows = [&](int64_t size) {
    return (size + 2 * options.padding - kernel) / options.stride + 1;
  };
  return {shape[0], windows(shape[1]), windows(shape[2]), shape[3]};
}

ValueId Builder::NormalizeImages(absl::string_view name, ValueId images,
                                 const std::array<double, kImageChannels>& mean,
                                 const std::array<double, kImageChannels>& deviation) {
  const Shape expected = {options_.batch, Dimension(name, "images", images, 1),
                          Dimension(name, "images", images, 2), kImageChannels};
  if (!Expect(name, "images", images, DType::kU8, expected)) return kNoValue;
  for (double value : deviation) {
    if (!(value > 0)) Fail(name, "every channel's deviation must be above 0");
  }
  const ValueId x = AddActivation(name, "", options_.compute_dtype, expected);
  Op& op = AddOp(OpKind::kNormalizeImages, {images});
  op.attributes.image.mean = mean;
  op.attributes.image.deviation = deviation;
  op.outputs = {{.value = x}};
  return x;
}

ValueId Builder::Convolution(absl::string_view name, ValueId x, ValueId weight,
                             const ConvolutionOptions& options) {
  const Shape in = ImageShape(name, "x", x);
  if (in.empty()) return kNoValue;
  const int64_t channels = Dimension(name, "weight", weight, 0);
  const int64_t kernel = Dimension(name, "weight", weight, 3);
  if (!Expect(name, "weight", weight, options_.compute_dtype, {channels, in[3], kernel, kernel})) {
    return kNoValue;
  }
  Shape out = WindowedShape(name, in, kernel, options);
  if (out.empty()) return kNoValue;
  out[3] = channels;
  const ValueId y = AddActivation(name, "", options_.compute_dtype, out);
  Op& op = AddOp(OpKind::kConvolution, {x, weight});
  op.attributes.image.kernel = kernel;
  op.attributes.image.stride = options.stride;
  op.attributes.image.padding = options.padding;
  op.outputs = {{.value = y}};
  return y;
}

ValueId Builder::BatchNorm(absl::string_view name, ValueId x, const BatchNormParameters& parameters,
                           const BatchNormOptions& options) {
  const Shape shape = ImageShape(name, "x", x);
  if (shape.empty()) return kNoValue;
  const int64_t channels = shape[3];
  const DType dtype = options_.compute_dtype;
  if (!Expect(name, "gamma", parameters.gamma, dtype, {channels}) ||
      !Expect(name, "beta", parameters.beta, dtype, {channels}) ||
      !Expect(name, "running mean", parameters.running_mean, DType::kF32, {channels}) ||
      !Expect(name, "running variance", parameters.running_variance, DType::kF32, {channels}) ||
      !Expect(name, "batches", parameters.batches, DType::kI64, {}) ||
      (options.residual != kNoValue && !Expect(name, "residual", options.residual, dtype, shape))) {
    return kNoValue;
  }
  if (options.training && Elements(shape) / channels < 2) {
    Fail(name,
         "a batch norm needs two pixels or more per channel: raise the micro batch or the "
         "image size");
  }
  ImageAttributes attributes;
  attributes.relu = options.relu;
  attributes.synchronised = options.training && options.synchronised;
  attributes.momentum = options.momentum;
  const auto add = [&](OpKind kind, std::initializer_list<ValueId> inputs) -> Op& {
    Op& op = AddOp(kind, inputs);
    op.attributes.image = attributes;
    op.attributes.epsilon = options.epsilon;
    return op;
  };
  const ValueId mean = AddActivation(name, ".mean", DType::kF32, {channels});
  const ValueId rstd = AddActivation(name, ".rstd", DType::kF32, {channels});
  if (options.training) {
    ValueId sums = AddActivation(name, ".sums", DType::kF64, {2, channels});
    add(OpKind::kBatchNormSums, {x}).outputs = {{.value = sums}};
    if (options.synchronised) {
      const ValueId all = AddActivation(name, ".all_sums", DType::kF64, {2, channels});
      add(OpKind::kReduceStatistics, {sums}).outputs = {{.value = all, .may_overwrite = sums}};
      sums = all;
    }
    Op& op = add(OpKind::kBatchNormStatistics,
                 {sums, parameters.running_mean, parameters.running_variance, parameters.batches});
    op.attributes.image.rows = Elements(shape) / channels;
    op.outputs = {{.value = mean},
                  {.value = rstd},
                  {.value = parameters.running_mean, .mode = WriteMode::kAccumulate},
                  {.value = parameters.running_variance, .mode = WriteMode::kAccumulate},
                  {.value = parameters.batches, .mode = WriteMode::kAccumulate}};
  } else {
    add(OpKind::kBatchNormRunning, {parameters.running_mean, parameters.running_variance})
        .outputs = {{.value = mean}, {.value = rstd}};
  }
  const ValueId y = AddActivation(name, "", dtype, shape);
  add(OpKind::kBatchNorm, {x, mean, rstd, parameters.gamma, parameters.beta, options.residual})
      .outputs = {{.value = y, .may_overwrite = x}};
  return y;
}

ValueId Builder::MaxPool(absl::string_view name, ValueId x, int64_t kernel,
                         const ConvolutionOptions& options) {
  const Shape in = ImageShape(name, "x", x);
  if (in.empty()) return kNoValue;
  const Shape out = WindowedShape(name, in, kernel, options);
  if (out.empty()) return kNoValue;
  const ValueId y = AddActivation(name, "", options_.compute_dtype, out);
  const ValueId winners = AddActivation(name, ".winners", DType::kU8, out);
  Op& op = AddOp(OpKind::kMaxPool, {x});
  op.attributes.image.kernel = kernel;
  op.attributes.image.stride = options.stride;
  op.attributes.image.padding = options.padding;
  op.outputs = {{.value = y}, {.value = winners}};
  return y;
}

ValueId Builder::AveragePool(absl::string_view name, ValueId x) {
  const Shape in = ImageShape(name, "x", x);
  if (in.empty()) return kNoValue;
  const ValueId y = AddActivation(name, "", options_.compute_dtype, {in[0], in[3]});
  AddOp(OpKind::kAveragePool, {x}).outputs = {{.value = y}};
  return y;
}

}  // namespace milepost::graph
