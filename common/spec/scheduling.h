// The checks of spec.scheduling that need nothing else. The coordinator's core has the others. Pure
// and thread-safe.
#ifndef MILEPOST_COMMON_SPEC_SCHEDULING_H_
#define MILEPOST_COMMON_SPEC_SCHEDULING_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/spec/validate.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {

inline constexpr int kLowestPriority = -1000;
inline constexpr int kHighestPriority = 1000;

// Letters, digits, '-', '_' and '.', 1 to 63 characters.
bool IsQueueId(absl::string_view id);

// Field names begin at the spec: "scheduling.priority".
std::vector<FieldViolation> CheckScheduling(const v1::SchedulingSpec& normalized);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_SCHEDULING_H_
