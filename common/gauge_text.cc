#include "common/gauge_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace milepost {
namespace {

void AppendEscaped(absl::string_view value, std::string* text) {
  for (const char c : value) {
    if (c == '\\' || c == '"') text->push_back('\\');
    if (c == '\n') {
      text->append("\\n");
    } else {
      text->push_back(c);
    }
  }
}

void AppendNumber(double value, std::string* text) {
  if (std::isinf(value)) {
    text->append(value > 0 ? "+Inf" : "-Inf");
    return;
  }
  std::array<char, 32> digits;
  const std::to_chars_result end =
      std::to_chars(digits.data(), digits.data() + digits.size(), value);
  text->append(digits.data(), end.ptr);
}

}  // namespace

GaugeText::GaugeText(absl::string_view name, std::vector<std::string> labels,
                     absl::string_view help)
    : name_(name), labels_(std::move(labels)) {
  absl::StrAppend(&text_, "# HELP ", name, " ", help, "\n# TYPE ", name, " gauge\n");
}

void GaugeText::Add(const std::vector<std::string>& values, double value) {
  if (std::isnan(value)) return;
  MP_CHECK(labels_.size() == values.size()) << name_;
  text_.append(name_);
  for (size_t i = 0; i < values.size(); ++i) {
    absl::StrAppend(&text_, i == 0 ? "{" : ",", labels_[i], "=\"");
    AppendEscaped(values[i], &text_);
    text_.push_back('"');
  }
  text_.append(values.empty() ? " " : "} ");
  AppendNumber(value, &text_);
  text_.push_back('\n');
}

}  // namespace milepost
