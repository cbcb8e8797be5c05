#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

void Scale(const Run& run) {
  Array y = run.in(0);
  for (double& v : y) v *= run.op.attributes.scale;
  run.Write(0, y);
}

}  // namespace

constinit const Rule kScale = Scale;

}  // namespace milepost::ops::reference
