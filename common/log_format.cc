#include "common/log_format.h"

#include <spdlog/pattern_formatter.h>

#include <cstdint>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/utf8.h"

namespace milepost {
namespace {

// Of a character of two or three bytes.
uint32_t CodePoint(absl::string_view character) {
  const auto low = [&](size_t i) { return static_cast<uint32_t>(character[i]) & 0x3f; };
  if (character.size() == 2) return (static_cast<uint32_t>(character[0]) & 0x1f) << 6 | low(1);
  return (static_cast<uint32_t>(character[0]) & 0x0f) << 12 | low(1) << 6 | low(2);
}

std::string Escaped(absl::string_view character) {
  const auto byte = static_cast<uint8_t>(character[0]);
  if (character.size() == 1) {
    if (byte == '\n') return "\\n";
    if (byte == '\r') return "\\r";
    if (byte == '\t') return "\\t";
    if (byte < 0x20 || byte >= 0x7f) return absl::StrFormat("\\x%02x", byte);
  } else if (character.size() < 4) {
    const uint32_t point = CodePoint(character);
    if (point < 0xa0 || point == 0x2028 || point == 0x2029) {
      return absl::StrFormat("\\u%04x", point);
    }
  }
  return std::string(character);
}

class EscapingFormatter : public spdlog::formatter {
 public:
  explicit EscapingFormatter(std::unique_ptr<spdlog::formatter> inner) : inner_(std::move(inner)) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const std::string escaped = EscapeLogMessage({message.payload.data(), message.payload.size()});
    spdlog::details::log_msg safe = message;
    safe.payload = escaped;
    inner_->format(safe, out);
    message.color_range_start = safe.color_range_start;
    message.color_range_end = safe.color_range_end;
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<EscapingFormatter>(inner_->clone());
  }

 private:
  const std::unique_ptr<spdlog::formatter> inner_;
};

}  // namespace

std::string EscapeLogMessage(absl::string_view message) {
  std::string escaped;
  escaped.reserve(message.size());
  while (!message.empty()) {
    const size_t bytes = Utf8Character(message);
    escaped += Escaped(message.substr(0, bytes == 0 ? 1 : bytes));
    message.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return escaped;
}

std::unique_ptr<spdlog::formatter> LogFormatter(const std::string& pattern) {
  return std::make_unique<EscapingFormatter>(std::make_unique<spdlog::pattern_formatter>(pattern));
}

}  // namespace milepost
