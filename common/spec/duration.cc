#include "common/spec/duration.h"

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace milepost {
namespace {

constexpr double kMostSeconds = 2147483648.0;

struct DurationUnit {
  absl::string_view name;
  double seconds;
};
constexpr DurationUnit kDurationUnits[] = {
    {"ms", 1e-3}, {"d", 86400}, {"h", 3600}, {"m", 60}, {"s", 1}};

// Takes the unit off the front; 0: there is none.
double TakeUnit(absl::string_view* text) {
  for (const DurationUnit& unit : kDurationUnits) {
    if (absl::ConsumePrefix(text, unit.name)) return unit.seconds;
  }
  return 0;
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
    text.remove_prefix(plain ? text.size() : end);
    const double unit = plain ? 1 : TakeUnit(&text);
    if (unit == 0) return std::nullopt;
    total += number * unit;
    if (!(total <= kMostSeconds)) return std::nullopt;
    first = false;
  }
  return total;
}

}  // namespace milepost
