// What the binders of embeddings share.
#ifndef MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_BINDING_H_
#define MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_BINDING_H_

#include <cstdint>

#include "engine/ops/embedding/embedding_contract.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::ops {

inline kernels::EmbeddingRows EmbeddingRowsOf(const runtime::OpBinding& b, int positions,
                                              int segments) {
  return {b.Input<int32_t>(0), b.Input<int32_t>(positions), b.Input<int32_t>(segments),
          b.attributes().batch, b.attributes().sequence};
}

// wte's gradient may already hold the head's, the others have no other writer: each accumulates or
// not for itself.
class TableGradientOf {
 public:
  TableGradientOf(const runtime::OpBinding& b, int output) {
    if (b.OutputId(output) == graph::kNoValue) return;
    gradient_ = {b.Output<float>(output), b.OutputShape(output)[0]};
    accumulation_ = b.OutputAccumulation(output);
  }
  kernels::TableGradient At(const runtime::StepContext& context) const {
    return {gradient_.data, gradient_.rows, accumulation_.At(context)};
  }

 private:
  kernels::TableGradient gradient_;
  runtime::OpBinding::Accumulation accumulation_;
};

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_BINDING_H_
