#include "engine/models/resnet.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/graph/builder.h"
#include "engine/models/image_options.h"
#include "engine/models/task_heads.h"
#include "engine/ops/batch_norm/batch_norm.h"
#include "engine/ops/classifier/classifier.h"
#include "engine/ops/convolution/convolution.h"
#include "engine/ops/images/images.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/pooling/pooling.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {
namespace {

using graph::Builder;
using graph::Initializer;
using graph::kNoValue;
using graph::ValueId;

constexpr int64_t kReduction = 4;  // of channels within a bottleneck

absl::Status CheckSizes(const v1::ResNetSpec& spec, const ModelOptions& options) {
  const auto positive = [](absl::string_view field, int64_t value) {
    if (value >= 1) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("model.resnet.", field, ": ", value, " is not at least 1"));
  };
  MP_RETURN_IF_ERROR(positive("width", spec.width()));
  MP_RETURN_IF_ERROR(positive("classes", spec.classes()));
  MP_RETURN_IF_ERROR(positive("image_size", spec.image_size()));
  MP_RETURN_IF_ERROR(positive("stages", spec.stages_size()));
  for (int i = 0; i < spec.stages_size(); ++i) {
    MP_RETURN_IF_ERROR(positive(absl::StrCat("stages[", i, "].layers"), spec.stages(i).layers()));
  }
  if (options.compute_dtype != DType::kF32 && options.compute_dtype != DType::kBf16) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.precision: model.resnet is trained in fp32 or bf16, not in ",
                     Name(options.compute_dtype)));
  }
  return CheckImageOptions("resnet", options);
}

class ResNetBuilder {
 public:
  ResNetBuilder(const v1::ModelSpec& model, const ModelOptions& options)
      : model_(model),
        spec_(model.resnet()),
        options_(options),
        training_(options.mode == Mode::kTraining),
        b_({.compute_dtype = options.compute_dtype,
            .batch = options.batch,
            .sequence = options.sequence}) {}

  absl::StatusOr<graph::Graph> Build() && {
    Embed();
    for (int stage = 0; stage < spec_.stages_size(); ++stage) {
      for (int64_t layer = 0; layer < spec_.stages(stage).layers(); ++layer) Layer(stage, layer);
    }
    Classify();
    return std::move(b_).Finish();
  }

 private:
  struct Norm {
    bool relu = false;
    ValueId residual = kNoValue;
    bool zero_gamma = false;
  };

  ops::BatchNormParameters NormParameters(const std::string& name, int64_t channels,
                                          bool zero_gamma) {
    const auto statistic = [&](const char* field, double initial) {
      return b_.Statistic(name + field, DType::kF32, {channels}, initial);
    };
    return {.gamma = b_.Parameter(name + ".weight", {channels},
                                  zero_gamma ? Initializer::kZeros : Initializer::kOnes),
            .beta = b_.Parameter(name + ".bias", {channels}, Initializer::kZeros),
            .running_mean = statistic(".running_mean", 0),
            .running_variance = statistic(".running_var", 1),
            .batches = b_.Statistic(name + ".num_batches_tracked", DType::kI64, {}, 0)};
  }

  // Convolution and norm of x, whose values are called `value` and that plus ".norm".
  ValueId ConvolveAndNorm(const std::string& hf, const std::string& value, ValueId x, int64_t in,
                          int64_t out, int64_t kernel, int64_t stride, const Norm& norm) {
    const double stddev = std::sqrt(2.0 / static_cast<double>(out * kernel * kernel));
    const ValueId weight = b_.Parameter(hf + ".convolution.weight", {out, in, kernel, kernel},
                                        Initializer::kNormal, stddev);
    const auto parameters = NormParameters(hf + ".normalization", out, norm.zero_gamma);
    const ValueId y =
        ops::Convolution(b_, value, x, weight, {.stride = stride, .padding = kernel / 2});
    return ops::BatchNorm(b_, value + ".norm", y, parameters,
                          {.training = training_,
                           .synchronised = spec_.sync_statistics(),
                           .relu = norm.relu,
                           .residual = norm.residual});
  }

