#include "common/spec/duration.h"

#include "absl/strings/numbers.h"

namespace milepost {
namespace {

constexpr double kMost = 2147483648.0;

// 0: not a unit.
double SecondsOf(char unit) {
  switch (unit) {
    case 'd':
      return 86400;
    case 'h':
      return 3600;
    case 'm':
      return 60;
    case 's':
      return 1;
    default:
      return 0;
  }
}

}  // namespace

std::optional<double> ParseSeconds(absl::string_view text) {
  double total = 0;
  bool first = true;
  while (!text.empty() || first) {
    const size_t end = text.find_first_not_of("0123456789.");
    double number = 0;
    if (end == 0 || !absl::SimpleAtod(text.substr(0, end), &number)) return std::nullopt;
    const bool plain = end == absl::string_view::npos;
    if (plain && !first) return std::nullopt;
    const double unit = plain ? 1 : SecondsOf(text[end]);
    if (unit == 0) return std::nullopt;
    total += number * unit;
    if (!(total <= kMost)) return std::nullopt;
    text.remove_prefix(plain ? text.size() : end + 1);
    first = false;
  }
  return total;
}

}  // namespace milepost
