#include "common/spec/byte_size.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace milepost {
namespace {

constexpr double kMost = 4611686018427387904.0;  // 2^62

struct Unit {
  const char* name;
  int64_t bytes;
};
// Binary ones from the largest down.
constexpr Unit kUnits[] = {
    {"TiB", int64_t{1} << 40},
    {"GiB", int64_t{1} << 30},
    {"MiB", int64_t{1} << 20},
    {"KiB", int64_t{1} << 10},
    {"B", 1},
    {"TB", 1'000'000'000'000},
    {"GB", 1'000'000'000},
    {"MB", 1'000'000},
    {"KB", 1000},
};

}  // namespace

std::optional<int64_t> ParseByteSize(absl::string_view text) {
  const size_t end = text.find_first_not_of("0123456789.");
  const absl::string_view digits = text.substr(0, end);
  const absl::string_view unit =
      end == absl::string_view::npos ? "" : absl::StripAsciiWhitespace(text.substr(end));
  int64_t whole = 0;
  if (unit.empty()) {
    const bool ok = end == absl::string_view::npos && absl::SimpleAtoi(digits, &whole);
    return ok && static_cast<double>(whole) <= kMost ? std::optional(whole) : std::nullopt;
  }
  double number = 0;
  if (digits.empty() || !absl::SimpleAtod(digits, &number)) return std::nullopt;
  for (const Unit& known : kUnits) {
    if (unit != known.name) continue;
    const double bytes = number * static_cast<double>(known.bytes);
    if (!(bytes <= kMost) || bytes != std::floor(bytes)) return std::nullopt;
    return static_cast<int64_t>(bytes);
  }
  return std::nullopt;
}

std::string ByteSizeText(int64_t bytes) {
  for (const Unit& unit : kUnits) {
    if (bytes != 0 && bytes % unit.bytes == 0) return absl::StrCat(bytes / unit.bytes, unit.name);
  }
  return absl::StrCat(bytes, "B");
}

}  // namespace milepost
