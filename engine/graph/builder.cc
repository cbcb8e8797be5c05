#include "engine/graph/builder.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace milepost::graph {
namespace {

std::string ToString(DType dtype, const Shape& shape) {
  return absl::StrCat(Name(dtype), "[", absl::StrJoin(shape, ","), "]");
}

}  // namespace

Builder::Builder(const BuilderOptions& options) : options_(options) {
  if (options.batch < 1 || options.sequence < 1) {
    Fail("graph", absl::StrCat("batch ", options.batch, " and sequence ", options.sequence,
                               " must be at least 1"));
  }
  if (options.compute_dtype != DType::kF32 && options.compute_dtype != DType::kBF16 &&
      options.compute_dtype != DType::kF16) {
    Fail("graph", absl::StrCat("compute dtype ", Name(options.compute_dtype),
                               " is none of F32, BF16 and F16"));
  }
  if (caches() && (options.batch != 1 || options.sequence > options.cached_positions)) {
    Fail("graph",
         absl::StrCat(options.batch, " sequences of ", options.sequence,
                      " tokens are no piece of one text of at most ", options.cached_positions));
  }
}

void Builder::BeginBlock(absl::string_view name) { graph_.blocks.emplace_back(name); }

ValueId Builder::Parameter(absl::string_view name, const Shape& shape, Initializer initializer,
                           double stddev) {
  if (graph_.blocks.empty()) Fail(name, "a parameter needs a block: call BeginBlock first");
  for (int64_t dimension : shape) {
    if (dimension < 1) {
      Fail(name, absl::StrCat("every dimension of ", ToString(options_.compute_dtype, shape),
                              " must be at least 1"));
    }
  }
  const ValueId id = AddValue(name, options_.compute_dtype, shape, ValueKind::kParameter);
  graph_.parameters.push_back(
      {.value = id, .initializer = initializer, .stddev = stddev, .decay = shape.size() >= 2});
  return id;
}

ValueId Builder::Input(absl::string_view name, DType dtype, const Shape& shape) {
  const ValueId known = graph_.Input(name);
  if (known != kNoValue) return Expect(name, "input", known, dtype, shape) ? known : kNoValue;
  graph_.inputs.push_back(AddValue(name, dtype, shape, ValueKind::kInput));
  return graph_.inputs.back();
}

ValueId Builder::Tokens() { return Input("tokens", DType::kI32, {rows()}); }
ValueId Builder::Positions() { return Input("positions", DType::kI32, {rows()}); }
ValueId Builder::Targets() { return Input("targets", DType::kI32, {rows()}); }

ValueId Builder::Embedding(absl::string_view name, ValueId tokens, ValueId wte,
                           const EmbeddingTables& tables, double dropout) {
  const DType dtype = options_.compute_dtype;
  const int64_t width = Dimension(name, "wte", wte, 1);
  const bool learned = tables.wpe != kNoValue;
  const bool segmented = tables.wse != kNoValue;
  const int64_t positions = learned ? Dimension(name, "wpe", tables.wpe, 0) : 0;
  const int64_t segments = segmented ? Dimension(name, "wse", tables.wse, 0) : 0;
  if (!Expect(name, "tokens", tokens, DType::kI32, {rows()}) ||
      !Expect(name, "wte", wte, dtype, {Dimension(name, "wte", wte, 0), width}) ||
      (learned && !Expect(name, "wpe", tables.wpe, dtype, {positions, width})) ||
      (segmented && !Expect(name, "wse", tables.wse, dtype, {segments, width})) ||
      !ExpectRowsOf(name, "positions", tables.positions) ||
      !ExpectRowsOf(name, "segments", tables.segments)) {
    return kNoValue;
  }
  const int64_t needed = std::max(options_.sequence, options_.cached_positions);
  if (learned && positions < needed) {
    Fail(name, absl::StrCat("sequences of ", needed, " tokens are longer than the ", positions,
                            " positions of wpe"));
  }
  const ValueId out = AddActivation(name, "", dtype, {rows(), width});
  const ValueId places = learned && caches() ? Positions() : tables.positions;
  Op& op =
      AddOp(OpKind::kEmbedding, {tokens, wte, tables.wpe, places, tables.wse, tables.segments});
  op.attributes.dropout = dropout;
  op.attributes.dropout_tag = NextDropoutTag(dropout);
  op.outputs = {{.value = out}};
  return out;
}

