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

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_BINDING_H_
