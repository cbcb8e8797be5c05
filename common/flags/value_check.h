// Lets a function of ours check a flag's value, for CLI11. The error comes with the flag's name,
// and with the line of a --config file.
//
//   app.add_option("--listen", listen)->check(ValueCheck(CheckListenAddress));
#ifndef MILEPOST_COMMON_FLAGS_VALUE_CHECK_H_
#define MILEPOST_COMMON_FLAGS_VALUE_CHECK_H_

#include <CLI/CLI.hpp>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace milepost {

// `check(text)` returns a Status.
template <typename Check>
CLI::Validator ValueCheck(Check check) {
  return CLI::Validator(
      [check = std::move(check)](std::string& text) { return std::string(check(text).message()); },
      "");
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_FLAGS_VALUE_CHECK_H_
