#include "engine/runtime/cuda_backend/cuda_backend.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/plan/cuda_workspace.h"
#include "engine/runtime/cuda_backend/cuda_ops.h"
#include "engine/runtime/offload.h"
#include "engine/runtime/state_disk.h"

namespace milepost::runtime {

using graph::OpKind;
using kernels::cuda::AttentionGraph;
using kernels::cuda::AttentionPass;
using kernels::cuda::Product;

namespace {

// "linear -> h.3.mlp.up"
std::string NameOf(const plan::Program& program, const graph::Op& op) {
  for (const graph::Output& output : op.outputs) {
    if (output.value == graph::kNoValue) continue;
    return absl::StrCat(graph::Name(op.kind), " -> ", program.graph.values[output.value].name);
  }
  return graph::Name(op.kind);
}

absl::Status Annotate(const plan::Program& program, const graph::Op& op,
                      const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(NameOf(program, op), ": ", status.message()));
}

absl::Status RequireScratch(const plan::PlannedOp& planned, int64_t bytes) {
  if (bytes <= planned.workspace_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the library and the kernels need ", bytes,
                                                   " bytes of workspace, the plan gives it ",
                                                   planned.workspace_bytes));
}

bool IsAttention(OpKind kind) {
  return kind == OpKind::kAttention || kind == OpKind::kAttentionBackward;
}
bool IsConvolution(OpKind kind) {
  return kind == OpKind::kConvolution || kind == OpKind::kConvolutionBackwardData ||
         kind == OpKind::kConvolutionBackwardWeights;
}

}  // namespace

std::vector<Product> ProductsOf(const plan::StepPlan& plan, const plan::Program& program,
                                const graph::Op& op) {
  switch (op.kind) {
    case OpKind::kLinear:
    case OpKind::kLinearBackwardInput:
    case OpKind::kLinearBackwardWeight:
      return LinearProducts(program, op);
    case OpKind::kLmHeadLogits:
    case OpKind::kLmHeadLoss:
    case OpKind::kLmHeadLossBackward:
      return HeadProducts(program.graph, op);
    case OpKind::kOrthogonalize:
      return OrthogonalizeProducts(plan.groups[op.attributes.group]);
    default:
      return {};
  }
}

int64_t BytesBeforeScratch(const plan::StepPlan& plan, const plan::Program& program,
                           const graph::Op& op) {
  switch (op.kind) {
    case OpKind::kLinearBackwardWeight:
      return LinearBytesBeforeScratch(program, op);
    case OpKind::kLmHeadLogits:
    case OpKind::kLmHeadLoss:
    case OpKind::kLmHeadLossBackward:
      return HeadBytesBeforeScratch(program.graph, op);
    case OpKind::kOrthogonalize:
      return OrthogonalizeBytesBeforeScratch(plan.groups[op.attributes.group]);
    default:
      return 0;
  }
}

bool CudaBackend::TakesGraph(const AttentionGraph& graph, const plan::PlanOptions& options) {
  for (const auto& [known, taken] : attentions_) {
    if (known == graph) return taken;
  }
  const plan::LibraryAttention library = LibraryAttentionOf(graph, options);
  // That it has an engine, and that it can be built here.
  const auto has = [&](const AttentionGraph& call, AttentionPass pass) {
    return services_.graphs->Check(call, pass).ok() &&
           services_.graphs->WorkspaceBytes(call, pass).ok();
  };
  const bool taken = services_.graphs != nullptr && library.taken &&
                     has(graph, AttentionPass::kForward) &&
                     has(BackwardCallOf(graph, library, options.exact), AttentionPass::kBackward);
  attentions_.emplace_back(graph, taken);
  return taken;
}

