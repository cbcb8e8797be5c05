// Pages of List calls (google.aip.dev/158).
#ifndef MILEPOST_COORDINATOR_RPC_PAGING_H_
#define MILEPOST_COORDINATOR_RPC_PAGING_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace milepost::coordinator {

// 0: 100; at most 1000. INVALID_ARGUMENT when negative.
inline absl::StatusOr<int> PageSize(int32_t asked) {
  if (asked < 0) {
    return absl::InvalidArgumentError(absl::StrCat("page_size: must be at least 0, not ", asked));
  }
  return asked == 0 ? 100 : std::min(asked, 1000);
}

// The number of a token; 0 for no token. `filter`: a digest of what the call asks for besides the
// page, where the token is good for that alone.
inline absl::StatusOr<int64_t> NumberOfToken(const std::string& token,
                                             absl::string_view filter = "") {
  int64_t number = 0;
  if (token.empty()) return number;
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(token, absl::MaxSplits('.', 1));
  if (token[0] != 'n' || !absl::SimpleAtoi(parts.first.substr(1), &number) || number < 1) {
    return absl::InvalidArgumentError("page_token: is not one that a List call has returned");
  }
  if (parts.second != filter) {
    return absl::InvalidArgumentError(
        "page_token: belongs to a call with other fields: repeat these, or begin without a token");
  }
  return number;
}

inline std::string TokenOfNumber(int64_t number, absl::string_view filter = "") {
  return absl::StrCat("n", number, filter.empty() ? "" : ".", filter);
}

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_PAGING_H_
