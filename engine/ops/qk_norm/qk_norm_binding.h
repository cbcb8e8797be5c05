// What the binders of norms of queries and keys share.
#ifndef MILEPOST_ENGINE_OPS_QK_NORM_QK_NORM_BINDING_H_
#define MILEPOST_ENGINE_OPS_QK_NORM_QK_NORM_BINDING_H_

#include <cstdint>

#include "engine/ops/qk_norm/qk_norm_contract.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::ops {

inline kernels::QkNormShape QkNormShapeOf(const runtime::OpBinding& b) {
  return {.rows = b.InputShape(0)[0],
          .heads = b.attributes().heads,
          .kv_heads = b.attributes().kv_heads,
          .head_dim = b.InputShape(1)[0],
          .epsilon = static_cast<float>(b.attributes().epsilon),
          .gamma_offset = static_cast<float>(b.attributes().gamma_offset)};
}

// The operands of the backward, and how it writes the gradients of the scales.
template <typename T>
struct QkNormBackwardOperands {
  explicit QkNormBackwardOperands(const runtime::OpBinding& b)
      : args{.qkv = b.Input<T>(0),
             .gamma_q = b.Input<T>(1),
             .gamma_k = b.Input<T>(2),
             .dout = b.Input<T>(3),
             .dqkv = b.Output<T>(0),
             .dgamma_q = b.Output<float>(1),
             .dgamma_k = b.Output<float>(2)},
        q(b.OutputAccumulation(1)),
        k(b.OutputAccumulation(2)) {}

  kernels::QkNormBackwardArgs<T> At(const runtime::StepContext& context) const {
    kernels::QkNormBackwardArgs<T> now = args;
    now.accumulate_q = q.At(context);
    now.accumulate_k = k.At(context);
    return now;
  }

  kernels::QkNormBackwardArgs<T> args;
  runtime::OpBinding::Accumulation q, k;
};

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_QK_NORM_QK_NORM_BINDING_H_
