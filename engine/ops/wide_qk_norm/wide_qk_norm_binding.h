// What the binders of norms of all heads of queries and of keys share.
#ifndef MILEPOST_ENGINE_OPS_WIDE_QK_NORM_WIDE_QK_NORM_BINDING_H_
#define MILEPOST_ENGINE_OPS_WIDE_QK_NORM_WIDE_QK_NORM_BINDING_H_

#include <cstdint>

#include "engine/ops/norm/norm_contract.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::ops {

// The columns of qkv.
struct WideQkNormColumns {
  explicit WideQkNormColumns(const runtime::OpBinding& b)
      : q(ShapeOf(b, 1)), k(ShapeOf(b, 2)), values(q.width + k.width), value_width(k.width) {}

  kernels::RmsNormShape q, k;  // k begins where q ends
  int64_t values;              // the first of the values'
  int64_t value_width;

 private:
  static kernels::RmsNormShape ShapeOf(const runtime::OpBinding& b, int gamma) {
    return {.rows = b.InputShape(0)[0],
            .width = b.InputShape(gamma)[0],
            .epsilon = static_cast<float>(b.attributes().epsilon),
            .gamma_offset = static_cast<float>(b.attributes().gamma_offset),
            .stride = b.InputShape(0)[1]};
  }
};

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_WIDE_QK_NORM_WIDE_QK_NORM_BINDING_H_