LayerNormResult Builder::LayerNorm(absl::string_view name, ValueId x, ValueId gamma, ValueId beta,
                                   double epsilon) {
  const DType dtype = options_.compute_dtype;
  const int64_t width = Dimension(name, "x", x, 1);
  if (!Expect(name, "x", x, dtype, {rows(), width}) ||
      !Expect(name, "gamma", gamma, dtype, {width}) ||
      !Expect(name, "beta", beta, dtype, {width})) {
    return {};
  }
  const LayerNormResult result = {
      .y = AddActivation(name, "", dtype, {rows(), width}),
      .mean = AddActivation(name, ".mean", DType::kF32, {rows()}),
      .rstd = AddActivation(name, ".rstd", DType::kF32, {rows()}),
  };
  Op& op = AddOp(OpKind::kLayerNorm, {x, gamma, beta});
  op.attributes.epsilon = epsilon;
  op.outputs = {{.value = result.y}, {.value = result.mean}, {.value = result.rstd}};
  return result;
}

ResidualLayerNormResult Builder::ResidualLayerNorm(absl::string_view name, ValueId residual,
                                                   ValueId delta, ValueId gamma, ValueId beta,
                                                   double dropout, double epsilon) {
  const DType dtype = options_.compute_dtype;
  const int64_t width = Dimension(name, "residual", residual, 1);
  if (!Expect(name, "residual", residual, dtype, {rows(), width}) ||
      !Expect(name, "delta", delta, dtype, {rows(), width}) ||
      !Expect(name, "gamma", gamma, dtype, {width}) ||
      !Expect(name, "beta", beta, dtype, {width})) {
    return {};
  }
  const ResidualLayerNormResult result = {
      .sum = AddActivation(name, ".sum", dtype, {rows(), width}),
      .y = AddActivation(name, "", dtype, {rows(), width}),
      .mean = AddActivation(name, ".mean", DType::kF32, {rows()}),
      .rstd = AddActivation(name, ".rstd", DType::kF32, {rows()}),
  };
  Op& op = AddOp(OpKind::kResidualLayerNorm, {residual, delta, gamma, beta});
  op.attributes.epsilon = epsilon;
  op.attributes.dropout = dropout;
  op.attributes.dropout_tag = NextDropoutTag(dropout);
  op.outputs = {{.value = result.sum, .may_overwrite = delta},
                {.value = result.y},
                {.value = result.mean},
                {.value = result.rstd}};
  return result;
}

RmsNormResult Builder::RmsNorm(absl::string_view name, ValueId x, ValueId gamma, double epsilon) {
  const DType dtype = options_.compute_dtype;
  const int64_t width = Dimension(name, "x", x, 1);
  if (!Expect(name, "x", x, dtype, {rows(), width}) ||
      !Expect(name, "gamma", gamma, dtype, {width})) {
    return {};
  }
  const RmsNormResult result = {
      .y = AddActivation(name, "", dtype, {rows(), width}),
      .rstd = AddActivation(name, ".rstd", DType::kF32, {rows()}),
  };
  Op& op = AddOp(OpKind::kRmsNorm, {x, gamma});
  op.attributes.epsilon = epsilon;
  op.outputs = {{.value = result.y}, {.value = result.rstd}};
  return result;
}

ResidualRmsNormResult Builder::ResidualRmsNorm(absl::string_view name, ValueId residual,
                                               ValueId delta, ValueId gamma, double epsilon) {
  const DType dtype = options_.compute_dtype;
  const int64_t width = Dimension(name, "residual", residual, 1);
  if (!Expect(name, "residual", residual, dtype, {rows(), width}) ||
      !Expect(name, "delta", delta, dtype, {rows(), width}) ||
      !Expect(name, "gamma", gamma, dtype, {width})) {
    return {};
  }
  const ResidualRmsNormResult result = {
      .sum = AddActivation(name, ".sum", dtype, {rows(), width}),
      .y = AddActivation(name, "", dtype, {rows(), width}),
      .rstd = AddActivation(name, ".rstd", DType::kF32, {rows()}),
  };
  Op& op = AddOp(OpKind::kResidualRmsNorm, {residual, delta, gamma});
  op.attributes.epsilon = epsilon;
  op.outputs = {
      {.value = result.sum, .may_overwrite = delta}, {.value = result.y}, {.value = result.rstd}};
  return result;
}

