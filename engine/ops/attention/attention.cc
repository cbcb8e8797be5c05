#include "engine/ops/attention/attention.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::Builder;
using graph::Elements;
using graph::Graph;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::Shape;
using graph::ValueId;
using graph::ValueKind;
using graph::WriteMode;

absl::Status AttentionGradient(Backward& backward, const Op& op) {
  const ValueId qkv = op.inputs[0];
  const ValueId out = op.outputs[0].value;
  MP_ASSIGN_OR_RETURN(const ValueId dout, backward.RequireGradient(op, out));
  const ValueId dqkv = backward.NewGradient(qkv);
  backward.Emit(op, OpKind::kAttentionBackward, {qkv, out, op.outputs[1].value, dout, op.inputs[1]},
                {{.value = dqkv}});
  return backward.SetGradient(op, qkv, dqkv);
}

// One product of T x T scores per head, or one with them: under the causal mask half of it,
// diagonal included. Where documents end is not known before they are read: counted as if nowhere.
double ScoresProduct(const Graph& graph, const Op& op, ValueId out) {
  const double width = static_cast<double>(graph.values[out].shape[1]);
  const double sequence = static_cast<double>(op.attributes.sequence);
  return static_cast<double>(op.attributes.batch) * sequence *
         (op.attributes.causal ? sequence + 1 : 2 * sequence) * width;
}

// Scores; probabilities times values.
Cost AttentionCost(const Graph& graph, const Op& op) {
  return {.flops = 2 * ScoresProduct(graph, op, op.outputs[0].value),
          .bytes = OperandBytes(graph, op)};
}

// The same, as if the cache were full.
Cost CachedAttentionCost(const Graph& graph, const Op& op) {
  const Shape& cache = graph.values[op.inputs[2]].shape;
  return {.flops = 4 * static_cast<double>(Elements(graph.values[op.outputs[0].value].shape)) *
                   static_cast<double>(cache[2]),
          .bytes = OperandBytes(graph, op)};
}

// Scores again, dP, dV, dQ, dK.
Cost AttentionBackwardCost(const Graph& graph, const Op& op) {
  return {.flops = 5 * ScoresProduct(graph, op, op.inputs[1]), .bytes = OperandBytes(graph, op)};
}

ValueId CachedAttention(Builder& b, absl::string_view name, ValueId qkv,
                        const AttentionOptions& options) {
  const DType dtype = b.compute_dtype();
  const int64_t kv_heads = options.kv_heads == 0 ? options.heads : options.kv_heads;
  const int64_t head_dim = b.HeadDim(name, qkv, options.heads, kv_heads);
  if (head_dim == 0) return kNoValue;
  if (!options.causal || options.documents != kNoValue) {
    b.Fail(name, "only causal attention over one document can be continued from a cache");
    return kNoValue;
  }
  const ValueId positions = b.Positions();
  const ValueId cache =
      b.AddValue(absl::StrCat(name, ".cache"), dtype,
                 {2, kv_heads, b.options().cached_positions, head_dim}, ValueKind::kCache);
  const ValueId out = b.AddActivation(name, "", dtype, {b.rows(), options.heads * head_dim});
  Op& op = b.AddOp(OpKind::kCachedAttention, {qkv, positions, cache});
  op.attributes.heads = options.heads;
  op.attributes.kv_heads = kv_heads;
  op.outputs = {{.value = out}, {.value = cache, .mode = WriteMode::kAccumulate}};
  return out;
}

}  // namespace

constinit const OpDefinition kAttention = {.gradient = AttentionGradient, .cost = AttentionCost};
constinit const OpDefinition kCachedAttention = {.cost = CachedAttentionCost};
constinit const OpDefinition kAttentionBackward = {.cost = AttentionBackwardCost};

ValueId Attention(Builder& b, absl::string_view name, ValueId qkv,
                  const AttentionOptions& options) {
  if (b.caches()) return CachedAttention(b, name, qkv, options);
  const DType dtype = b.compute_dtype();
  const int64_t heads = options.heads;
  const int64_t kv_heads = options.kv_heads == 0 ? heads : options.kv_heads;
  const int64_t head_dim = b.HeadDim(name, qkv, heads, kv_heads);
  if (head_dim == 0 || !b.ExpectRowsOf(name, "documents", options.documents)) {
    return kNoValue;
  }
  const ValueId out = b.AddActivation(name, "", dtype, {b.rows(), heads * head_dim});
  const ValueId lse =
      b.AddActivation(name, ".lse", DType::kF32, {b.options().batch, heads, b.options().sequence});
  Op& op = b.AddOp(OpKind::kAttention, {qkv, options.documents});
  op.attributes.heads = heads;
  op.attributes.kv_heads = kv_heads;
  op.attributes.causal = options.causal;
  op.outputs = {{.value = out}, {.value = lse}};
  return out;
}

}  // namespace milepost::ops
