// What an outer step does to an element, on both devices.
#ifndef MILEPOST_ENGINE_OPS_OUTER_STEP_OUTER_STEP_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_OUTER_STEP_OUTER_STEP_CONTRACT_H_

#include "engine/ops/contract/host_device.h"

namespace milepost::kernels {

struct OuterStep {
  float share = 1;  // of an island: 1 / islands
  float lr = 0.7F;
  float momentum = 0.9F;
  bool nesterov = true;
};

struct OuterElement {
  float anchor = 0;
  float momentum = 0;
};

// `sum`: of the islands' masters. The new master is the new anchor.
MP_HOST_DEVICE OuterElement StepOuter(const OuterStep& step, float sum, const OuterElement& old) {
  const float moved = old.anchor - sum * step.share;
  const float momentum = step.momentum * old.momentum + moved;
  const float along = step.nesterov ? moved + step.momentum * momentum : momentum;
  return {old.anchor - step.lr * along, momentum};
}

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_OUTER_STEP_OUTER_STEP_CONTRACT_H_
