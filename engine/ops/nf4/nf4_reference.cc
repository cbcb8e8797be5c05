#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {

// It reads bytes, and only plans have it.
constinit const Rule kUnpackNf4 = kNotOnValues;

}  // namespace milepost::ops::reference
