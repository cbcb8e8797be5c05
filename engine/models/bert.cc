#include "engine/models/bert.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/graph/builder.h"
#include "engine/models/lora.h"
#include "engine/models/task_heads.h"
#include "engine/ops/attention/attention.h"
#include "engine/ops/dropout/dropout.h"
#include "engine/ops/embedding/embedding.h"
#include "engine/ops/gelu/gelu.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/lm_head/lm_head.h"
#include "engine/ops/norm/norm.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {
namespace {

using graph::Builder;
using graph::Initializer;
using graph::ValueId;

constexpr double kBertStddev = 0.02;

absl::Status CheckSizes(const v1::BertSpec& spec, const ModelOptions& options) {
  const auto invalid = [](absl::string_view field, const auto&... message) {
    return absl::InvalidArgumentError(absl::StrCat("model.bert.", field, ": ", message...));
  };
  const std::pair<const char*, int64_t> sizes[] = {
      {"layers", spec.layers()}, {"width", spec.width()},     {"heads", spec.heads()},
      {"hidden", spec.hidden()}, {"context", spec.context()}, {"vocabulary", spec.vocabulary()}};
  for (const auto& [field, value] : sizes) {
    if (value < 1) return invalid(field, value, " is not at least 1");
  }
  if (spec.width() % spec.heads() != 0) {
    return invalid("heads", spec.heads(), " does not divide width ", spec.width());
  }
  if (options.sequence > spec.context()) {
    return invalid("context", "sequences of ", options.sequence, " tokens do not fit ",
                   spec.context(), " positions");
  }
  return absl::OkStatus();
}

struct LinearWeights {
  ValueId weight;
  ValueId bias;
};

// What transformers calls the modules of a model; within a layer after the layer's own name.
struct BertNames {
  const char* embeddings;
  const char* layers;
  const char* qkv[3];
  const char* attention_output;
  const char* attention_norm;
  const char* up;
  const char* down;
  const char* norm;
  const char* transform;
  const char* transform_norm;
  const char* head;
};
constexpr BertNames kBertNames = {
    .embeddings = "bert.embeddings.",
    .layers = "bert.encoder.layer.",
    .qkv = {".attention.self.query", ".attention.self.key", ".attention.self.value"},
    .attention_output = ".attention.output.dense",
    .attention_norm = ".attention.output.LayerNorm",
    .up = ".intermediate.dense",
    .down = ".output.dense",
    .norm = ".output.LayerNorm",
    .transform = "cls.predictions.transform.dense",
    .transform_norm = "cls.predictions.transform.LayerNorm",
    .head = "cls.predictions"};
constexpr BertNames kDistilBertNames = {
    .embeddings = "distilbert.embeddings.",
    .layers = "distilbert.transformer.layer.",
    .qkv = {".attention.q_lin", ".attention.k_lin", ".attention.v_lin"},
    .attention_output = ".attention.out_lin",
    .attention_norm = ".sa_layer_norm",
    .up = ".ffn.lin1",
    .down = ".ffn.lin2",
    .norm = ".output_layer_norm",
    .transform = "vocab_transform",
    .transform_norm = "vocab_layer_norm",
    .head = "vocab_projector"};

class BertBuilder {
 public:
  BertBuilder(const v1::ModelSpec& model, const ModelOptions& options)
      : model_(model),
        spec_(model.bert()),
        names_(spec_.segments() == 0 ? kDistilBertNames : kBertNames),
        options_(options),
        dropout_(options.mode == Mode::kTraining ? spec_.dropout() : 0),
        b_({.compute_dtype = options.compute_dtype,
            .batch = options.batch,
            .sequence = options.sequence,
            .cached_positions = options.cached_positions,
            .cached_texts = options.cached_texts,
            .rows_apart = options.rows_apart}),
        linear_(model, options, b_) {}

  absl::StatusOr<graph::Graph> Build() && {
    if (options_.documents) {
      documents_ = b_.Input("documents", DType::kI32, {b_.rows()});
      positions_ = b_.Input("positions", DType::kI32, {b_.rows()});
    }
    if (options_.segments) segments_ = b_.Input("segments", DType::kI32, {b_.rows()});
    Embed();
    for (int64_t layer = 0; layer < spec_.layers(); ++layer) Layer(layer);
    Head();
    AddTokenHeads(model_, options_, y_, b_);
    return linear_.Finish(std::move(b_).Finish());
  }

 private:
  ValueId Weight(const std::string& name, int64_t out, int64_t in) {
    return b_.Parameter(name + ".weight", {out, in}, Initializer::kNormal, kBertStddev);
  }
  ValueId Bias(const std::string& name, int64_t out) {
    return b_.Parameter(name + ".bias", {out}, Initializer::kZeros);
  }
  LinearWeights Norm(const std::string& name) {
    const ValueId weight = b_.Parameter(name + ".weight", {spec_.width()}, Initializer::kOnes);
    return {weight, Bias(name, spec_.width())};
  }

