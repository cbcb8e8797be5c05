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
          .epsilon = static_cast<float>(b.attributes().epsilon)};
}

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_QK_NORM_QK_NORM_BINDING_H_
