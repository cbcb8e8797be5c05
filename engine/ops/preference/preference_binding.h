// What the binders of both devices share.
#ifndef MILEPOST_ENGINE_OPS_PREFERENCE_PREFERENCE_BINDING_H_
#define MILEPOST_ENGINE_OPS_PREFERENCE_PREFERENCE_BINDING_H_

#include "engine/ops/preference/preference_contract.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::ops {

inline kernels::PreferenceArgs PreferenceArgsOf(const runtime::OpBinding& b) {
  const graph::Attributes& a = b.attributes();
  return {.log_probs = b.Input<float>(0),
          .reference = b.Input<float>(1),
          .documents = b.Input<int32_t>(2),
          .pairs = b.Input<int32_t>(3),
          .batch = a.batch,
          .sequence = a.sequence,
          .beta = a.scale,
          .label_smoothing = a.label_smoothing};
}

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_PREFERENCE_PREFERENCE_BINDING_H_
