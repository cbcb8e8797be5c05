#include "engine/models/llama.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/dtype/half.h"
#include "engine/graph/builder.h"
#include "engine/models/lora.h"
#include "engine/models/task_heads.h"
#include "engine/models/twin_stream.h"
#include "engine/ops/add/add.h"
#include "engine/ops/attention/attention.h"
#include "engine/ops/embedding/embedding.h"
#include "engine/ops/experts/experts.h"
#include "engine/ops/geglu/geglu.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/lm_head/lm_head.h"
#include "engine/ops/norm/norm.h"
#include "engine/ops/qk_norm/qk_norm.h"
#include "engine/ops/rope/rope.h"
#include "engine/ops/scale/scale.h"
#include "engine/ops/swiglu/swiglu.h"
#include "engine/ops/wide_qk_norm/wide_qk_norm.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {
namespace {

using graph::Builder;
using graph::Initializer;
using graph::ValueId;

constexpr double kLlamaStddev = 0.02;

// Absent: true (normalize.cc).
bool HasPreNorms(const v1::LlamaSpec& spec) { return !spec.has_pre_norms() || spec.pre_norms(); }

absl::Status InvalidLlama(absl::string_view field, const auto&... message) {
  return absl::InvalidArgumentError(absl::StrCat("model.llama.", field, ": ", message...));
}

absl::Status CheckExpertSizes(const v1::ExpertsSpec& experts) {
  if (experts.hidden() < 1) {
    return InvalidLlama("experts.hidden", experts.hidden(), " is not at least 1");
  }
  if (experts.per_token() < 1 || experts.per_token() > experts.count()) {
    return InvalidLlama("experts.per_token", experts.per_token(), " is not in [1, ",
                        experts.count(), "], which are the experts");
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const v1::LlamaSpec& spec, const ModelOptions& options) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"layers", spec.layers()},     {"width", spec.width()},          {"heads", spec.heads()},
      {"kv_heads", spec.kv_heads()}, {"head_dim", spec.head_dim()},    {"hidden", spec.hidden()},
      {"context", spec.context()},   {"vocabulary", spec.vocabulary()}};
  for (const auto& [field, value] : sizes) {
    if (value < 1) return InvalidLlama(field, value, " is not at least 1");
  }
  if (spec.has_experts()) MP_RETURN_IF_ERROR(CheckExpertSizes(spec.experts()));
  if (spec.heads() % spec.kv_heads() != 0) {
    return InvalidLlama("kv_heads", spec.kv_heads(), " does not divide heads ", spec.heads());
  }
  if (!HasPreNorms(spec) && !spec.post_norms()) {
    return InvalidLlama("pre_norms", "without them nothing is normed; post_norms are needed");
  }
  const int64_t positions =
      options.cached_positions > 0 ? options.cached_positions : options.sequence;
  if (positions > spec.context()) {
    return InvalidLlama("context", "sequences of ", positions, " tokens do not fit ",
                        spec.context(), " positions");
  }
  return absl::OkStatus();
}

graph::RopeAttributes RopeOf(const v1::LlamaSpec& spec) {
  graph::RopeAttributes rope{.theta = spec.rope_theta()};
  if (!spec.has_rope_scaling()) return rope;
  const v1::RopeScalingSpec& scaling = spec.rope_scaling();
  rope.factor = scaling.factor();
  if (scaling.type() == v1::RopeScalingSpec::TYPE_LINEAR) {
    rope.low_frequency = rope.high_frequency = std::numeric_limits<double>::infinity();
    return rope;
  }
  rope.low_frequency = scaling.low_freq_factor();
  rope.high_frequency = scaling.high_freq_factor();
  rope.original_context = static_cast<double>(scaling.original_context());
  return rope;
}

class LlamaBuilder {
 public:
  LlamaBuilder(const v1::ModelSpec& model, const ModelOptions& options)
      : model_(model),
        spec_(model.llama()),
        options_(options),
        residual_stddev_(kLlamaStddev / std::sqrt(2.0 * static_cast<double>(spec_.layers()))),
        b_({.compute_dtype = options.compute_dtype,
            .batch = options.batch,
            .sequence = options.sequence,
            .cached_positions = options.cached_positions,
            .cached_texts = options.cached_texts,
            .rows_apart = options.rows_apart}),
        linear_(model, options, b_),
        twin_(model, options, b_, linear_) {}

