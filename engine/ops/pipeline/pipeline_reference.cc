#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {

constinit const Rule kStageReceive = kNotOnValues;
constinit const Rule kStageSend = kNotOnValues;

}  // namespace milepost::ops::reference
