// By the library where it has both passes (CudaBinding::graph_attention), its backward in the calls
// that ops/attention/library_attention.h says; else by the own kernels, which also take
// micro-batches with more documents than were planned for, and parts of queries.
#include "engine/ops/attention/attention_cuda.h"
#include "engine/ops/attention/attention_binding.h"

#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/ops/attention/attention_contract.h"
#include "engine/ops/attention/attention_cuda_kernel.h"
#include "engine/ops/attention/cached_attention_cuda_kernel.h"
#include "engine/ops/attention/library_attention.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using graph::OpKind;
using runtime::BoundOp;
using runtime::ControlLayoutOf;
using runtime::CudaBinding;
using runtime::StepContext;

// Null without documents.
const int32_t* TablesOf(const CudaBinding& b, const cuda::AttentionGraph& graph) {
  if (graph.max_documents == 0) return nullptr;
  const int64_t at = ControlLayoutOf(b.plan, b.rank).TablesOf(b.attributes().micro_batch);
  return reinterpret_cast<const int32_t*>(b.memory.control + at);
}

template <typename T>
absl::StatusOr<BoundOp> AttentionOf(const CudaBinding& b) {
  const cuda::AttentionGraph graph = AttentionGraphOf(b.program.graph, b.planned.op);
  MP_ASSIGN_OR_RETURN(const kernels::AttentionShape shape, AttentionShapeOf(b));
  const T* qkv = b.Input<T>(0);
  T* out = b.Output<T>(0);
  float* lse = b.Output<float>(1);
  BoundOp own = [shape, qkv, documents = b.Input<int32_t>(1), out, lse,
                 stream = b.stream()](const StepContext&) {
    return cuda::AttentionForward<T>(shape, qkv, documents, out, lse, stream);
  };
  if (b.graph_attention) {
    MP_ASSIGN_OR_RETURN(const int64_t bytes,
                        b.services.graphs->WorkspaceBytes(graph, cuda::AttentionPass::kForward));
    MP_RETURN_IF_ERROR(b.RequireWorkspace(bytes));
    return BoundOp([graphs = b.services.graphs, graph, own = std::move(own),
                    arguments =
                        cuda::AttentionArguments{
                            .qkv = qkv, .tables = TablesOf(b, graph), .out = out, .lse = lse},
                    workspace = b.Workspace(), stream = b.stream()](const StepContext& context) {
      if (context.many_documents) return own(context);
      return graphs->Attention(graph, arguments, workspace, stream);
    });
  }
  return own;
}

// One for each call, which computes sequences of its own or heads of its own. They take turns on a
// stream, and so share the scratch.
std::vector<cuda::AttentionBackwardArguments> PartsOf(
    const cuda::AttentionGraph& graph, const cuda::AttentionGraph& call,
    const cuda::AttentionBackwardArguments& whole) {
  const auto element = ByteSize(graph.type);
  const auto at = [element](const void* data, int64_t elements) {
    return static_cast<char*>(const_cast<void*>(data)) + elements * element;
  };
  std::vector<cuda::AttentionBackwardArguments> parts;
  for (int64_t row = 0; row < graph.Rows(); row += call.Rows()) {
    for (int64_t head = 0; head < graph.KvHeads(); head += call.KvHeads()) {
      cuda::AttentionBackwardArguments part = whole;
      part.qkv = at(whole.qkv, row * graph.QkvWidth());
      part.out = at(whole.out, row * graph.OutWidth());
      part.lse = whole.lse + row * graph.shape.heads;
      part.dout = at(whole.dout, row * graph.OutWidth());
      part.dqkv = at(whole.dqkv, row * graph.QkvWidth());
      part.first_kv_head = head;
      parts.push_back(part);
    }
  }
  return parts;
}

