// What the binders of attention share.
#ifndef MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_BINDING_H_
#define MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_BINDING_H_

#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "engine/ops/attention/attention_contract.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::ops {

// INVALID_ARGUMENT for a shape that the kernels do not take.
inline absl::StatusOr<kernels::AttentionShape> AttentionShapeOf(const runtime::OpBinding& b) {
  const graph::Attributes& a = b.attributes();
  const kernels::AttentionShape shape{
      .batch = a.batch,
      .sequence = a.sequence,
      .heads = a.heads,
      .head_dim = b.InputShape(0).back() / (a.heads + 2 * a.kv_heads),
      .kv_heads = a.kv_heads,
      .causal = a.causal,
      .window = a.window,
      .queries = {a.query_parts, b.rank % b.plan.options.context % a.query_parts}};
  MP_RETURN_IF_ERROR(kernels::CheckAttentionShape(shape));
  return shape;
}

inline absl::StatusOr<kernels::CachedAttentionShape> CachedAttentionShapeOf(
    const runtime::OpBinding& b) {
  const graph::Attributes& a = b.attributes();
  const graph::Shape& cache = b.InputShape(2);
  const kernels::CachedAttentionShape shape{.positions = cache[3],
                                            .heads = a.heads,
                                            .head_dim = cache[4],
                                            .kv_heads = a.kv_heads,
                                            .window = a.window};
  MP_RETURN_IF_ERROR(kernels::CheckAttentionShape({.batch = 1,
                                                   .sequence = shape.positions,
                                                   .heads = shape.heads,
                                                   .head_dim = shape.head_dim,
                                                   .kv_heads = shape.kv_heads,
                                                   .window = shape.window}));
  return shape;
}

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_BINDING_H_
