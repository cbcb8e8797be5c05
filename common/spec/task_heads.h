// Checks of a job's further heads (model.heads) and of the labels that they learn (data.labels).
#ifndef MILEPOST_COMMON_SPEC_TASK_HEADS_H_
#define MILEPOST_COMMON_SPEC_TASK_HEADS_H_

#include <vector>

#include "common/spec/validate.h"

namespace milepost {

// `normalized` otherwise as CheckJobSpec takes it. Whether the label files fit the data is found
// where they are opened.
std::vector<FieldViolation> CheckTaskHeads(const v1::JobSpec& normalized);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_TASK_HEADS_H_
