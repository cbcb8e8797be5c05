// Packed documents, for a library's attention: tables of where each one lies, which the host makes
// of a micro-batch's ids. They travel with the StepControl, of whose memory they are a part.
//
//   const auto packed = PackedDocumentsOf(plan, plan.train);        // once
//   MP_ASSIGN_OR_RETURN(const bool fit, WriteDocumentTables(layout, 0, ids, control));
//   context.many_documents = !fit;                // the own kernels, this time, on every rank
//
// A plan is for so many documents (ops::PlannedDocuments): a library takes each for a sequence of
// the longest's length, so that one for every position would cost much, however few there are.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DOCUMENTS_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DOCUMENTS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kernels/cuda/libraries/attention_graph.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/gpu/backend/step_control.h"

namespace milepost::runtime {

struct PackedDocuments {
  kernels::cuda::AttentionGraph graph;  // of every attention of the program
  // By micro-batch: where they lie in the arena, i32 [batch, sequence].
  std::vector<int64_t> ids;
};
// None where the program has none.
std::optional<PackedDocuments> PackedDocumentsOf(const plan::StepPlan& plan,
                                                 const plan::Program& program);

// Writes a micro-batch's tables into the control memory. False, and nothing is written that may be
// used, where they are more than planned for. INVALID_ARGUMENT for a graph that no library takes.
absl::StatusOr<bool> WriteDocumentTables(const ControlLayout& layout, int64_t micro_batch,
                                         const int32_t* ids, char* memory);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DOCUMENTS_H_
