// Internal to the room: what binders of both devices make of the ops.
#ifndef MILEPOST_ENGINE_OPS_EXPERTS_EXPERTS_BINDING_H_
#define MILEPOST_ENGINE_OPS_EXPERTS_EXPERTS_BINDING_H_

#include <cstdint>

#include "engine/graph/graph.h"
#include "engine/ops/experts/experts_contract.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::ops {

inline kernels::ExpertRouting RoutingOf(const runtime::OpBinding& b) {
  return {.rows = b.InputShape(0)[0],
          .experts = b.attributes().experts.count,
          .per_token = b.attributes().experts.per_token,
          .normalize = b.attributes().experts.normalize};
}

// `narrow`: a value of one row for each that is routed.
inline kernels::RoutedRows RoutedRowsOf(const runtime::OpBinding& b, const graph::Shape& narrow) {
  return {.rows = narrow[0], .per_token = b.attributes().experts.per_token, .width = narrow[1]};
}

// Of kRouteExpertsBackward; null where another tensor rank adds them: a sum of the ranks' follows.
inline const float* SlopesOf(const runtime::OpBinding& b) {
  return b.attributes().divides_columns && b.tensor_rank > 0 ? nullptr : b.Input<float>(4);
}

// Of kExpertLinear and its backwards: an expert's own layer, as if all rows were its.
inline graph::Op OfExpert(const graph::Op& op, int64_t expert) {
  using graph::OpKind;
  const int64_t parts = op.attributes.parts;
  graph::Op own{.kind = OpKind::kLinear, .attributes = op.attributes};
  if (op.kind == OpKind::kExpertLinearBackwardWeight) {
    own.kind = OpKind::kLinearBackwardWeight;
    own.inputs = {op.inputs[0], op.inputs[1]};
    own.outputs.assign(op.outputs.begin() + expert * parts,
                       op.outputs.begin() + (expert + 1) * parts);
    return own;
  }
  if (op.kind == OpKind::kExpertLinearBackwardInput) own.kind = OpKind::kLinearBackwardInput;
  const auto weights = op.inputs.begin() + 2 + expert * parts;
  own.inputs = {op.inputs[0]};
  own.inputs.insert(own.inputs.end(), weights, weights + parts);
  own.outputs = op.outputs;
  return own;
}

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_EXPERTS_EXPERTS_BINDING_H_
