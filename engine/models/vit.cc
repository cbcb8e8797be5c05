#include "engine/models/vit.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/graph/builder.h"
#include "engine/models/image_options.h"
#include "engine/models/lora.h"
#include "engine/models/task_heads.h"
#include "engine/ops/attention/attention.h"
#include "engine/ops/classifier/classifier.h"
#include "engine/ops/dropout/dropout.h"
#include "engine/ops/gelu/gelu.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/norm/norm.h"
#include "engine/ops/patches/patches.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {
namespace {

using graph::Builder;
using graph::Initializer;
using graph::kNoValue;
using graph::ValueId;

constexpr double kVitStddev = 0.02;

absl::Status CheckVitSizes(const v1::VitSpec& spec, const ModelOptions& options) {
  const auto invalid = [](absl::string_view field, const auto&... message) {
    return absl::InvalidArgumentError(absl::StrCat("model.vit.", field, ": ", message...));
  };
  const std::pair<const char*, int64_t> sizes[] = {
      {"layers", spec.layers()},         {"width", spec.width()},
      {"heads", spec.heads()},           {"hidden", spec.hidden()},
      {"classes", spec.classes()},       {"image_size", spec.image_size()},
      {"patch_size", spec.patch_size()},
  };
  for (const auto& [field, value] : sizes) {
    if (value < 1) return invalid(field, value, " is not at least 1");
  }
  if (spec.width() % spec.heads() != 0) {
    return invalid("heads", spec.heads(), " does not divide width ", spec.width());
  }
  if (spec.image_size() % spec.patch_size() != 0) {
    return invalid("patch_size", spec.patch_size(), " does not divide image_size ",
                   spec.image_size());
  }
  return CheckImageOptions("vit", options);
}

struct VitLinear {
  ValueId weight;
  ValueId bias;
};

class VitBuilder {
 public:
  VitBuilder(const v1::ModelSpec& model, const ModelOptions& options)
      : model_(model),
        spec_(model.vit()),
        options_(options),
        training_(options.mode == Mode::kTraining),
        dropout_(training_ ? spec_.dropout() : 0),
        b_({.compute_dtype = options.compute_dtype, .batch = options.batch}),
        linear_(model, options, b_) {}

  absl::StatusOr<graph::Graph> Build() && {
    Embed();
    for (int64_t layer = 0; layer < spec_.layers(); ++layer) Layer(layer);
    Classify();
    return linear_.Finish(std::move(b_).Finish());
  }

 private:
  VitLinear Linear(const std::string& name, const graph::Shape& weight) {
    return {b_.Parameter(name + ".weight", weight, Initializer::kNormal, kVitStddev),
            b_.Parameter(name + ".bias", {weight[0]}, Initializer::kZeros)};
  }

  void Embed() {
    const std::string hf = "vit.embeddings.";
    const int64_t width = spec_.width(), side = spec_.patch_size();
    const int64_t across = spec_.image_size() / side, patches = across * across;
    b_.BeginBlock("embeddings");
    const auto learned = [&](const char* name, int64_t rows) {
      return b_.Parameter(hf + name, {1, rows, width}, Initializer::kNormal, kVitStddev);
    };
    const ValueId cls = learned("cls_token", 1);
    const ValueId positions = learned("position_embeddings", patches + 1);
    const VitLinear project =
        Linear(hf + "patch_embeddings.projection", {width, graph::kImageChannels, side, side});
    const v1::RgbSpec& mean = spec_.pixel_mean();
    const v1::RgbSpec& deviation = spec_.pixel_deviation();
    b_.SetSequence(patches);
    const ValueId rows =
        ops::ImagePatches(b_, "patches", b_.Images(spec_.image_size(), spec_.image_size()), side,
                          {mean.red(), mean.green(), mean.blue()},
                          {deviation.red(), deviation.green(), deviation.blue()});
    const ValueId embedded = ops::LinearRows(b_, "embeddings.patches", rows, {project.weight},
                                             {project.bias}, /*never_fp8=*/true);
    b_.SetSequence(patches + 1);
    residual_ = ops::PatchTokens(b_, "embeddings.tokens", embedded, cls, positions);
    if (dropout_ > 0) residual_ = ops::Dropout(b_, "embeddings.dropped", residual_, dropout_);
  }

