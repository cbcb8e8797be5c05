#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

void Add(const Run& run) {
  Array y = run.in(0);
  for (size_t i = 0; i < y.size(); ++i) y[i] += run.in(1)[i];
  run.Write(0, y);
}

}  // namespace

constinit const Rule kAdd = Add;

}  // namespace milepost::ops::reference
