// Pages of List calls (google.aip.dev/158).
#ifndef MILEPOST_COORDINATOR_RPC_PAGING_H_
#define MILEPOST_COORDINATOR_RPC_PAGING_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace milepost::coordinator {

// 0: 100; at most 1000. INVALID_ARGUMENT when negative.
inline absl::StatusOr<int> PageSize(int32_t asked) {
  if (asked < 0) {
    return absl::InvalidArgumentError(absl::StrCat("page_size: must be at least 0, not ", asked));
  }
  return asked == 0 ? 100 : std::min(asked, 1000);
}

// A token that names the last number of the page before; 0 for no token.
inline absl::StatusOr<int64_t> NumberOfToken(const std::string& token) {
  int64_t number = 0;
  if (token.empty()) return number;
  if (token[0] != 'n' || !absl::SimpleAtoi(absl::string_view(token).substr(1), &number) ||
      number < 1) {
    return absl::InvalidArgumentError("page_token: is not one that a List call has returned");
  }
  return number;
}

inline std::string TokenOfNumber(int64_t number) { return absl::StrCat("n", number); }

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_PAGING_H_
