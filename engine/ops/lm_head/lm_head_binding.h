// What the binders of the head share: the operands of its loss, with or without the backward.
#ifndef MILEPOST_ENGINE_OPS_LM_HEAD_LM_HEAD_BINDING_H_
#define MILEPOST_ENGINE_OPS_LM_HEAD_LM_HEAD_BINDING_H_

#include <cstdint>

#include "engine/ops/lm_head/lm_head_workspace.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::ops {

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
        sums(log_probs == nullptr ? b.Output<double>(0) : nullptr),
        sums_accumulation(b.OutputAccumulation(0)),
        dx(b.Output<T>(1)),
        dwte(b.Output<float>(2)),
        dbias(b.Output<float>(3)) {
    if (dwte != nullptr) dwte_accumulation = b.OutputAccumulation(2);
    if (dbias != nullptr) dbias_accumulation = b.OutputAccumulation(3);
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
  T* dx;         // or null; may be x
  float* dwte;   // or null
  float* dbias;  // or null
  runtime::OpBinding::Accumulation dwte_accumulation, dbias_accumulation;
};

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_LM_HEAD_LM_HEAD_BINDING_H_
