// Labels: short names and values that people put on jobs. Pure and thread-safe.
#ifndef MILEPOST_COMMON_SPEC_LABELS_H_
#define MILEPOST_COMMON_SPEC_LABELS_H_

#include <google/protobuf/map.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace milepost {

inline constexpr int kMostLabels = 32;

// The label of a worker that jobs name in resources.pool.
inline constexpr char kPoolLabel[] = "pool";

// 1 to 63 letters, digits, '-', '_', '.' and '/'. The first is a letter or a digit.
bool IsLabelKey(absl::string_view key);
// At most 63 letters, digits, '-', '_' and '.'. May be empty.
bool IsLabelValue(absl::string_view value);

// INVALID_ARGUMENT: there are too many labels, or one has another form; the message names it.
absl::Status CheckLabels(const google::protobuf::Map<std::string, std::string>& labels);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_LABELS_H_