  void Embed() {
    const std::string hf = names_.embeddings;
    const int64_t width = spec_.width();
    b_.BeginBlock("embeddings");
    words_ = Weight(hf + "word_embeddings", spec_.vocabulary(), width);
    const ValueId positions = Weight(hf + "position_embeddings", spec_.context(), width);
    ValueId segments = graph::kNoValue;
    if (spec_.segments() > 0) {
      segments = Weight(hf + "token_type_embeddings", spec_.segments(), width);
    }
    const LinearWeights norm = Norm(hf + "LayerNorm");
    const ValueId sum = ops::Embedding(
        b_, "embeddings.sum", b_.Tokens(), words_,
        {.wpe = positions, .positions = positions_, .wse = segments, .segments = segments_},
        /*dropout=*/0);
    y_ = ops::LayerNorm(b_, "embeddings.norm", sum, norm.weight, norm.bias, spec_.norm_epsilon()).y;
    if (dropout_ > 0) y_ = ops::Dropout(b_, "embeddings.dropped", y_, dropout_);
  }

  // y_ = LayerNorm(y_ + dropout(delta)).
  void AddAndNorm(const std::string& hf_norm, const std::string& name, ValueId delta,
                  double dropout) {
    const LinearWeights norm = Norm(hf_norm);
    y_ = ops::ResidualLayerNorm(b_, name, y_, delta, norm.weight, norm.bias, dropout,
                                spec_.norm_epsilon())
             .y;
  }

  void Layer(int64_t layer) {
    const std::string name = absl::StrCat("layer.", layer);
    const std::string hf = absl::StrCat(names_.layers, layer);
    b_.BeginBlock(name);
    // DistilBERT's attention output has none.
    const double attention_dropout = spec_.segments() == 0 ? 0 : dropout_;
    AddAndNorm(hf + names_.attention_norm, name + ".attn.norm", Attend(hf, name + ".attn"),
               attention_dropout);
    AddAndNorm(hf + names_.norm, name + ".mlp.norm", FeedForward(hf, name + ".mlp"), dropout_);
  }

  ValueId Attend(const std::string& hf, const std::string& name) {
    const int64_t width = spec_.width();
    std::vector<ValueId> weights;
    std::vector<ValueId> biases;
    for (const char* part : names_.qkv) weights.push_back(Weight(hf + part, width, width));
    for (const char* part : names_.qkv) biases.push_back(Bias(hf + part, width));
    const ValueId weight = Weight(hf + names_.attention_output, width, width);
    const ValueId bias = Bias(hf + names_.attention_output, width);
    const ValueId qkv = linear_.LinearRows(name + ".qkv", y_, weights, biases);
    const ValueId out = ops::Attention(
        b_, name + ".out", qkv, {.heads = spec_.heads(), .causal = false, .documents = documents_});
    return linear_.LinearRows(name + ".delta", out, {weight}, {bias});
  }

  ValueId FeedForward(const std::string& hf, const std::string& name) {
    const ValueId up = Weight(hf + names_.up, spec_.hidden(), spec_.width());
    const ValueId up_bias = Bias(hf + names_.up, spec_.hidden());
    const ValueId down = Weight(hf + names_.down, spec_.width(), spec_.hidden());
    const ValueId down_bias = Bias(hf + names_.down, spec_.width());
    const ValueId hidden = linear_.LinearRows(name + ".fc", y_, {up}, {up_bias});
    const ValueId active = ops::Gelu(b_, name + ".gelu", hidden, /*exact=*/true);
    return linear_.LinearRows(name + ".delta", active, {down}, {down_bias});
  }

  void Head() {
    const int64_t width = spec_.width();
    b_.BeginBlock("head");
    const ValueId bias = Bias(names_.head, spec_.vocabulary());
    const ValueId dense = Weight(names_.transform, width, width);
    const ValueId dense_bias = Bias(names_.transform, width);
    const LinearWeights norm = Norm(names_.transform_norm);
    const ValueId x = ops::LinearRows(b_, "head.fc", y_, {dense}, {dense_bias});
    const ValueId active = ops::Gelu(b_, "head.gelu", x, /*exact=*/true);
    const ValueId y =
        ops::LayerNorm(b_, "head.norm", active, norm.weight, norm.bias, spec_.norm_epsilon()).y;
    if (options_.mode == Mode::kGeneration) {
      ops::LmHeadLogits(b_, "logits", y, words_, bias);
      return;
    }
    ops::MaskedLmHeadLoss(b_, "mlm", y, words_, bias, b_.Targets(), ChunkRows(),
                          HeadWeight(model_));
  }

  // Rows of logits at once. With the usual share of masked tokens, 0.15, one such chunk mostly
  // holds all that a batch has: the last chunk, computed in full, is the only waste.
  int64_t ChunkRows() const {
    const int64_t rows = b_.rows();
    const int64_t expected = (rows / 6 + 15) / 16 * 16;
    const int64_t most = options_.lm_head_chunk_rows == 0 ? rows : options_.lm_head_chunk_rows;
    return std::clamp<int64_t>(expected, 1, most);
  }

  const v1::ModelSpec& model_;
  const v1::BertSpec& spec_;
  const BertNames& names_;
  const ModelOptions& options_;
  double dropout_;
  Builder b_;
  LoraLayers linear_;
  ValueId documents_ = graph::kNoValue;
  ValueId positions_ = graph::kNoValue;
  ValueId segments_ = graph::kNoValue;
  ValueId words_ = graph::kNoValue;
  ValueId y_ = graph::kNoValue;  // between sub-layers
};

}  // namespace

absl::StatusOr<graph::Graph> BuildBert(const v1::ModelSpec& model, const ModelOptions& options) {
  MP_RETURN_IF_ERROR(CheckSizes(model.bert(), options));
  return BertBuilder(model, options).Build();
}

}  // namespace milepost::models