template <typename T>
absl::StatusOr<BoundOp> AttentionBackwardOf(const CudaBinding& b) {
  const cuda::AttentionGraph graph = AttentionGraphOf(b.program.graph, b.planned.op);
  MP_ASSIGN_OR_RETURN(const kernels::AttentionShape shape, AttentionShapeOf(b));
  const T* qkv = b.Input<T>(0);
  const T* out = b.Input<T>(1);
  const float* lse = b.Input<float>(2);
  const T* dout = b.Input<T>(3);
  T* dqkv = b.Output<T>(0);
  MP_RETURN_IF_ERROR(b.RequireWorkspace(cuda::AttentionWorkspaceBytes(graph.shape)));
  BoundOp own = [shape, qkv, documents = b.Input<int32_t>(4), out, lse, dout, dqkv,
                 workspace = b.Workspace(), stream = b.stream()](const StepContext&) {
    return cuda::AttentionBackward<T>(shape, qkv, documents, out, lse, dout, dqkv, workspace,
                                      stream);
  };
  if (!b.graph_attention) return own;
  const cuda::AttentionGraph call =
      BackwardCallOf(graph, LibraryAttentionOf(graph, b.plan.options), b.plan.options.exact);
  MP_ASSIGN_OR_RETURN(const int64_t bytes,
                      b.services.graphs->WorkspaceBytes(call, cuda::AttentionPass::kBackward));
  MP_RETURN_IF_ERROR(b.RequireWorkspace(bytes));
  const std::vector<cuda::AttentionBackwardArguments> parts = PartsOf(graph, call,
                                                                      {.qkv = qkv,
                                                                       .tables = TablesOf(b, graph),
                                                                       .out = out,
                                                                       .lse = lse,
                                                                       .dout = dout,
                                                                       .dqkv = dqkv});
  return BoundOp([graphs = b.services.graphs, call, own = std::move(own), parts,
                  workspace = b.Workspace(), stream = b.stream()](const StepContext& context) {
    if (context.many_documents) return own(context);
    for (const cuda::AttentionBackwardArguments& part : parts) {
      MP_RETURN_IF_ERROR(graphs->AttentionBackward(call, part, workspace, stream));
    }
    return absl::OkStatus();
  });
}

template <typename T>
absl::StatusOr<BoundOp> CachedAttentionOf(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const kernels::CachedAttentionShape shape, CachedAttentionShapeOf(b));
  return
      [args = cuda::CachedAttentionArgs<T>{.shape = shape,
                                           .rows = b.OutputShape(0)[0],
                                           .positions = b.Input<int32_t>(1),
                                           .last = &b.control()->row,
                                           .texts = b.Input<int32_t>(3),
                                           .apart = b.attributes().rows_apart,
                                           .qkv = b.Input<T>(0),
                                           .cache = b.Output<T>(1),
                                           .out = b.Output<T>(0)},
       stream = b.stream()](const StepContext&) { return cuda::CachedAttention<T>(args, stream); };
}

}  // namespace

cuda::AttentionGraph AttentionGraphOf(const graph::Graph& graph, const graph::Op& op) {
  const graph::Attributes& a = op.attributes;
  const graph::Value& qkv = graph.values[op.inputs[0]];
  const size_t documents = op.kind == OpKind::kAttention ? 1 : 4;
  const bool packed = documents < op.inputs.size() && op.inputs[documents] != graph::kNoValue;
  return {.shape = {.batch = a.batch,
                    .sequence = a.sequence,
                    .heads = a.heads,
                    .head_dim = qkv.shape.back() / (a.heads + 2 * a.kv_heads),
                    .kv_heads = a.kv_heads,
                    .causal = a.causal,
                    .window = a.window,
                    .queries = {.parts = a.query_parts}},
          .type = qkv.dtype,
          .max_documents = packed ? ops::PlannedDocuments(a.batch, a.sequence) : 0};
}

ops::LibraryAttention LibraryAttentionOf(const cuda::AttentionGraph& graph,
                                         const plan::PlanOptions& options) {
  return ops::LibraryAttentionOf({.batch = graph.shape.batch,
                                  .sequence = graph.shape.sequence,
                                  .heads = graph.shape.heads,
                                  .kv_heads = graph.KvHeads(),
                                  .head_dim = graph.shape.head_dim,
                                  .element_bytes = ByteSize(graph.type),
                                  .documents = graph.max_documents > 0,
                                  .query_parts = graph.shape.queries.parts,
                                  .exact = options.exact},
                                 options.attention_call_bytes);
}

cuda::AttentionGraph BackwardCallOf(const cuda::AttentionGraph& graph,
                                    const ops::LibraryAttention& library, bool exact) {
  cuda::AttentionGraph call = graph;
  call.deterministic = exact;
  call.shape.batch = library.sequences;
  call.shape.kv_heads = library.kv_heads;
  call.shape.heads = library.kv_heads * graph.Group();
  call.row_kv_heads = graph.KvHeads();
  return call;
}

constinit const CudaOp kAttention = {.bind = MP_BY_DTYPE(AttentionOf)};
constinit const CudaOp kAttentionBackward = {.bind = MP_BY_DTYPE(AttentionBackwardOf)};
constinit const CudaOp kCachedAttention = {.bind = MP_BY_DTYPE(CachedAttentionOf)};

}  // namespace milepost::ops::gpu