absl::Status CudaBackend::PrepareOp(const plan::StepPlan& plan, const plan::Program& program,
                                    const plan::PlannedOp& planned, CudaScratch* needed) {
  const graph::Op& op = planned.op;
  const std::vector<Product> products = ProductsOf(plan, program, op);
  for (const Product& product : products) {
    MP_RETURN_IF_ERROR(services_.products->Prepare(product));
  }
  if (!products.empty()) {
    const int64_t before = BytesBeforeScratch(plan, program, op);
    return RequireScratch(planned, before + services_.products->WorkspaceBytes());
  }
  if (IsAttention(op.kind)) {
    const AttentionGraph graph = AttentionGraphOf(program.graph, op);
    if (!TakesGraph(graph, plan.options)) return absl::OkStatus();
    const bool forward = op.kind == OpKind::kAttention;
    const AttentionGraph call =
        forward
            ? graph
            : BackwardCallOf(graph, LibraryAttentionOf(graph, plan.options), plan.options.exact);
    MP_ASSIGN_OR_RETURN(const int64_t bytes,
                        services_.graphs->WorkspaceBytes(
                            call, forward ? AttentionPass::kForward : AttentionPass::kBackward));
    needed->attention = std::max(needed->attention, AlignScratch(bytes));
    return RequireScratch(planned, bytes);
  }
  if (IsConvolution(op.kind)) {
    MP_ASSIGN_OR_RETURN(const int64_t bytes,
                        services_.graphs->WorkspaceBytes(ConvolutionSpecOf(program.graph, op),
                                                         ConvolutionPassOf(op.kind)));
    const int64_t all = ConvolutionBytesBeforeScratch(program.graph, op) + bytes;
    needed->convolution = std::max(needed->convolution, AlignScratch(all));
    return RequireScratch(planned, all);
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::Prepare(const plan::StepPlan& plan, CudaScratch* needed) {
  CudaScratch found;
  absl::Status exhausted;  // the first; all ops are asked, so that `needed` is complete
  for (const plan::Program* program : plan.Programs()) {
    for (const plan::PlannedOp& planned : program->ops) {
      const absl::Status status =
          Annotate(*program, planned.op, PrepareOp(plan, *program, planned, &found));
      if (absl::IsResourceExhausted(status)) {
        exhausted.Update(status);
      } else {
        MP_RETURN_IF_ERROR(status);
      }
    }
  }
  if (needed != nullptr) *needed = found;
  return exhausted;
}

namespace {

absl::StatusOr<BoundOp> BindComputeOp(const CudaBinding& b) {
  switch (b.planned.op.kind) {
    case OpKind::kEmbedding:
      return BindEmbedding(b);
    case OpKind::kEmbeddingBackward:
      return BindEmbeddingBackward(b);
    case OpKind::kLayerNorm:
    case OpKind::kResidualLayerNorm:
    case OpKind::kRmsNorm:
    case OpKind::kResidualRmsNorm:
      return BindNorm(b);
    case OpKind::kLayerNormBackward:
    case OpKind::kResidualLayerNormBackward:
    case OpKind::kRmsNormBackward:
      return BindNormBackward(b);
    case OpKind::kLinear:
      return BindLinear(b);
    case OpKind::kLinearBackwardInput:
      return BindLinearBackwardInput(b);
    case OpKind::kLinearBackwardWeight:
      return BindLinearBackwardWeight(b);
    case OpKind::kQuantize:
      return BindQuantize(b);
    case OpKind::kUpdateScalings:
      return BindUpdateScalings(b);
    case OpKind::kGelu:
    case OpKind::kGeluBackward:
      return BindGelu(b);
    case OpKind::kSwiGlu:
    case OpKind::kSwiGluBackward:
      return BindSwiGlu(b);
    case OpKind::kDropout:
      return BindDropout(b);
    case OpKind::kQkNorm:
      return BindQkNorm(b);
    case OpKind::kQkNormBackward:
      return BindQkNormBackward(b);
    case OpKind::kRopeTable:
      return BindRopeTable(b);
    case OpKind::kRope:
    case OpKind::kRopeBackward:
      return BindRope(b);
    case OpKind::kAttention:
      return BindAttention(b);
    case OpKind::kAttentionBackward:
      return BindAttentionBackward(b);
    case OpKind::kCachedAttention:
      return BindCachedAttention(b);
    case OpKind::kLmHeadLoss:
    case OpKind::kLmHeadLossBackward:
      return BindLmHeadLoss(b);
    case OpKind::kLmHeadLogits:
      return BindLmHeadLogits(b);
    default:
      break;
  }
  // A rank by itself has one stream: what reduces statistics is on it too.
  absl::StatusOr<BoundOp> bound = BindImageOp(b);
  for (const auto bind : {&BindUpdateOp, &BindCollective}) {
    if (!absl::IsUnimplemented(bound.status())) return bound;
    absl::StatusOr<BoundOp> other = bind(b);
    if (!absl::IsUnimplemented(other.status())) return other;
  }
  return bound;
}

}  // namespace

absl::StatusOr<BoundOp> CudaBackend::Bind(const plan::StepPlan& plan, const plan::Program& program,
                                          const plan::PlannedOp& planned) {
  MP_CHECK(memory_.arena != nullptr) << "Attach comes first";
  const int rank = services_.communicator == nullptr ? 0 : services_.communicator->rank();
  CudaBinding b{{plan, program, planned, memory_.arena, rank, memory_.host_arena, memory_.disk},
                services_,
                memory_};
  if (IsDiskTransfer(planned.op.kind)) return BindDiskTransfer(b);
  if (planned.stream == plan::Stream::kHost) {
    return AfterItsState(b, BindDecidingHostOptimizer(b, memory_.host_threads));
  }
  if (IsAttention(planned.op.kind)) {
    const AttentionGraph graph = AttentionGraphOf(program.graph, planned.op);
    // The tables are of training's attention.
    const bool has_tables =
        graph.max_documents == 0 || ControlLayoutOf(plan, rank).documents == graph;
    b.graph_attention = has_tables && TakesGraph(graph, plan.options);
    takes_documents_ |= b.graph_attention && graph.max_documents > 0;
  }
  absl::StatusOr<BoundOp> bound =
      planned.stream == plan::Stream::kCommunication ? BindCollective(b) : BindComputeOp(b);
  if (bound.ok()) return bound;
  return Annotate(program, planned.op, bound.status());
}

}  // namespace milepost::runtime