ValueId Builder::Linear(absl::string_view name, ValueId x, ValueId weight, ValueId bias) {
  const DType dtype = options_.compute_dtype;
  const int64_t in = Dimension(name, "x", x, 1);
  const int64_t out = Dimension(name, "weight", weight, 1);
  if (!Expect(name, "x", x, dtype, {rows(), in}) ||
      !Expect(name, "weight", weight, dtype, {in, out}) ||
      !Expect(name, "bias", bias, dtype, {out})) {
    return kNoValue;
  }
  const ValueId y = AddActivation(name, "", dtype, {rows(), out});
  AddOp(OpKind::kLinear, {x, weight, bias}).outputs = {{.value = y}};
  return y;
}

ValueId Builder::LinearRows(absl::string_view name, ValueId x, absl::Span<const ValueId> weights,
                            absl::Span<const ValueId> biases) {
  const DType dtype = options_.compute_dtype;
  const int64_t in = Dimension(name, "x", x, 1);
  if (weights.empty() || (!biases.empty() && biases.size() != weights.size())) {
    Fail(name, absl::StrCat(weights.size(), " weights and ", biases.size(), " biases"));
    return kNoValue;
  }
  if (!Expect(name, "x", x, dtype, {rows(), in})) return kNoValue;
  int64_t width = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int64_t out = Dimension(name, "weight", weights[i], 0);
    if (!Expect(name, "weight", weights[i], dtype, {out, in}) ||
        (!biases.empty() && !Expect(name, "bias", biases[i], dtype, {out}))) {
      return kNoValue;
    }
    width += out;
  }
  const ValueId y = AddActivation(name, "", dtype, {rows(), width});
  Op& op = AddOp(OpKind::kLinear, {x});
  op.inputs.insert(op.inputs.end(), weights.begin(), weights.end());
  op.inputs.insert(op.inputs.end(), biases.begin(), biases.end());
  op.attributes.parts = static_cast<int64_t>(weights.size());
  op.attributes.transposed = true;
  op.outputs = {{.value = y}};
  return y;
}

ValueId Builder::Gelu(absl::string_view name, ValueId x, bool exact) {
  const int64_t width = Dimension(name, "x", x, 1);
  if (!Expect(name, "x", x, options_.compute_dtype, {rows(), width})) return kNoValue;
  const ValueId y = AddActivation(name, "", options_.compute_dtype, {rows(), width});
  Op& op = AddOp(OpKind::kGelu, {x});
  op.attributes.exact = exact;
  op.outputs = {{.value = y, .may_overwrite = x}};
  return y;
}

ValueId Builder::Dropout(absl::string_view name, ValueId x, double dropout) {
  const int64_t width = Dimension(name, "x", x, 1);
  if (!Expect(name, "x", x, options_.compute_dtype, {rows(), width})) return kNoValue;
  const ValueId y = AddActivation(name, "", options_.compute_dtype, {rows(), width});
  Op& op = AddOp(OpKind::kDropout, {x});
  op.attributes.dropout = dropout;
  op.attributes.dropout_tag = NextDropoutTag(dropout);
  op.outputs = {{.value = y, .may_overwrite = x}};
  return y;
}

ValueId Builder::SwiGlu(absl::string_view name, ValueId x) {
  const int64_t width = Dimension(name, "x", x, 1);
  if (!Expect(name, "x", x, options_.compute_dtype, {rows(), width})) return kNoValue;
  if (width % 2 != 0) Fail(name, absl::StrCat("width ", width, " is not two halves"));
  const ValueId y = AddActivation(name, "", options_.compute_dtype, {rows(), width / 2});
  AddOp(OpKind::kSwiGlu, {x}).outputs = {{.value = y}};
  return y;
}