  absl::StatusOr<graph::Graph> Build() && {
    b_.BeginBlock("embedding");
    twin_.ForEach([this](LlamaStream& s) {
      s.head = Weight("model.embed_tokens", spec_.vocabulary(), spec_.width(), kLlamaStddev);
      s.residual = ops::Embedding(b_, twin_.Named("embedding"), b_.Tokens(), s.head, {}, 0);
      if (spec_.scale_embedding()) {
        s.residual = ops::Scale(b_, twin_.Named("embedding.scaled"), s.residual, EmbeddingScale());
      }
    });
    if (options_.documents) {
      documents_ = b_.Input("documents", DType::kI32, {b_.rows()});
      positions_ = b_.Input("positions", DType::kI32, {b_.rows()});
    }
    rope_ = ops::RopeTable(b_, "rope", spec_.head_dim(), RopeOf(spec_));
    window_rope_ = rope_;
    if (spec_.window().has_rope_theta()) {
      window_rope_ = ops::RopeTable(b_, "window_rope", spec_.head_dim(),
                                    {.theta = spec_.window().rope_theta()});
    }
    for (int64_t layer = 0; layer < spec_.layers(); ++layer) {
      b_.BeginBlock(absl::StrCat("layers.", layer));
      twin_.ForEach([&](LlamaStream& s) { Layer(layer, s); });
    }
    b_.BeginBlock("norm");
    twin_.ForEach([this](LlamaStream& s) { Norm("model.norm", "norm", s); });
    Head();
    AddTokenHeads(model_, options_, twin_.own().y, b_);
    return linear_.Finish(std::move(b_).Finish());
  }

 private:
  struct LlamaStream {
    ValueId residual = graph::kNoValue;
    ValueId delta = graph::kNoValue;  // what the last sub-layer adds to the residual stream
    ValueId y = graph::kNoValue;
    ValueId head = graph::kNoValue;  // until the head is made, the embedding
  };

  ValueId Weight(absl::string_view name, int64_t out, int64_t in, double stddev) {
    return twin_.Parameter(absl::StrCat(name, ".weight"), {out, in}, Initializer::kNormal, stddev);
  }
  ValueId Bias(absl::string_view name, int64_t out) {
    return twin_.Parameter(absl::StrCat(name, ".bias"), {out}, Initializer::kZeros);
  }
  ValueId NormWeight(absl::string_view name, int64_t width) {
    return twin_.Parameter(absl::StrCat(name, ".weight"), {width},
                           spec_.norm_offset() ? Initializer::kZeros : Initializer::kOnes);
  }
  double NormOffset() const { return spec_.norm_offset() ? 1 : 0; }

  // In the compute type, as transformers has it: that is what Gemma was trained with.
  double EmbeddingScale() const {
    const float scale = std::sqrt(static_cast<float>(spec_.width()));
    switch (options_.compute_dtype) {
      case DType::kBf16:
        return ToFloat(FromFloat<bf16>(scale));
      case DType::kF16:
        return ToFloat(FromFloat<f16>(scale));
      default:
        return scale;
    }
  }

  // What a position sees in a layer; 0: all before it.
  int64_t WindowOf(int64_t layer) const {
    const v1::AttentionWindowSpec& window = spec_.window();
    const bool full = window.full_every() > 0 && (layer + 1) % window.full_every() == 0;
    return full ? 0 : window.positions();
  }

  // Adds what the last sub-layer left to the residual stream and normalises it: y.
  void Norm(absl::string_view parameter, absl::string_view name, LlamaStream& s) {
    const ValueId gamma = NormWeight(parameter, spec_.width());
    if (s.delta == graph::kNoValue) {
      s.y =
          ops::RmsNorm(b_, twin_.Named(name), s.residual, gamma, spec_.norm_epsilon(), NormOffset())
              .y;
      return;
    }
    const auto result = ops::ResidualRmsNorm(b_, twin_.Named(name), s.residual, s.delta, gamma,
                                             spec_.norm_epsilon(), NormOffset());
    s.residual = result.sum;
    s.y = result.y;
  }

  // Normalises what a sub-layer leaves to the residual stream. Without pre-norms it is added at
  // once, as the next sub-layer reads the stream itself.
  void PostNorm(absl::string_view parameter, const std::string& name, LlamaStream& s) {
    const ValueId gamma = NormWeight(parameter, spec_.width());
    s.delta =
        ops::RmsNorm(b_, twin_.Named(name), s.delta, gamma, spec_.norm_epsilon(), NormOffset()).y;
    if (HasPreNorms(spec_)) return;
    s.residual = ops::Add(b_, twin_.Named(name + ".sum"), s.residual, s.delta);
    s.delta = graph::kNoValue;
  }

