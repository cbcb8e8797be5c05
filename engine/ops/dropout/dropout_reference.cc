#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

void Dropout(const Run& run) {
  Array y = run.in(0);
  for (size_t i = 0; i < y.size(); ++i) y[i] *= run.Dropout(static_cast<int64_t>(i));
  for (size_t i = 0; run.op.inputs.size() > 1 && i < y.size(); ++i) y[i] += run.in(1)[i];
  run.Write(0, y);
}

}  // namespace

constinit const Rule kDropout = Dropout;

}  // namespace milepost::ops::reference
