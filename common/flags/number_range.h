// Checks a flag's number, for CLI11. CLI::Range accepts NaN, which is neither below nor above, and
// CLI::NonNegativeNumber accepts infinity as well.
//
//   app.add_option("--lease-seconds", seconds)->check(NumberRange(0.2, 3600));
#ifndef MILEPOST_COMMON_FLAGS_NUMBER_RANGE_H_
#define MILEPOST_COMMON_FLAGS_NUMBER_RANGE_H_

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace milepost {

inline constexpr double kMostFlagSeconds = 1e9;  // about 30 years: practically for ever

inline CLI::Validator NumberRange(double least, double most) {
  const std::string range = absl::StrCat("[", least, " - ", most, "]");
  return CLI::Validator(
      [least, most, range](std::string& text) {
        double value = 0;
        const bool good = absl::SimpleAtod(text, &value) && value >= least && value <= most;
        return good ? std::string()
                    : absl::StrCat("expected a number in ", range, ", got '", text, "'");
      },
      absl::StrCat("FLOAT in ", range));
}

// Accepts 64MiB or 1000000, like CLI::AsSizeValue, which however takes -1 for the largest number.
inline CLI::Validator SizeValue() {
  return CLI::Validator(
      [as_size = CLI::AsSizeValue(false)](std::string& text) {
        const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
        double value = 0;
        const bool good = absl::SimpleAtod(text.substr(0, digits), &value) && value < 1e19;
        if (!good) return absl::StrCat("expected a size such as 64MiB, got '", text, "'");
        return as_size(text);
      },
      "SIZE");
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_FLAGS_NUMBER_RANGE_H_
