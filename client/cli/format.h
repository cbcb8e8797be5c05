// Numbers and times for people. Pure and thread-safe.
#ifndef MILEPOST_CLIENT_CLI_FORMAT_H_
#define MILEPOST_CLIENT_CLI_FORMAT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace google::protobuf {
class Timestamp;
}

namespace milepost::client {

std::string HumanBytes(int64_t bytes);           // "61.3 MiB", "512 B"
std::string HumanCount(double count);            // "31.2k", "124M", "950"
std::string HumanDuration(absl::Duration time);  // "42s", "3m05s", "2h10m", "5d3h"; rounded down
std::string LossText(double loss);               // "2.3140"; "-" for NaN
std::string RateText(double learning_rate);      // "5.80e-04"

// An absent (zero) timestamp gives InfinitePast.
absl::Time TimeOf(const google::protobuf::Timestamp& timestamp);
std::string AgeText(const google::protobuf::Timestamp& since, absl::Time now);  // "-" when absent
std::string TimeText(const google::protobuf::Timestamp& time);  // RFC 3339, UTC; "-" when absent

// Makes foreign text safe for a terminal. Control characters become '?'; bytes that are not UTF-8
// become the replacement character.
std::string Printable(absl::string_view text);
// Does the same for text of several lines, and keeps line breaks and tabs.
std::string ForTerminal(absl::string_view text);
// Printable text in at most `width` columns. If something was cut, the last one is "…".
std::string FitTo(absl::string_view text, size_t width);
// Quotes the text as one word of a shell command.
std::string ShellWord(absl::string_view text);
// The columns that UTF-8 text takes: one for each code point.
size_t ColumnsOf(absl::string_view text);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_FORMAT_H_