ValueId Builder::RopeTable(absl::string_view name, int64_t head_dim, const RopeAttributes& rope) {
  if (head_dim < 2 || head_dim % 2 != 0) {
    Fail(name, absl::StrCat("heads of width ", head_dim, " have no two halves"));
    return kNoValue;
  }
  const ValueId table = AddActivation(name, "", DType::kF32, {options_.sequence, head_dim});
  Op& op = AddOp(OpKind::kRopeTable, {caches() ? Positions() : kNoValue});
  op.attributes.rope = rope;
  op.outputs = {{.value = table}};
  return table;
}

ValueId Builder::Rope(absl::string_view name, ValueId qkv, ValueId table, int64_t heads,
                      int64_t kv_heads, ValueId positions) {
  const DType dtype = options_.compute_dtype;
  const int64_t head_dim = HeadDim(name, qkv, heads, kv_heads);
  if (head_dim == 0 || !Expect(name, "table", table, DType::kF32, {options_.sequence, head_dim}) ||
      !ExpectRowsOf(name, "positions", positions)) {
    return kNoValue;
  }
  const Shape shape = graph_.values[qkv].shape;
  const ValueId out = AddActivation(name, "", dtype, shape);
  Op& op = AddOp(OpKind::kRope, {qkv, table, positions});
  op.attributes.heads = heads;
  op.attributes.kv_heads = kv_heads;
  op.outputs = {{.value = out, .may_overwrite = qkv}};
  return out;
}

ValueId Builder::QkNorm(absl::string_view name, ValueId qkv, ValueId gamma_q, ValueId gamma_k,
                        int64_t heads, int64_t kv_heads, double epsilon) {
  const DType dtype = options_.compute_dtype;
  const int64_t head_dim = HeadDim(name, qkv, heads, kv_heads);
  if (head_dim == 0 || !Expect(name, "gamma_q", gamma_q, dtype, {head_dim}) ||
      !Expect(name, "gamma_k", gamma_k, dtype, {head_dim})) {
    return kNoValue;
  }
  const Shape shape = graph_.values[qkv].shape;
  const ValueId out = AddActivation(name, "", dtype, shape);
  Op& op = AddOp(OpKind::kQkNorm, {qkv, gamma_q, gamma_k});
  op.attributes.heads = heads;
  op.attributes.kv_heads = kv_heads;
  op.attributes.epsilon = epsilon;
  op.outputs = {{.value = out, .may_overwrite = qkv}};
  return out;
}

int64_t Builder::HeadDim(absl::string_view op, ValueId qkv, int64_t heads, int64_t kv_heads) {
  const int64_t packed = Dimension(op, "qkv", qkv, 1);
  if (!Expect(op, "qkv", qkv, options_.compute_dtype, {rows(), packed})) return 0;
  if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0) {
    Fail(op, absl::StrCat(heads, " heads are no multiple of ", kv_heads, " heads of keys"));
    return 0;
  }
  const int64_t all = heads + 2 * kv_heads;
  if (packed % all == 0) return packed / all;
  Fail(op, absl::StrCat("width ", packed, " of qkv is not a multiple of ", heads,
                        " heads and twice ", kv_heads, " more"));
  return 0;
}

ValueId Builder::CachedAttention(absl::string_view name, ValueId qkv,
                                 const AttentionOptions& options) {
  const DType dtype = options_.compute_dtype;
  const int64_t kv_heads = options.kv_heads == 0 ? options.heads : options.kv_heads;
  const int64_t head_dim = HeadDim(name, qkv, options.heads, kv_heads);
  if (head_dim == 0) return kNoValue;
  if (!options.causal || options.documents != kNoValue) {
    Fail(name, "only causal attention over one document can be continued from a cache");
    return kNoValue;
  }
  const ValueId positions = Positions();
  const ValueId cache =
      AddValue(absl::StrCat(name, ".cache"), dtype,
               {2, kv_heads, options_.cached_positions, head_dim}, ValueKind::kCache);
  const ValueId out = AddActivation(name, "", dtype, {rows(), options.heads * head_dim});
  Op& op = AddOp(OpKind::kCachedAttention, {qkv, positions, cache});
  op.attributes.heads = options.heads;
  op.attributes.kv_heads = kv_heads;
  op.outputs = {{.value = out}, {.value = cache, .mode = WriteMode::kAccumulate}};
  return out;
}

