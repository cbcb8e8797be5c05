#include "engine/runtime/gpu/backend/documents.h"

#include "absl/types/span.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/ops/attention/attention_cuda.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::runtime {

std::optional<PackedDocuments> PackedDocumentsOf(const plan::StepPlan& plan,
                                                 const plan::Program& program) {
  for (const plan::PlannedOp& planned : program.ops) {
    if (planned.op.kind != graph::OpKind::kAttention) continue;
    const graph::ValueId ids = planned.op.inputs[1];
    if (ids == graph::kNoValue) return std::nullopt;
    const plan::Place& place = program.places[ids];
    return PackedDocuments{.graph = ops::gpu::AttentionGraphOf(program.graph, planned.op),
                           .ids = plan.buffers[place.buffer].offset + place.offset};
  }
  return std::nullopt;
}

absl::StatusOr<bool> WriteDocumentTables(const ControlLayout& layout, const int32_t* ids,
                                         char* memory) {
  MP_CHECK(layout.documents.has_value());
  const kernels::cuda::AttentionGraph& graph = *layout.documents;
  const int64_t entries = kernels::cuda::DocumentTablesOf(graph).entries;
  const absl::Status made = kernels::cuda::MakeDocumentTables(
      graph, absl::MakeConstSpan(ids, static_cast<size_t>(graph.Rows())),
      absl::MakeSpan(reinterpret_cast<int32_t*>(memory + layout.tables),
                     static_cast<size_t>(entries)));
  if (absl::IsResourceExhausted(made)) return false;
  MP_RETURN_IF_ERROR(made);
  return true;
}

}  // namespace milepost::runtime
