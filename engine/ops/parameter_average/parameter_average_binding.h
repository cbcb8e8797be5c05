// What the binders of parameter averages share.
#ifndef MILEPOST_ENGINE_OPS_PARAMETER_AVERAGE_PARAMETER_AVERAGE_BINDING_H_
#define MILEPOST_ENGINE_OPS_PARAMETER_AVERAGE_PARAMETER_AVERAGE_BINDING_H_

#include "engine/runtime/executor/backend.h"
#include "engine/runtime/executor/group_ops.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::ops {

// A device's binders, by how a group keeps its parameters.
template <typename Binding>
struct ExchangeBinders {
  using Bind = runtime::BoundOp (*)(const Binding&);
  Bind bf16_masters, f32_masters;  // the parameters are their own masters
  Bind bf16_rounded, f16_rounded;  // the parameters are made of fp32 masters
};

template <typename Binding>
runtime::BoundOp ExchangeOf(const Binding& b, const ExchangeBinders<Binding>& of) {
  const plan::FlatGroup& group = runtime::GroupOf(b);
  if (group.master_dtype == DType::kBf16) return of.bf16_masters(b);
  if (group.master_buffer == plan::kNoBuffer) return of.f32_masters(b);
  const bool bf16_parameters = b.plan.options.compute_dtype == DType::kBf16;
  return bf16_parameters ? of.bf16_rounded(b) : of.f16_rounded(b);
}

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_PARAMETER_AVERAGE_PARAMETER_AVERAGE_BINDING_H_
