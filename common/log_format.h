// How our processes write their logs: one line for each message, whatever the message contains.
#ifndef MILEPOST_COMMON_LOG_FORMAT_H_
#define MILEPOST_COMMON_LOG_FORMAT_H_

#include <spdlog/formatter.h>

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace milepost {

// Replaces control characters (C0, DEL, C1), line and paragraph separators, and bytes that are not
// UTF-8 by \n, \r, \t, \xNN or \uNNNN. So a message from outside can neither forge lines nor move a
// terminal's cursor.
std::string EscapeLogMessage(absl::string_view message);

// spdlog's `pattern`, with the message escaped.
//
//   spdlog::set_formatter(LogFormatter("%Y-%m-%dT%H:%M:%S.%e %l worker: %v"));
std::unique_ptr<spdlog::formatter> LogFormatter(const std::string& pattern);

}  // namespace milepost

#endif  // MILEPOST_COMMON_LOG_FORMAT_H_
