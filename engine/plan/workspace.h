// How much scratch each op needs: its room's formula (engine/ops/workspace.h), as the plan sets it
// aside.
#ifndef MILEPOST_ENGINE_PLAN_WORKSPACE_H_
#define MILEPOST_ENGINE_PLAN_WORKSPACE_H_

#include <cstdint>
#include <vector>

#include "engine/plan/step_plan.h"

namespace milepost::plan {

// Bytes of `op`'s workspace, a multiple of 64 (on a GPU of 256); 0: none. What the op's own kernels
// need lies first; then, where it multiplies matrices, the products' scratch: on a CPU
// options.min_matmul_workspace_bytes (MatmulWorkspaceReserve), on a GPU kProductScratchBytes.
int64_t WorkspaceBytes(const graph::Graph& graph, const std::vector<FlatGroup>& groups,
                       const graph::Op& op, const PlanOptions& options);
// Of these, what lies in front of the products' scratch.
int64_t BytesBeforeScratch(const graph::Graph& graph, const std::vector<FlatGroup>& groups,
                           const graph::Op& op, const PlanOptions& options);

// Scratch to reserve for matrix products: at least what oneDNN 2.6 asked for at every GPT-2 size
// tried (at most 1.64 MiB a thread), fp32 partial sums of a large bf16 vocabulary, and what a
// product of widened factors takes. A backend that needs more plans once again with what it found,
// so a plan made without one may fall short, by a scratch, only there.
int64_t MatmulWorkspaceReserve(int threads, DType dtype, int64_t chunk_rows, int64_t width,
                               int64_t vocabulary);

// Rows of logits that exist at once: as few chunks as fit `chunk_bytes` allow, of even size (a
// short last one would waste products), a multiple of 16, at least 16 and at most `rows`.
int64_t LmHeadChunkRows(int64_t rows, int64_t vocabulary, DType dtype, int64_t chunk_bytes);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_WORKSPACE_H_
