#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

// Of one rank.
void ExpertSegments(const Run& run) { run.all_integers[run.op.outputs[0].value] = run.integers(0); }

void CopyRows(const Run& run) { run.Write(0, run.in(0)); }

}  // namespace

constinit const Rule kExpertSegments = ExpertSegments;
constinit const Rule kRowsToExperts = CopyRows;
constinit const Rule kRowsFromExperts = CopyRows;

}  // namespace milepost::ops::reference
