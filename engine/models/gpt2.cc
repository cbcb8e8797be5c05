#include "engine/models/gpt2.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/graph/builder.h"
#include "engine/models/lora.h"
#include "engine/models/task_heads.h"
#include "engine/models/twin_stream.h"
#include "engine/ops/attention/attention.h"
#include "engine/ops/embedding/embedding.h"
#include "engine/ops/gelu/gelu.h"
#include "engine/ops/lm_head/lm_head.h"
#include "engine/ops/norm/norm.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {
namespace {

using graph::Builder;
using graph::Initializer;
using graph::ValueId;

constexpr double kGpt2Stddev = 0.02;

absl::Status CheckSizes(const v1::Gpt2Spec& spec, const ModelOptions& options) {
  const auto positive = [](absl::string_view field, int64_t value) {
    if (value >= 1) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("model.gpt2.", field, ": ", value, " is not at least 1"));
  };
  MP_RETURN_IF_ERROR(positive("layers", spec.layers()));
  MP_RETURN_IF_ERROR(positive("width", spec.width()));
  MP_RETURN_IF_ERROR(positive("heads", spec.heads()));
  MP_RETURN_IF_ERROR(positive("context", spec.context()));
  MP_RETURN_IF_ERROR(positive("vocabulary", spec.vocabulary()));
  if (spec.width() % spec.heads() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.gpt2.heads: ", spec.heads(), " does not divide width ", spec.width()));
  }
  const int64_t positions =
      options.cached_positions > 0 ? options.cached_positions : options.sequence;
  if (positions > spec.context()) {
    return absl::InvalidArgumentError(absl::StrCat("model.gpt2.context: sequences of ", positions,
                                                   " tokens do not fit ", spec.context(),
                                                   " positions"));
  }
  return absl::OkStatus();
}

struct Affine {
  ValueId weight;
  ValueId bias;
};

class Gpt2Builder {
 public:
  Gpt2Builder(const v1::ModelSpec& model, const ModelOptions& options)
      : model_(model),
        spec_(model.gpt2()),
        options_(options),
        dropout_(options.mode == Mode::kTraining ? spec_.dropout() : 0),
        b_({.compute_dtype = options.compute_dtype,
            .batch = options.batch,
            .sequence = options.sequence,
            .cached_positions = options.cached_positions,
            .cached_texts = options.cached_texts,
            .rows_apart = options.rows_apart}),
        linear_(model, options, b_),
        twin_(model, options, b_, linear_) {}

  absl::StatusOr<graph::Graph> Build() && {
    Embed();
    for (int64_t layer = 0; layer < spec_.layers(); ++layer) {
      b_.BeginBlock(absl::StrCat("h.", layer));
      twin_.ForEach([&](Gpt2Stream& s) { Layer(layer, s); });
    }
    b_.BeginBlock("ln_f");
    twin_.ForEach([this](Gpt2Stream& s) { Norm("ln_f", s); });
    Head();
    AddTokenHeads(model_, options_, twin_.own().y, b_);
    return linear_.Finish(std::move(b_).Finish());
  }

 private:
  struct Gpt2Stream {
    ValueId residual = graph::kNoValue;
    ValueId delta = graph::kNoValue;  // what the last sub-layer adds to the residual stream
    ValueId y = graph::kNoValue;
    ValueId wpe = graph::kNoValue;
    ValueId head = graph::kNoValue;  // wte
  };

  static std::string Hf(absl::string_view name) { return absl::StrCat("transformer.", name); }
  double Dropout() const { return twin_.on_reference() ? 0 : dropout_; }

  Affine LinearParameters(absl::string_view name, int64_t in, int64_t out, double stddev) {
    return {
        twin_.Parameter(Hf(absl::StrCat(name, ".weight")), {in, out}, Initializer::kNormal, stddev),
        twin_.Parameter(Hf(absl::StrCat(name, ".bias")), {out}, Initializer::kZeros)};
  }

  Affine NormParameters(absl::string_view name) {
    return {twin_.Parameter(Hf(absl::StrCat(name, ".weight")), {spec_.width()}, Initializer::kOnes),
            twin_.Parameter(Hf(absl::StrCat(name, ".bias")), {spec_.width()}, Initializer::kZeros)};
  }

