#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {

constinit const Rule kReduceGradients = kNotOnValues;
constinit const Rule kRoundGradients = kNotOnValues;
constinit const Rule kGradNorm = kNotOnValues;
constinit const Rule kReduceScalars = kNotOnValues;
constinit const Rule kGatherParameters = kNotOnValues;
constinit const Rule kReduceReplicas = kNotOnValues;
constinit const Rule kReduceShared = kNotOnValues;
constinit const Rule kReduceParts = kNotOnValues;

}  // namespace milepost::ops::reference