  // Adds what the last sub-layer left to the residual stream, and normalises it.
  ValueId Norm(const std::string& hf, const std::string& name) {
    const ValueId weight = b_.Parameter(hf + ".weight", {spec_.width()}, Initializer::kOnes);
    const ValueId bias = b_.Parameter(hf + ".bias", {spec_.width()}, Initializer::kZeros);
    const double epsilon = spec_.norm_epsilon();
    if (delta_ == kNoValue) return ops::LayerNorm(b_, name, residual_, weight, bias, epsilon).y;
    const auto result =
        ops::ResidualLayerNorm(b_, name, residual_, delta_, weight, bias, dropout_, epsilon);
    residual_ = result.sum;
    return result.y;
  }

  void Layer(int64_t layer) {
    const std::string name = absl::StrCat("layer.", layer);
    const std::string hf = "vit.encoder." + name;
    b_.BeginBlock(name);
    delta_ = Attend(hf, name + ".attn", Norm(hf + ".layernorm_before", name + ".attn.norm"));
    delta_ = FeedForward(hf, name + ".mlp", Norm(hf + ".layernorm_after", name + ".mlp.norm"));
  }

  ValueId Attend(const std::string& hf, const std::string& name, ValueId x) {
    const int64_t width = spec_.width();
    std::vector<ValueId> weights, biases;
    for (const char* part : {"query", "key", "value"}) {
      weights.push_back(b_.Parameter(hf + ".attention.attention." + part + ".weight",
                                     {width, width}, Initializer::kNormal, kVitStddev));
    }
    for (const char* part : {"query", "key", "value"}) {
      biases.push_back(b_.Parameter(hf + ".attention.attention." + part + ".bias", {width},
                                    Initializer::kZeros));
    }
    const VitLinear project = Linear(hf + ".attention.output.dense", {width, width});
    const ValueId qkv = linear_.LinearRows(name + ".qkv", x, weights, biases);
    const ValueId out =
        ops::Attention(b_, name + ".out", qkv, {.heads = spec_.heads(), .causal = false});
    return linear_.LinearRows(name + ".delta", out, {project.weight}, {project.bias});
  }

  ValueId FeedForward(const std::string& hf, const std::string& name, ValueId x) {
    const VitLinear up = Linear(hf + ".intermediate.dense", {spec_.hidden(), spec_.width()});
    const VitLinear down = Linear(hf + ".output.dense", {spec_.width(), spec_.hidden()});
    const ValueId hidden = linear_.LinearRows(name + ".fc", x, {up.weight}, {up.bias});
    const ValueId active = ops::Gelu(b_, name + ".gelu", hidden, /*exact=*/true);
    return linear_.LinearRows(name + ".delta", active, {down.weight}, {down.bias});
  }

  void Classify() {
    b_.BeginBlock("head");
    const ValueId y = Norm("vit.layernorm", "head.norm");
    const VitLinear classifier = Linear("classifier", {spec_.classes(), spec_.width()});
    b_.SetSequence(1);
    const ValueId features = ops::FirstRows(b_, "features", y);
    const ValueId logits =
        ops::LinearRows(b_, "logits", features, {classifier.weight}, {classifier.bias});
    ops::ClassifierLoss(b_, "class", logits, b_.Targets(), training_ ? spec_.label_smoothing() : 0,
                        HeadWeight(model_));
    AddFeatureHeads(model_, options_, features, b_);
  }

  const v1::ModelSpec& model_;
  const v1::VitSpec& spec_;
  const ModelOptions& options_;
  const bool training_;
  const double dropout_;
  Builder b_;
  LoraLayers linear_;
  ValueId residual_ = kNoValue;
  ValueId delta_ = kNoValue;  // what the last sub-layer adds to the residual stream
};

}  // namespace

absl::StatusOr<graph::Graph> BuildVit(const v1::ModelSpec& model, const ModelOptions& options) {
  MP_RETURN_IF_ERROR(CheckVitSizes(model.vit(), options));
  return VitBuilder(model, options).Build();
}

}  // namespace milepost::models