ValueId Builder::Attention(absl::string_view name, ValueId qkv, const AttentionOptions& options) {
  if (caches()) return CachedAttention(name, qkv, options);
  const DType dtype = options_.compute_dtype;
  const int64_t heads = options.heads;
  const int64_t kv_heads = options.kv_heads == 0 ? heads : options.kv_heads;
  const int64_t head_dim = HeadDim(name, qkv, heads, kv_heads);
  if (head_dim == 0 || !ExpectRowsOf(name, "documents", options.documents)) {
    return kNoValue;
  }
  const ValueId out = AddActivation(name, "", dtype, {rows(), heads * head_dim});
  const ValueId lse =
      AddActivation(name, ".lse", DType::kF32, {options_.batch, heads, options_.sequence});
  Op& op = AddOp(OpKind::kAttention, {qkv, options.documents});
  op.attributes.heads = heads;
  op.attributes.kv_heads = kv_heads;
  op.attributes.causal = options.causal;
  op.outputs = {{.value = out}, {.value = lse}};
  return out;
}

ValueId Builder::LmHeadLoss(absl::string_view name, ValueId x, ValueId wte, ValueId targets,
                            int64_t chunk_rows, double weight) {
  return AddLmHeadLoss(name, {x, wte, targets, kNoValue}, chunk_rows, /*gathers=*/false, weight);
}

ValueId Builder::TokenClassifierLoss(absl::string_view name, ValueId x, ValueId weights,
                                     ValueId bias, ValueId targets, int64_t chunk_rows,
                                     double weight) {
  return AddLmHeadLoss(name, {x, weights, targets, bias}, chunk_rows, /*gathers=*/false, weight);
}

ValueId Builder::MaskedLmHeadLoss(absl::string_view name, ValueId x, ValueId wte, ValueId bias,
                                  ValueId targets, int64_t chunk_rows, double weight) {
  return AddLmHeadLoss(name, {x, wte, targets, bias}, chunk_rows, /*gathers=*/true, weight);
}

ValueId Builder::AddLmHeadLoss(absl::string_view name, std::array<ValueId, 4> inputs,
                               int64_t chunk_rows, bool gathers, double weight) {
  const auto [x, wte, targets, bias] = inputs;
  const DType dtype = options_.compute_dtype;
  const int64_t width = Dimension(name, "x", x, 1);
  const int64_t vocabulary = Dimension(name, "wte", wte, 0);
  if (!Expect(name, "x", x, dtype, {rows(), width}) ||
      !Expect(name, "wte", wte, dtype, {vocabulary, width}) ||
      !Expect(name, "targets", targets, DType::kI32, {rows()}) ||
      (bias != kNoValue && !Expect(name, "bias", bias, dtype, {vocabulary}))) {
    return kNoValue;
  }
  if (chunk_rows < 1 || chunk_rows > rows()) {
    Fail(name, absl::StrCat("chunk_rows ", chunk_rows, " is not in [1, ", rows(), "]"));
  }
  Op& op = AddOp(OpKind::kLmHeadLoss, {x, wte, targets, bias});
  op.attributes.chunk_rows = chunk_rows;
  op.attributes.gathers = gathers;
  return AddLoss(name, targets, weight, op);
}

ValueId Builder::AddLoss(absl::string_view name, ValueId targets, double weight, Op& op) {
  if (graph_.losses.size() == kMaxLosses) {
    Fail(name, absl::StrCat("the graph has ", kMaxLosses, " losses already"));
  }
  const ValueId sums =
      AddValue(absl::StrCat(name, ".sums"), DType::kF64, {kLossSums}, ValueKind::kStepAccumulator);
  op.attributes.head = static_cast<int32_t>(graph_.losses.size());
  op.outputs = {{.value = sums, .mode = WriteMode::kAccumulateInStep}};
  graph_.losses.push_back(
      {.name = std::string(name), .sums = sums, .targets = targets, .weight = weight});
  return sums;
}