  void Embed() {
    b_.BeginBlock("embedding");
    twin_.ForEach([&](Gpt2Stream& s) {
      s.head = twin_.Parameter(Hf("wte.weight"), {spec_.vocabulary(), spec_.width()},
                               Initializer::kNormal, kGpt2Stddev);
      s.wpe = twin_.Parameter(Hf("wpe.weight"), {spec_.context(), spec_.width()},
                              Initializer::kNormal, kGpt2Stddev);
    });
    ValueId positions = graph::kNoValue;
    if (options_.documents) documents_ = b_.Input("documents", DType::kI32, {b_.rows()});
    if (options_.documents) positions = b_.Input("positions", DType::kI32, {b_.rows()});
    twin_.ForEach([&](Gpt2Stream& s) {
      s.residual = ops::Embedding(b_, twin_.Named("embedding"), b_.Tokens(), s.head,
                                  {.wpe = s.wpe, .positions = positions}, Dropout());
    });
  }

  // Adds what the last sub-layer left to the residual stream and normalises it: y.
  void Norm(absl::string_view name, Gpt2Stream& s) {
    const Affine norm = NormParameters(name);
    if (s.delta == graph::kNoValue) {
      s.y = ops::LayerNorm(b_, twin_.Named(name), s.residual, norm.weight, norm.bias).y;
      return;
    }
    const auto result = ops::ResidualLayerNorm(b_, twin_.Named(name), s.residual, s.delta,
                                               norm.weight, norm.bias, Dropout());
    s.residual = result.sum;
    s.y = result.y;
  }

  void Layer(int64_t layer, Gpt2Stream& s) {
    const std::string h = absl::StrCat("h.", layer);
    const auto named = [&h](absl::string_view name) { return absl::StrCat(h, ".", name); };
    const auto value = [&](absl::string_view name) { return twin_.Named(named(name)); };
    const int64_t width = spec_.width();
    const double residual_stddev =
        kGpt2Stddev / std::sqrt(2.0 * static_cast<double>(spec_.layers()));

    Norm(named("ln_1"), s);
    const Affine attend = LinearParameters(named("attn.c_attn"), width, 3 * width, kGpt2Stddev);
    const Affine project = LinearParameters(named("attn.c_proj"), width, width, residual_stddev);
    const ValueId qkv = linear_.Linear(value("attn.qkv"), s.y, attend.weight, attend.bias);
    const ValueId attention = ops::Attention(b_, value("attn.out"), qkv,
                                             {.heads = spec_.heads(), .documents = documents_});
    s.delta = linear_.Linear(value("attn.delta"), attention, project.weight, project.bias);

    Norm(named("ln_2"), s);
    const Affine up = LinearParameters(named("mlp.c_fc"), width, 4 * width, kGpt2Stddev);
    const Affine down = LinearParameters(named("mlp.c_proj"), 4 * width, width, residual_stddev);
    const ValueId hidden = linear_.Linear(value("mlp.fc"), s.y, up.weight, up.bias);
    const ValueId active = ops::Gelu(b_, value("mlp.gelu"), hidden);
    s.delta = linear_.Linear(value("mlp.delta"), active, down.weight, down.bias);
  }

  void Head() {
    const Gpt2Stream& s = twin_.own();
    if (options_.mode == Mode::kGeneration) {
      ops::LmHeadLogits(b_, "logits", s.y, s.head, graph::kNoValue, options_.every_logits);
      return;
    }
    const int64_t chunk =
        options_.lm_head_chunk_rows == 0 ? b_.rows() : options_.lm_head_chunk_rows;
    if (twin_.twin()) return twin_.AddPreferenceLoss(chunk, documents_, *options_.preference);
    ops::LmHeadLoss(b_, "lm", s.y, s.head, b_.Targets(), chunk, HeadWeight(model_));
  }

  const v1::ModelSpec& model_;
  const v1::Gpt2Spec& spec_;
  const ModelOptions& options_;
  double dropout_;
  Builder b_;
  LoraLayers linear_;
  TwinStream<Gpt2Stream> twin_;
  ValueId documents_ = graph::kNoValue;
};

}  // namespace

absl::StatusOr<graph::Graph> BuildGpt2(const v1::ModelSpec& model, const ModelOptions& options) {
  MP_RETURN_IF_ERROR(CheckSizes(model.gpt2(), options));
  MP_RETURN_IF_ERROR(CheckPreference(model, options));
  return Gpt2Builder(model, options).Build();
}

}  // namespace milepost::models
