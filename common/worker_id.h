// The rule for the ids of workers. Pure.
#ifndef MILEPOST_COMMON_WORKER_ID_H_
#define MILEPOST_COMMON_WORKER_ID_H_

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace milepost {

inline constexpr size_t kMostWorkerIdBytes = 63;

// 1 to 63 letters, digits, '-', '_' and '.'. The first must not be '.', because the id becomes a
// folder's name.
inline absl::Status CheckWorkerId(absl::string_view id) {
  const bool good = std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  });
  if (good && !id.empty() && id.size() <= kMostWorkerIdBytes && id[0] != '.') {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "worker id \"", id.substr(0, 100), "\": letters, digits, '-', '_' and '.', 1 to ",
      kMostWorkerIdBytes, " characters, the first no '.'"));
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_WORKER_ID_H_
