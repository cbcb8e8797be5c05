// Pages of List calls (google.aip.dev/158).
#ifndef MILEPOST_COORDINATOR_DESKS_PAGING_H_
#define MILEPOST_COORDINATOR_DESKS_PAGING_H_

#include <google/protobuf/message_lite.h>
#include <google/protobuf/repeated_ptr_field.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/checksum.h"

namespace milepost::coordinator {

// 0: 100; at most 1000. INVALID_ARGUMENT when negative.
inline absl::StatusOr<int> PageSize(int32_t asked) {
  if (asked < 0) {
    return absl::InvalidArgumentError(absl::StrCat("page_size: must be at least 0, not ", asked));
  }
  return asked == 0 ? 100 : std::min(asked, 1000);
}

// What a page may still hold: so many entries, and less than a message may have, however large an
// entry is. The first one always has room.
class PageRoom {
 public:
  static constexpr size_t kMostBytes = 4 << 20;

  explicit PageRoom(int entries) : entries_(entries) {}
  // False once the page is full: the next page begins with this entry.
  bool Take(const google::protobuf::MessageLite& entry) {
    const size_t bytes = entry.ByteSizeLong();
    full_ = full_ || taken_ >= entries_ || (taken_ > 0 && bytes > kMostBytes - bytes_);
    if (full_) return false;
    ++taken_;
    bytes_ += std::min(bytes, kMostBytes - bytes_);
    return true;
  }
  // An entry was left for the next page.
  bool full() const { return full_; }

 private:
  const int entries_;
  int taken_ = 0;
  size_t bytes_ = 0;
  bool full_ = false;
};

// Moves what a page of `size` entries has room for. True: the next page begins after it.
template <typename Item>
bool FillPage(std::vector<Item> found, int size, google::protobuf::RepeatedPtrField<Item>* page) {
  PageRoom room(size);
  for (Item& item : found) {
    if (!room.Take(item)) break;
    *page->Add() = std::move(item);
  }
  return room.full();
}

// The number of a token; 0 for no token. `filter`: a digest of the list and of what the call asks
// for besides the page: the token is good for that alone.
inline absl::StatusOr<int64_t> NumberOfToken(const std::string& token, absl::string_view filter) {
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

inline std::string TokenOfNumber(int64_t number, absl::string_view filter) {
  return absl::StrCat("n", number, ".", filter);
}

// The same for lists by name. `list`: what the token is good for alone, "workers" or
// "templates of p".
inline std::string TokenOfName(absl::string_view name, absl::string_view list) {
  return absl::WebSafeBase64Escape(
      absl::StrFormat("%016x%s", Xxh3(absl::StrCat(list, "\n", name)), name));
}

inline absl::StatusOr<std::string> NameOfToken(const std::string& token, absl::string_view list) {
  std::string bytes;
  if (token.empty()) return bytes;
  constexpr size_t kDigest = 16;
  const bool decoded = absl::WebSafeBase64Unescape(token, &bytes) && bytes.size() > kDigest;
  std::string name = decoded ? bytes.substr(kDigest) : "";
  if (decoded && TokenOfName(name, list) == token) return name;
  return absl::InvalidArgumentError(
      "page_token: is not one that this List call, with the same fields, has returned");
}

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_DESKS_PAGING_H_
