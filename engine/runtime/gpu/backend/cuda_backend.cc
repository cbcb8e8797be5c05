#include "engine/runtime/gpu/backend/cuda_backend.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/ops/attention/attention_cuda.h"
#include "engine/ops/convolution/convolution_binding.h"
#include "engine/ops/convolution/convolution_cuda.h"
#include "engine/plan/workspace.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::runtime {

using graph::OpKind;
using kernels::cuda::AttentionGraph;
using kernels::cuda::AttentionPass;
using kernels::cuda::Product;

namespace {

using ops::ConvolutionPassOf;
using ops::ConvolutionSpecOf;
using ops::gpu::AttentionGraphOf;
using ops::gpu::BackwardCallOf;
using ops::gpu::ConvolutionBytesBeforeScratch;
using ops::gpu::LibraryAttentionOf;

const CudaOp& CudaOpOf(OpKind kind) {
  static constexpr const CudaOp* kOps[] = {
#define MP_OP(kind, name) &ops::gpu::k##kind,
#include "engine/graph/op_kinds.inc"
#undef MP_OP
  };
  return *kOps[static_cast<size_t>(kind)];
}

// "linear -> h.3.mlp.up"
std::string NameOf(const plan::Program& program, const graph::Op& op) {
  for (const graph::Output& output : op.outputs) {
    if (output.value == graph::kNoValue) continue;
    return absl::StrCat(graph::Name(op.kind), " -> ", program.graph.values[output.value].name);
  }
  return graph::Name(op.kind);
}

absl::Status AnnotateOp(const plan::Program& program, const graph::Op& op,
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
  const auto products = CudaOpOf(op.kind).products;
  return products == nullptr ? std::vector<Product>() : products(plan, program, op);
}

bool CudaBackend::TakesGraph(const AttentionGraph& graph, const plan::PlanOptions& options) {
  for (const auto& [known, taken] : attentions_) {
    if (known == graph) return taken;
  }
  const ops::LibraryAttention library = LibraryAttentionOf(graph, options);
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
    const int64_t before = plan::BytesBeforeScratch(program.graph, plan.groups, op, plan.options);
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
    needed->attention = std::max(needed->attention, DeviceAligned(bytes));
    return RequireScratch(planned, bytes);
  }
  if (IsConvolution(op.kind)) {
    MP_ASSIGN_OR_RETURN(const int64_t bytes,
                        services_.graphs->WorkspaceBytes(ConvolutionSpecOf(program.graph, op),
                                                         ConvolutionPassOf(op.kind)));
    const int64_t all = ConvolutionBytesBeforeScratch(program.graph, op) + bytes;
    needed->convolution = std::max(needed->convolution, DeviceAligned(all));
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
          AnnotateOp(*program, planned.op, PrepareOp(plan, *program, planned, &found));
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

absl::StatusOr<BoundOp> CudaBackend::Bind(const plan::StepPlan& plan, const plan::Program& program,
                                          const plan::PlannedOp& planned) {
  MP_CHECK(memory_.arena != nullptr) << "Attach comes first";
  const int rank_of_job = services_.communicator == nullptr ? 0 : services_.communicator->rank();
  const int rank = plan.options.DataRank(rank_of_job);
  CudaBinding b{{plan, program, planned, memory_.arena, rank, memory_.host_arena, memory_.disk,
                 plan.options.TensorRank(rank_of_job), plan.options.IslandOf(rank_of_job)},
                services_,
                memory_};
  if (IsAttention(planned.op.kind)) {
    const AttentionGraph graph = AttentionGraphOf(program.graph, planned.op);
    // The tables are of training's attention.
    const bool has_tables =
        graph.max_documents == 0 || ControlLayoutOf(plan, rank).documents == graph;
    b.graph_attention = has_tables && TakesGraph(graph, plan.options);
    takes_documents_ |= b.graph_attention && graph.max_documents > 0;
  }
  const auto bind = CudaOpOf(planned.op.kind).bind;
  if (bind == nullptr) {
    return absl::InternalError(
        absl::StrCat(graph::Name(planned.op.kind), " is copied by the device's executor"));
  }
  absl::StatusOr<BoundOp> bound = bind(b);
  if (bound.ok()) return bound;
  return AnnotateOp(program, planned.op, bound.status());
}

}  // namespace milepost::runtime
