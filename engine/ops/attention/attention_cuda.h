// What the library is asked to compute for an attention op.
#ifndef MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_CUDA_H_
#define MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_CUDA_H_

#include "engine/graph/graph.h"
#include "engine/kernels/cuda/libraries/attention_graph.h"
#include "engine/ops/attention/library_attention.h"
#include "engine/plan/step_plan.h"

namespace milepost::ops::gpu {

// Of a kAttention or kAttentionBackward, all of it.
kernels::cuda::AttentionGraph AttentionGraphOf(const graph::Graph& graph, const graph::Op& op);
// What of it is the library's.
ops::LibraryAttention LibraryAttentionOf(const kernels::cuda::AttentionGraph& graph,
                                         const plan::PlanOptions& options);
// What one call of its backward computes.
kernels::cuda::AttentionGraph BackwardCallOf(const kernels::cuda::AttentionGraph& graph,
                                             const ops::LibraryAttention& library, bool exact);

}  // namespace milepost::ops::gpu

#endif  // MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_CUDA_H_