  void Embed() {
    b_.BeginBlock("embedder");
    const ValueId images = b_.Images(spec_.image_size(), spec_.image_size());
    const v1::RgbSpec& mean = spec_.pixel_mean();
    const v1::RgbSpec& deviation = spec_.pixel_deviation();
    const ValueId pixels =
        ops::NormalizeImages(b_, "pixels", images, {mean.red(), mean.green(), mean.blue()},
                             {deviation.red(), deviation.green(), deviation.blue()});
    channels_ = spec_.width();
    const ValueId stem = ConvolveAndNorm("resnet.embedder.embedder", "embedder", pixels,
                                         graph::kImageChannels, channels_, 7, 2, {.relu = true});
    x_ = ops::MaxPool(b_, "pool", stem, 3, {.stride = 2, .padding = 1});
  }

  void Layer(int stage, int64_t layer) {
    const std::string name = absl::StrCat("stages.", stage, ".layers.", layer);
    const std::string hf = "resnet.encoder." + name;
    b_.BeginBlock(name);
    const int64_t inner = spec_.width() << stage;
    const int64_t out = spec_.bottleneck() ? inner * kReduction : inner;
    const int64_t stride = stage > 0 && layer == 0 ? 2 : 1;
    ValueId shortcut = x_;
    if (channels_ != out || stride != 1) {
      shortcut =
          ConvolveAndNorm(hf + ".shortcut", name + ".shortcut", x_, channels_, out, 1, stride, {});
    }
    const auto convolve = [&](int index, ValueId x, int64_t from, int64_t to, int64_t kernel,
                              int64_t step, const Norm& norm) {
      return ConvolveAndNorm(absl::StrCat(hf, ".layer.", index), absl::StrCat(name, ".", index), x,
                             from, to, kernel, step, norm);
    };
    const Norm last = {
        .relu = true, .residual = shortcut, .zero_gamma = spec_.zero_init_residual()};
    if (spec_.bottleneck()) {
      const ValueId reduced = convolve(0, x_, channels_, inner, 1, 1, {.relu = true});
      const ValueId middle = convolve(1, reduced, inner, inner, 3, stride, {.relu = true});
      x_ = convolve(2, middle, inner, out, 1, 1, last);
    } else {
      const ValueId middle = convolve(0, x_, channels_, inner, 3, stride, {.relu = true});
      x_ = convolve(1, middle, inner, inner, 3, 1, last);
    }
    channels_ = out;
  }

  void Classify() {
    b_.BeginBlock("classifier");
    const double stddev = std::sqrt(1.0 / (3.0 * static_cast<double>(channels_)));
    const ValueId weight = b_.Parameter("classifier.1.weight", {spec_.classes(), channels_},
                                        Initializer::kNormal, stddev);
    const ValueId bias = b_.Parameter("classifier.1.bias", {spec_.classes()}, Initializer::kZeros);
    const ValueId features = ops::AveragePool(b_, "features", x_);
    const ValueId logits = ops::LinearRows(b_, "logits", features, {weight}, {bias});
    ops::ClassifierLoss(b_, "class", logits, b_.Targets(), training_ ? spec_.label_smoothing() : 0,
                        HeadWeight(model_));
    AddFeatureHeads(model_, options_, features, b_);
  }

  const v1::ModelSpec& model_;
  const v1::ResNetSpec& spec_;
  const ModelOptions& options_;
  const bool training_;
  Builder b_;
  ValueId x_ = kNoValue;
  int64_t channels_ = 0;  // of x_
};

}  // namespace

absl::StatusOr<graph::Graph> BuildResNet(const v1::ModelSpec& model, const ModelOptions& options) {
  MP_RETURN_IF_ERROR(CheckSizes(model.resnet(), options));
  return ResNetBuilder(model, options).Build();
}

}  // namespace milepost::models
