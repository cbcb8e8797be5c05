#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

// Of one rank.
void CopyOfOneRank(const Run& run) { run.Write(0, run.in(0)); }

}  // namespace

constinit const Rule kTokensToHeads = CopyOfOneRank;
constinit const Rule kHeadsToTokens = CopyOfOneRank;

}  // namespace milepost::ops::reference