  // What a sub-layer reads: y.
  void PreNorm(absl::string_view parameter, absl::string_view name, LlamaStream& s) {
    if (HasPreNorms(spec_)) return Norm(parameter, name, s);
    s.y = s.residual;
  }

  void Layer(int64_t layer, LlamaStream& s) {
    const std::string name = absl::StrCat("layers.", layer);
    const std::string hf = absl::StrCat("model.", name);
    PreNorm(hf + ".input_layernorm", name + ".input_norm", s);
    Attend(layer, hf + ".self_attn", twin_.Named(name + ".attn"), s);
    if (spec_.post_norms()) {
      PostNorm(hf + ".post_attention_layernorm", name + ".attn_post_norm", s);
      PreNorm(hf + ".pre_feedforward_layernorm", name + ".mlp_norm", s);
    } else {
      PreNorm(hf + ".post_attention_layernorm", name + ".mlp_norm", s);
    }
    if (spec_.has_experts()) {
      Experts(hf, name + ".mlp", s);
    } else {
      FeedForward(hf + ".mlp", twin_.Named(name + ".mlp"), s);
    }
    if (spec_.post_norms()) {
      PostNorm(hf + ".post_feedforward_layernorm", name + ".mlp_post_norm", s);
    }
  }

  // Of all heads at once, or of each.
  ValueId NormQueriesAndKeys(const std::string& hf, const std::string& name, ValueId qkv) {
    if (!spec_.qk_norm() && !spec_.wide_qk_norm()) return qkv;
    const int64_t heads = spec_.wide_qk_norm() ? spec_.heads() : 1;
    const int64_t kv_heads = spec_.wide_qk_norm() ? spec_.kv_heads() : 1;
    const ValueId gamma_q = NormWeight(hf + ".q_norm", heads * spec_.head_dim());
    const ValueId gamma_k = NormWeight(hf + ".k_norm", kv_heads * spec_.head_dim());
    const auto norm = spec_.wide_qk_norm() ? ops::WideQkNorm : ops::QkNorm;
    return norm(b_, name + ".normed", qkv, gamma_q, gamma_k, spec_.heads(), spec_.kv_heads(),
                spec_.norm_epsilon(), NormOffset());
  }

  void Attend(int64_t layer, const std::string& hf, const std::string& name, LlamaStream& s) {
    const int64_t width = spec_.width();
    const int64_t queries = spec_.heads() * spec_.head_dim();
    const int64_t keys = spec_.kv_heads() * spec_.head_dim();
    const std::vector<ValueId> weights = {Weight(hf + ".q_proj", queries, width, kLlamaStddev),
                                          Weight(hf + ".k_proj", keys, width, kLlamaStddev),
                                          Weight(hf + ".v_proj", keys, width, kLlamaStddev)};
    std::vector<ValueId> biases;
    if (spec_.qkv_bias()) {
      biases = {Bias(hf + ".q_proj", queries), Bias(hf + ".k_proj", keys),
                Bias(hf + ".v_proj", keys)};
    }
    const ValueId output = Weight(hf + ".o_proj", width, queries, residual_stddev_);
    const ValueId projected = linear_.LinearRows(name + ".qkv", s.y, weights, biases);
    const ValueId qkv = NormQueriesAndKeys(hf, name, projected);
    const int64_t window = WindowOf(layer);
    const ValueId rotated = ops::Rope(b_, name + ".rotated", qkv, window > 0 ? window_rope_ : rope_,
                                      spec_.heads(), spec_.kv_heads(), positions_);
    const ValueId out = ops::Attention(b_, name + ".out", rotated,
                                       {.heads = spec_.heads(),
                                        .kv_heads = spec_.kv_heads(),
                                        .documents = documents_,
                                        .window = window});
    s.delta = linear_.LinearRows(name + ".delta", out, {output});
  }

  void FeedForward(const std::string& hf, const std::string& name, LlamaStream& s) {
    const int64_t width = spec_.width();
    const int64_t hidden = spec_.hidden();
    const std::vector<ValueId> weights = {Weight(hf + ".gate_proj", hidden, width, kLlamaStddev),
                                          Weight(hf + ".up_proj", hidden, width, kLlamaStddev)};
    const ValueId down = Weight(hf + ".down_proj", width, hidden, residual_stddev_);
    const ValueId both = linear_.LinearRows(name + ".gate_up", s.y, weights);
    const ValueId active = spec_.activation() == v1::LlamaSpec::ACTIVATION_GEGLU
                               ? ops::GeGlu(b_, name + ".geglu", both)
                               : ops::SwiGlu(b_, name + ".swiglu", both);
    s.delta = linear_.LinearRows(name + ".delta", active, {down});
  }

