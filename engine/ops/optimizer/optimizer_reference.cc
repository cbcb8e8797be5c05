#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {

constinit const Rule kOptimizer = kNotOnValues;
constinit const Rule kUpdateNorms = kNotOnValues;
constinit const Rule kReduceUpdateNorms = kNotOnValues;
constinit const Rule kMuonMomentum = kNotOnValues;
constinit const Rule kGatherUpdates = kNotOnValues;
constinit const Rule kOrthogonalize = kNotOnValues;
constinit const Rule kScatterUpdates = kNotOnValues;

}  // namespace milepost::ops::reference
