// What the binders of embeddings share.
#ifndef MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_BINDING_H_
#define MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_BINDING_H_

#include <algorithm>
#include <cstdint>

#include "engine/ops/embedding/embedding_contract.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::ops {

inline kernels::EmbeddingRows EmbeddingRowsOf(const runtime::OpBinding& b, int positions,
                                              int segments) {
  return {.tokens = b.Input<int32_t>(0),
          .positions = b.Input<int32_t>(positions),
          .segments = b.Input<int32_t>(segments),
          .batch = b.attributes().batch,
          .sequence = b.attributes().sequence,
          .first_position = b.TokensBefore()};
}

// The tokens whose rows of the table this rank has: [first, first + count).
struct OwnTokens {
  // `each`: rows that every tensor rank has.
  OwnTokens(const runtime::OpBinding& b, int64_t each)
      : first(b.tensor_rank * each),
        count(std::clamp<int64_t>(b.attributes().vocabulary - first, 0, each)) {}
  int64_t first, count;
};

// kEmbedding: where tensor ranks divide wte, its rows have been read.
inline constexpr int kReadRows = 6;
template <typename T>
kernels::EmbeddingTables<T> EmbeddingTablesOf(const runtime::OpBinding& b) {
  const T* rows = b.Input<T>(kReadRows);
  return {rows != nullptr ? rows : b.Input<T>(1), b.Input<T>(2), b.Input<T>(4)};
}
// The rows lie where the output does, and nothing is added to them.
inline bool ReadRowsAreAll(const runtime::OpBinding& b) {
  const char* rows = b.Input<char>(kReadRows);
  return rows != nullptr && rows == b.Output<char>(0) && b.Input<char>(2) == nullptr &&
         b.Input<char>(4) == nullptr && b.attributes().dropout == 0;
}
inline kernels::EmbeddingRows ForwardRowsOf(const runtime::OpBinding& b) {
  kernels::EmbeddingRows rows = EmbeddingRowsOf(b, 3, 5);
  if (b.Input<char>(kReadRows) != nullptr) rows.tokens = nullptr;
  return rows;
}

// kEmbeddingBackward.
inline kernels::EmbeddingRows BackwardRowsOf(const runtime::OpBinding& b) {
  kernels::EmbeddingRows rows = EmbeddingRowsOf(b, 2, 3);
  if (b.attributes().vocabulary == 0 || b.OutputId(0) == graph::kNoValue) return rows;
  const OwnTokens own(b, b.OutputShape(0)[0]);
  rows.first_token = static_cast<int32_t>(own.first);
  rows.end_token = static_cast<int32_t>(own.first + own.count);
  return rows;
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
