// What the binders of rotary positions share.
#ifndef MILEPOST_ENGINE_OPS_ROPE_ROPE_BINDING_H_
#define MILEPOST_ENGINE_OPS_ROPE_ROPE_BINDING_H_

#include <cstdint>

#include "engine/ops/rope/rope_contract.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::ops {

inline kernels::RopeShape RopeShapeOf(const runtime::OpBinding& b) {
  const graph::Attributes& a = b.attributes();
  return {.batch = a.batch,
          .sequence = a.sequence,
          .width = b.InputShape(0)[1],
          .heads = a.heads + a.kv_heads,
          .head_dim = b.InputShape(1)[1],
          .positions = b.Input<int32_t>(2)};
}

inline kernels::RopeParams RopeParamsOf(const runtime::OpBinding& b) {
  const graph::RopeAttributes& rope = b.attributes().rope;
  return {.theta = rope.theta,
          .factor = rope.factor,
          .low_frequency = rope.low_frequency,
          .high_frequency = rope.high_frequency,
          .original_context = rope.original_context};
}

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_ROPE_ROPE_BINDING_H_
