#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

// Of one rank.
void RowsToExperts(const Run& run) {
  run.Write(0, run.in(0));
  const bool wanted = run.op.outputs.size() == 2;
  if (wanted) run.all_integers[run.op.outputs[1].value] = run.integers(1);
}

void RowsFromExperts(const Run& run) { run.Write(0, run.in(0)); }

}  // namespace

constinit const Rule kRowsToExperts = RowsToExperts;
constinit const Rule kRowsFromExperts = RowsFromExperts;

}  // namespace milepost::ops::reference