  // Mixtral's names, or those of Qwen3's mixtures, which norm queries and keys.
  struct ExpertNames {
    const char* block;
    const char* gate;
    const char* up;
    const char* down;
  };
  ExpertNames NamesOfExperts() const {
    if (spec_.qk_norm()) return {".mlp", ".gate_proj", ".up_proj", ".down_proj"};
    return {".block_sparse_moe", ".w1", ".w3", ".w2"};
  }

  void Experts(const std::string& hf, const std::string& name, LlamaStream& s) {
    const v1::ExpertsSpec& experts = spec_.experts();
    const int64_t width = spec_.width(), hidden = experts.hidden();
    const ExpertNames names = NamesOfExperts();
    const std::string block = hf + names.block;
    const ValueId router = Weight(block + ".gate", experts.count(), width, kLlamaStddev);
    std::vector<ValueId> gate_up, down;
    for (int64_t e = 0; e < experts.count(); ++e) {
      const std::string expert = absl::StrCat(block, ".experts.", e);
      gate_up.push_back(Weight(expert + names.gate, hidden, width, kLlamaStddev));
      gate_up.push_back(Weight(expert + names.up, hidden, width, kLlamaStddev));
      down.push_back(Weight(expert + names.down, width, hidden, residual_stddev_));
    }
    const ValueId logits = ops::LinearRows(b_, name + ".router", s.y, {router}, {},
                                           /*never_fp8=*/true);
    const ops::ExpertRoutes routes = ops::RouteExperts(b_, name + ".routes", logits,
                                                       {.per_token = experts.per_token(),
                                                        .normalize = experts.normalize(),
                                                        .counts = BalancesExperts(),
                                                        .before = counts_});
    counts_ = routes.counts;
    const ValueId rows = ops::DispatchRows(b_, name + ".rows", s.y, routes);
    const ValueId both = ops::ExpertLinear(b_, name + ".gate_up", rows, routes, gate_up, 2);
    b_.SetSequence(options_.sequence * experts.per_token());
    const ValueId active = ops::SwiGlu(b_, name + ".swiglu", both);
    b_.SetSequence(options_.sequence);
    const ValueId made = ops::ExpertLinear(b_, name + ".down", active, routes, down, 1);
    s.delta = ops::CombineRows(b_, name + ".delta", made, routes);
  }

  bool BalancesExperts() const {
    const v1::ExpertsSpec& experts = spec_.experts();
    return options_.mode == Mode::kTraining && spec_.has_experts() &&
           (experts.balance_loss() != 0 || experts.z_loss() != 0);
  }

  // What is trained beside the model's own loss.
  void BalanceExperts() {
    if (!BalancesExperts()) return;
    const v1::ExpertsSpec& experts = spec_.experts();
    ops::ExpertBalance(b_, "balance", b_.Targets(), counts_,
                       {.balance_loss = experts.balance_loss(), .z_loss = experts.z_loss()});
  }

  void Head() {
    BalanceExperts();
    twin_.ForEach([this](LlamaStream& s) {
      if (spec_.tied()) return;
      s.head = Weight("lm_head", spec_.vocabulary(), spec_.width(), kLlamaStddev);
    });
    const LlamaStream& s = twin_.own();
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
  const v1::LlamaSpec& spec_;
  const ModelOptions& options_;
  const double residual_stddev_;
  Builder b_;
  LoraLayers linear_;
  TwinStream<LlamaStream> twin_;
  ValueId rope_ = graph::kNoValue;
  ValueId window_rope_ = graph::kNoValue;
  ValueId documents_ = graph::kNoValue;
  ValueId positions_ = graph::kNoValue;
  ValueId counts_ = graph::kNoValue;  // of the layers of experts so far
};

}  // namespace

absl::StatusOr<graph::Graph> BuildLlama(const v1::ModelSpec& model, const ModelOptions& options) {
  MP_RETURN_IF_ERROR(CheckSizes(model.llama(), options));
  MP_RETURN_IF_ERROR(CheckPreference(model, options));
  return LlamaBuilder(model, options).Build();
}

}  // namespace milepost::models
