// What the binders of the head share: the operands of its loss, with or without the backward.
#ifndef MILEPOST_ENGINE_OPS_LM_HEAD_LM_HEAD_BINDING_H_
#define MILEPOST_ENGINE_OPS_LM_HEAD_LM_HEAD_BINDING_H_

#include <algorithm>
#include <cstdint>

#include "engine/ops/lm_head/lm_head_workspace.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::ops {

// What all tensor ranks know of all rows; `each`: rows of the table that each of them has.
inline kernels::GatheredParts GatheredPartsOf(const runtime::OpBinding& b, int input,
                                              int64_t each) {
  const graph::Shape& shape = b.InputShape(input);
  return {b.Input<kernels::LogitsPart>(input), shape[0], shape[1], each};
}

template <typename T>
struct HeadOperands {
  // `b`: of an op with the sizes `sizes`.
  HeadOperands(const HeadSizes& sizes, const runtime::OpBinding& b)
      : x(b.Input<T>(0)),
        wte(b.Input<T>(1)),
        targets(b.Input<int32_t>(2)),
        bias(b.Input<T>(3)),
        dsum(sizes.adds ? b.Input<T>(4) : nullptr),
        log_probs(b.planned.op.kind == graph::OpKind::kLmHeadLogProbs ? b.Output<float>(0)
                                                                      : nullptr),
        gradients(b.planned.op.kind == graph::OpKind::kLmHeadLogProbsBackward ? b.Input<float>(5)
                                                                              : nullptr),
        sums(log_probs == nullptr && !MakesParts(b) ? b.Output<double>(0) : nullptr),
        sums_accumulation(b.OutputAccumulation(0)),
        own_parts(MakesParts(b) ? b.Output<kernels::LogitsPart>(0) : nullptr),
        own_logits(MakesParts(b) ? b.Output<T>(1) : nullptr),
        kept(sizes.kept && sizes.training ? b.Input<T>(HeadSizes::kKeptLogits) : nullptr),
        kept_gradient(kept != nullptr ? b.Output<T>(HeadSizes::kLogitsGradient) : nullptr),
        dx(MakesParts(b) ? nullptr : b.Output<T>(1)),
        dwte(b.Output<float>(2)),
        dbias(b.Output<float>(3)) {
    if (sizes.divided && sizes.training) {
      parts = GatheredPartsOf(b, HeadSizes::kGatheredParts, sizes.vocabulary);
    }
    columns = {.first = b.tensor_rank * sizes.vocabulary, .each = sizes.vocabulary};
    columns.count = std::clamp<int64_t>(b.attributes().vocabulary - columns.first, 0, columns.each);
    if (dwte != nullptr) dwte_accumulation = b.OutputAccumulation(2);
    if (dbias != nullptr) dbias_accumulation = b.OutputAccumulation(3);
  }

  static bool MakesParts(const runtime::OpBinding& b) {
    return b.planned.op.kind == graph::OpKind::kLmHeadParts;
  }

  const T* x;
  const T* wte;
  const int32_t* targets;
  const T* bias;           // or null
  const T* dsum;           // or null; may be dx
  float* log_probs;        // kLmHeadLogProbs alone
  const float* gradients;  // of them; kLmHeadLogProbsBackward alone
  double* sums;            // null in both
  runtime::OpBinding::Accumulation sums_accumulation;
  // Where tensor ranks divide the vocabulary; else null.
  kernels::LogitsPart* own_parts;  // kLmHeadParts alone
  T* own_logits;                   // likewise: of all rows, to be kept; or null
  const T* kept;                   // kLmHeadLossBackward alone: these; or null
  T* kept_gradient;                // with them; may be `kept`
  kernels::GatheredParts parts;    // kLmHeadLossBackward alone
  kernels::LogitsColumns columns;  // without their stride
  T* dx;                           // or null; may be x
  float* dwte;                     // or null
  float* dbias;                    // or null
  runtime::OpBinding::Accumulation dwte_accumulation, dbias_accumulation;
};

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_LM_HEAD_LM_HEAD_BINDING_H_
