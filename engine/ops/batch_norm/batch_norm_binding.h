// What the binders of batch norms share.
#ifndef MILEPOST_ENGINE_OPS_BATCH_NORM_BATCH_NORM_BINDING_H_
#define MILEPOST_ENGINE_OPS_BATCH_NORM_BATCH_NORM_BINDING_H_

#include <cstdint>

#include "engine/ops/batch_norm/batch_norm_contract.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::ops {

template <typename T>
kernels::BatchNormForwardArgs<T> BatchNormForwardArgsOf(const runtime::OpBinding& b) {
  return {.x = b.Input<T>(0),
          .mean = b.Input<float>(1),
          .rstd = b.Input<float>(2),
          .gamma = b.Input<T>(3),
          .beta = b.Input<T>(4),
          .residual = b.Input<T>(5),
          .relu = b.attributes().image.relu,
          .y = b.Output<T>(0)};
}

template <typename T>
kernels::BatchNormBackwardArgs<T> BatchNormBackwardArgsOf(const runtime::OpBinding& b) {
  return {.x = b.Input<T>(0),
          .mean = b.Input<float>(1),
          .rstd = b.Input<float>(2),
          .gamma = b.Input<T>(3),
          .beta = b.Input<T>(4),
          .dy = b.Input<T>(5),
          .relu = b.attributes().image.relu};
}

// Over how many ranks' rows statistics go.
inline int64_t StatisticsRanks(const runtime::OpBinding& b) {
  return b.attributes().image.synchronised ? b.plan.options.world : 1;
}

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_BATCH_NORM_BATCH_NORM_BINDING_H_
