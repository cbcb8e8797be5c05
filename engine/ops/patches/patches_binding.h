// What the binders of patches share.
#ifndef MILEPOST_ENGINE_OPS_PATCHES_PATCHES_BINDING_H_
#define MILEPOST_ENGINE_OPS_PATCHES_PATCHES_BINDING_H_

#include "engine/ops/patches/patches_contract.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::ops {

inline kernels::PatchGrid PatchGridOf(const runtime::OpBinding& b) {
  const graph::Shape& images = b.InputShape(0);
  return {.batch = images[0],
          .height = images[1],
          .width = images[2],
          .channels = images[3],
          .side = b.attributes().image.kernel};
}

// `all`: of all rows [B(P+1),C].
inline kernels::TokenRows TokenRowsOf(const graph::Shape& all, int64_t batch) {
  return {.batch = batch, .patches = all[0] / batch - 1, .width = all[1]};
}

// A gradient that the op may be without.
struct TokenSumBinding {
  kernels::TokenSum At(const runtime::StepContext& context) const {
    return {to, accumulation.At(context)};
  }
  float* to;
  runtime::OpBinding::Accumulation accumulation;
};

inline TokenSumBinding TokenSumOf(const runtime::OpBinding& b, int output) {
  return {b.Output<float>(output), b.OutputAccumulation(output)};
}

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_PATCHES_PATCHES_BINDING_H_
