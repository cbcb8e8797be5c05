#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {

constinit const Rule kCompressGradients = kNotOnValues;
constinit const Rule kReduceLeftFactors = kNotOnValues;
constinit const Rule kProjectGradients = kNotOnValues;
constinit const Rule kReduceRightFactors = kNotOnValues;
constinit const Rule kExpandGradients = kNotOnValues;
constinit const Rule kForgetErrors = kNotOnValues;

}  // namespace milepost::ops::reference
