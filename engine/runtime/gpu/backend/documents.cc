#include "engine/runtime/gpu/backend/documents.h"

#include "absl/types/span.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/ops/attention/attention_cuda.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::runtime {

std::optional<PackedDocuments> PackedDocumentsOf(const plan::StepPlan& plan,
                                                 const plan::Program& program) {
  std::optional<PackedDocuments> packed;
  for (const plan::PlannedOp& planned : program.ops) {
    if (planned.op.kind != graph::OpKind::kAttention) continue;
    const graph::ValueId ids = planned.op.inputs[1];
    if (ids == graph::kNoValue) return std::nullopt;
    if (!packed.has_value()) {
      packed = {.graph = ops::gpu::AttentionGraphOf(program.graph, planned.op), .ids = {}};
    }
    const auto micro_batch = static_cast<size_t>(planned.op.attributes.micro_batch);
    if (packed->ids.size() <= micro_batch) packed->ids.resize(micro_batch + 1);
    const plan::Place& place = program.places[ids];
    packed->ids[micro_batch] = plan.buffers[place.buffer].offset + place.offset;
  }
  return packed;
}

absl::StatusOr<bool> WriteDocumentTables(const ControlLayout& layout, int64_t micro_batch,
                                         const int32_t* ids, char* memory) {
  MP_CHECK(layout.documents.has_value());
  const kernels::cuda::AttentionGraph& graph = *layout.documents;
  const int64_t entries = kernels::cuda::DocumentTablesOf(graph).entries;
  const absl::Status made = kernels::cuda::MakeDocumentTables(
      graph, absl::MakeConstSpan(ids, static_cast<size_t>(graph.Rows())),
      absl::MakeSpan(reinterpret_cast<int32_t*>(memory + layout.TablesOf(micro_batch)),
                     static_cast<size_t>(entries)));
  if (absl::IsResourceExhausted(made)) return false;
  MP_RETURN_IF_ERROR(made);
  return true;
}

}  // namespace milepost::runtime
