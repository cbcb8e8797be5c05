#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {

constinit const Rule kKeepAnchors = kNotOnValues;
constinit const Rule kAverageIslands = kNotOnValues;
constinit const Rule kOuterUpdate = kNotOnValues;

}  // namespace milepost::ops::reference
