#include "common/spec/labels.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace milepost {
namespace {

constexpr size_t kMostBytes = 63;

bool IsPlain(char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.'; }

std::string Shown(absl::string_view text) { return absl::CHexEscape(text.substr(0, kMostBytes)); }

}  // namespace

bool IsLabelKey(absl::string_view key) {
  return !key.empty() && key.size() <= kMostBytes && absl::ascii_isalnum(key[0]) &&
         std::all_of(key.begin(), key.end(), [](char c) { return IsPlain(c) || c == '/'; });
}

bool IsLabelValue(absl::string_view value) {
  return value.size() <= kMostBytes && std::all_of(value.begin(), value.end(), IsPlain);
}

absl::Status CheckLabels(const google::protobuf::Map<std::string, std::string>& labels) {
  if (labels.size() > kMostLabels) {
    return absl::InvalidArgumentError(
        absl::StrCat("labels: at most ", kMostLabels, " of a job, not ", labels.size()));
  }
  const std::map<std::string, std::string> sorted(labels.begin(), labels.end());
  for (const auto& [key, value] : sorted) {
    if (!IsLabelKey(key)) {
      return absl::InvalidArgumentError(
          absl::StrCat("labels: the key '", Shown(key), "' must have 1 to ", kMostBytes,
                       " letters, digits, '-', '_', '.' and '/', the first a letter or a digit"));
    }
    if (!IsLabelValue(value)) {
      return absl::InvalidArgumentError(absl::StrCat("labels: the value '", Shown(value), "' of ",
                                                     key, " must have at most ", kMostBytes,
                                                     " letters, digits, '-', '_' and '.'"));
    }
  }
  return absl::OkStatus();
}

}  // namespace milepost
