// Labels: short names and values that people put on jobs.
#ifndef MILEPOST_COMMON_SPEC_LABELS_H_
#define MILEPOST_COMMON_SPEC_LABELS_H_

#include <google/protobuf/map.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace milepost {

inline constexpr int kMostLabels = 32;

// Of a worker: what jobs name in resources.pool.
inline constexpr char kPoolLabel[] = "pool";

// 1 to 63 letters, digits, '-', '_', '.' and '/', the first a letter or a digit.
bool IsLabelKey(absl::string_view key);
// At most 63 letters, digits, '-', '_' and '.'; may be empty.
bool IsLabelValue(absl::string_view value);

// INVALID_ARGUMENT, naming the label, when there are too many or one is not of that form.
absl::Status CheckLabels(const google::protobuf::Map<std::string, std::string>& labels);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_LABELS_H_
