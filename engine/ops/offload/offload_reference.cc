#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {

constinit const Rule kGradientsToHost = kNotOnValues;
constinit const Rule kScalarsToHost = kNotOnValues;
constinit const Rule kParametersToDevice = kNotOnValues;
constinit const Rule kReadState = kNotOnValues;
constinit const Rule kWriteState = kNotOnValues;
constinit const Rule kCopyToHost = kNotOnValues;
constinit const Rule kCopyToDevice = kNotOnValues;

}  // namespace milepost::ops::reference
