#include "engine/ops/attention/attention.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/round_up.h"
#include "common/status_macros.h"
#include "engine/ops/attention/attention_contract.h"
#include "engine/ops/attention/library_attention.h"
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

// Keys that the queries of a sequence see, all together. Where documents end is not known before
// they are read: counted as if nowhere.
double SeenKeys(const graph::Attributes& a) {
  const double sequence = static_cast<double>(a.sequence);
  if (!a.causal) return sequence * sequence;
  const double all = sequence * (sequence + 1) / 2;
  if (a.window == 0 || a.window >= a.sequence) return all;
  const double before = sequence - static_cast<double>(a.window);  // what they do not see
  return all - before * (before + 1) / 2;
}

// Of the queries that a rank computes: those of the part with the most blocks, for which the others
// wait.
double PartOfQueries(const graph::Attributes& a) {
  if (a.query_parts == 1) return 1;
  const int64_t blocks = CeilDiv(a.sequence, kernels::QueryPart::kBlock);
  return static_cast<double>(CeilDiv(blocks, a.query_parts)) / static_cast<double>(blocks);
}

// One product that makes the scores of each head, or one with them.
double ScoresProduct(const Graph& graph, const Op& op, ValueId out) {
  const double width = static_cast<double>(graph.values[out].shape[1]);
  const double seen = SeenKeys(op.attributes) * PartOfQueries(op.attributes);
  return 2 * static_cast<double>(op.attributes.batch) * seen * width;
}

// Scores; probabilities times values.
Cost AttentionCost(const Graph& graph, const Op& op) {
  return {.flops = 2 * ScoresProduct(graph, op, op.outputs[0].value),
          .bytes = OperandBytes(graph, op)};
}

// The same, as if the cache were full.
Cost CachedAttentionCost(const Graph& graph, const Op& op) {
  const int64_t positions = graph.values[op.inputs[2]].shape[3], window = op.attributes.window;
  const int64_t seen = window == 0 ? positions : std::min(window, positions);
  return {.flops = 4 * static_cast<double>(Elements(graph.values[op.outputs[0].value].shape)) *
                   static_cast<double>(seen),
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
  const ValueId texts = b.Texts();
  const ValueId cache =
      b.AddValue(absl::StrCat(name, ".cache"), dtype,
                 {b.options().cached_texts, 2, kv_heads, b.options().cached_positions, head_dim},
                 ValueKind::kCache);
  const ValueId out = b.AddActivation(name, "", dtype, {b.rows(), options.heads * head_dim});
  Op& op = b.AddOp(OpKind::kCachedAttention, {qkv, positions, cache, texts});
  op.attributes.heads = options.heads;
  op.attributes.kv_heads = kv_heads;
  op.attributes.window = options.window;
  op.outputs = {{.value = out}, {.value = cache, .mode = WriteMode::kAccumulate}};
  return out;
}

int64_t HeadDim(const WorkspaceContext& c) {
  return c.Shape(0)[1] / (c.op.attributes.heads + 2 * c.op.attributes.kv_heads);
}

kernels::AttentionShape ShapeOf(const WorkspaceContext& c) {
  const graph::Attributes& a = c.op.attributes;
  return {.batch = a.batch,
          .sequence = a.sequence,
          .heads = a.heads,
          .head_dim = HeadDim(c),
          .kv_heads = a.kv_heads};
}

int64_t ForwardWorkspace(const WorkspaceContext& c) {
  return kernels::AttentionForwardWorkspaceBytes(ShapeOf(c), c.Input(0).dtype, c.threads);
}
int64_t BackwardWorkspace(const WorkspaceContext& c) {
  return kernels::AttentionBackwardWorkspaceBytes(ShapeOf(c), c.Input(0).dtype, c.threads);
}
int64_t CachedWorkspace(const WorkspaceContext& c) {
  return kernels::CachedAttentionWorkspaceBytes({.heads = c.op.attributes.heads,
                                                 .head_dim = HeadDim(c),
                                                 .kv_heads = c.op.attributes.kv_heads},
                                                c.op.attributes.rows_apart ? 1 : c.Shape(0)[0],
                                                c.Input(0).dtype, c.threads);
}

// What cuDNN is known to keep, where it may be taken. `documents`: the input that says where they
// are.
LibraryAttention LibraryOf(const WorkspaceContext& c, size_t documents) {
  const graph::Attributes& a = c.op.attributes;
  return LibraryAttentionOf(
      {.batch = a.batch,
       .sequence = a.sequence,
       .heads = a.heads,
       .kv_heads = a.kv_heads,
       .head_dim = HeadDim(c),
       .element_bytes = ByteSize(c.Input(0).dtype),
       .documents = documents < c.op.inputs.size() && c.op.inputs[documents] != kNoValue,
       .query_parts = a.query_parts,
       .exact = c.exact},
      c.attention_call_bytes);
}

int64_t GpuForwardWorkspace(const WorkspaceContext& c) {
  const LibraryAttention library = LibraryOf(c, 1);
  return library.taken ? std::max(library.forward_bytes, c.min_attention_bytes) : 0;
}
// That of the own kernels, and the library's: a micro-batch may take either.
int64_t GpuBackwardWorkspace(const WorkspaceContext& c) {
  const int64_t own = kernels::cuda::AttentionWorkspaceBytes(ShapeOf(c));
  const LibraryAttention library = LibraryOf(c, 4);
  return library.taken ? std::max({own, library.backward_bytes, c.min_attention_bytes}) : own;
}

}  // namespace

constinit const OpDefinition kAttention = {.gradient = AttentionGradient,
                                           .cost = AttentionCost,
                                           .cpu_workspace = ForwardWorkspace,
                                           .gpu_workspace = GpuForwardWorkspace};
constinit const OpDefinition kCachedAttention = {.cost = CachedAttentionCost,
                                                 .cpu_workspace = CachedWorkspace};
constinit const OpDefinition kAttentionBackward = {.cost = AttentionBackwardCost,
                                                   .cpu_workspace = BackwardWorkspace,
                                                   .gpu_workspace = GpuBackwardWorkspace};

ValueId Attention(Builder& b, absl::string_view name, ValueId qkv,
                  const AttentionOptions& options) {
  if (options.window < 0 || (options.window > 0 && !options.causal)) {
    b.Fail(name, absl::StrCat("a window of ", options.window, " is no causal one"));
    return kNoValue;
  }
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
  op.attributes.window = options.window;
  op.outputs = {{.value = out}, {.value = lse}};
  return out;
}

}  // namespace milepost::ops