ValueId Builder::LmHeadLogits(absl::string_view name, ValueId x, ValueId wte, ValueId bias) {
  const DType dtype = options_.compute_dtype;
  const int64_t width = Dimension(name, "x", x, 1);
  const int64_t vocabulary = Dimension(name, "wte", wte, 0);
  if (!Expect(name, "x", x, dtype, {rows(), width}) ||
      !Expect(name, "wte", wte, dtype, {vocabulary, width}) ||
      (bias != kNoValue && !Expect(name, "bias", bias, dtype, {vocabulary}))) {
    return kNoValue;
  }
  if (graph_.logits != kNoValue) Fail(name, "the graph has logits already");
  graph_.logits = AddActivation(name, "", DType::kF32, {options_.batch, vocabulary});
  AddOp(OpKind::kLmHeadLogits, {x, wte, bias}).outputs = {{.value = graph_.logits}};
  return graph_.logits;
}

absl::StatusOr<Graph> Builder::Finish() && {
  if (!status_.ok()) return status_;
  return std::move(graph_);
}

ValueId Builder::AddValue(absl::string_view name, DType dtype, const Shape& shape, ValueKind kind) {
  if (!names_.insert(std::string(name)).second) Fail(name, "two values have this name");
  const bool in_block = kind == ValueKind::kParameter || kind == ValueKind::kActivation;
  graph_.values.push_back(
      {.name = std::string(name),
       .dtype = dtype,
       .shape = shape,
       .kind = kind,
       .block = in_block ? static_cast<int>(graph_.blocks.size()) - 1 : kNoBlock});
  return static_cast<ValueId>(graph_.values.size()) - 1;
}

ValueId Builder::AddActivation(absl::string_view name, absl::string_view suffix, DType dtype,
                               const Shape& shape) {
  return AddValue(absl::StrCat(name, suffix), dtype, shape, ValueKind::kActivation);
}

Op& Builder::AddOp(OpKind kind, std::initializer_list<ValueId> inputs) {
  Op op = {.kind = kind,
           .block = static_cast<int>(graph_.blocks.size()) - 1,
           .inputs = inputs,
           .attributes = {.batch = options_.batch, .sequence = options_.sequence}};
  return graph_.ops.emplace_back(std::move(op));
}

uint32_t Builder::NextDropoutTag(double dropout) {
  if (!(dropout >= 0 && dropout < 1)) Fail("dropout", absl::StrCat(dropout, " is not in [0, 1)"));
  return ++dropout_tags_;
}

bool Builder::ExpectRowsOf(absl::string_view op, absl::string_view operand, ValueId value) {
  return value == kNoValue || Expect(op, operand, value, DType::kI32, {rows()});
}

bool Builder::Expect(absl::string_view op, absl::string_view operand, ValueId value, DType dtype,
                     const Shape& shape) {
  if (value < 0 || value >= static_cast<ValueId>(graph_.values.size())) {
    Fail(op, absl::StrCat(operand, " is no value of this graph"));
    return false;
  }
  const Value& found = graph_.values[value];
  if (found.dtype == dtype && found.shape == shape) return true;
  Fail(op, absl::StrCat(operand, " (", found.name, ") is ", ToString(found.dtype, found.shape),
                        ", expected ", ToString(dtype, shape)));
  return false;
}

int64_t Builder::Dimension(absl::string_view op, absl::string_view operand, ValueId value,
                           int axis) {
  if (value < 0 || value >= static_cast<ValueId>(graph_.values.size())) return 1;
  const Shape& shape = graph_.values[value].shape;
  if (axis < static_cast<int>(shape.size())) return shape[axis];
  Fail(op, absl::StrCat(operand, " (", graph_.values[value].name, ") has ", shape.size(),
                        " dimensions, expected at least ", axis + 1));
  return 1;
}

void Builder::Fail(absl::string_view op, absl::string_view message) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(op, ": ", message));
}

}  // namespace milepost::graph
