// How much scratch each op needs: a pure model of the kernels' ...WorkspaceBytes functions
// (engine/kernels), which the planner may not link. engine/runtime tests that the two agree. The
// CPU's is here; a GPU's in cuda_workspace.h.
#ifndef MILEPOST_ENGINE_PLAN_WORKSPACE_H_
#define MILEPOST_ENGINE_PLAN_WORKSPACE_H_

#include <cstdint>
#include <vector>

#include "engine/plan/step_plan.h"

namespace milepost::plan {

// Bytes of `op`'s workspace, a multiple of 64; 0: none. The parts lie in this order, each rounded
// up to 64:
//   kLinear:                              several biases, gathered | the product's scratch
//   kLinear* with fp8:                    both operands in bf16 | sums of bias gradients | several
//                                         of them, gathered | the product's scratch
//   kLinearBackwardInput, kLmHeadLogits:  the product's scratch
//   kLinearBackwardWeight:                sums of bias gradients | several of them, gathered |
//                                         the product's scratch
//   kOrthogonalize:                       squares and a copy of the largest matrix | the product's
//                                         scratch
//   kLmHeadLoss, kLmHeadLossBackward:     chunk of logits (compute dtype) | classifier | scratch
//   kConvolution*:                        weights in oneDNN's layout | its scratch
// The scratch of products is options.min_matmul_workspace_bytes (MatmulWorkspaceReserve).
int64_t WorkspaceBytes(const graph::Graph& graph, const std::vector<FlatGroup>& groups,
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
