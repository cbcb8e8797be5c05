// What the binders of pools share.
#ifndef MILEPOST_ENGINE_OPS_POOLING_POOLING_BINDING_H_
#define MILEPOST_ENGINE_OPS_POOLING_POOLING_BINDING_H_

#include <cstdint>

#include "engine/ops/pooling/pooling_contract.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::ops {

inline kernels::PoolSpec PoolOf(const runtime::OpBinding& b, const graph::Shape& images) {
  const graph::ImageAttributes& a = b.attributes().image;
  return {.batch = images[0],
          .height = images[1],
          .width = images[2],
          .channels = images[3],
          .kernel = a.kernel,
          .stride = a.stride,
          .padding = a.padding};
}

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_POOLING_POOLING_BINDING_H_
