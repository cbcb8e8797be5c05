#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {

constinit const Rule kAverageParameters = kNotOnValues;
constinit const Rule kExchangeAverages = kNotOnValues;

}  // namespace milepost::ops::reference
