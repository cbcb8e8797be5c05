// Checks a job's further heads (model.heads) and the labels that they learn (data.labels). Pure and
// thread-safe.
#ifndef MILEPOST_COMMON_SPEC_TASK_HEADS_H_
#define MILEPOST_COMMON_SPEC_TASK_HEADS_H_

#include <vector>

#include "common/spec/validate.h"

namespace milepost {

// `normalized` is in all other respects what CheckJobSpec takes. Whether the label files fit the
// data is checked where they are opened.
std::vector<FieldViolation> CheckTaskHeads(const v1::JobSpec& normalized);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_TASK_HEADS_H_
