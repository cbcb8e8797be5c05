#include "client/serve/text_pieces.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/match.h"

namespace milepost::client {
namespace {

constexpr char kReplacement[] = "\xef\xbf\xbd";

}  // namespace

void Utf8Pieces::Add(unsigned char byte, std::string* text) {
  if (missing_ > 0) {
    if (byte >= low_ && byte <= high_) {
      held_.push_back(static_cast<char>(byte));
      low_ = 0x80;
      high_ = 0xbf;
      if (--missing_ == 0) text->append(std::exchange(held_, ""));
      return;
    }
    text->append(Rest());  // and this byte begins anew
  }
  if (byte < 0x80) {
    text->push_back(static_cast<char>(byte));
    return;
  }
  if (byte < 0xc2 || byte > 0xf4) {
    text->append(kReplacement);
    return;
  }
  // The second byte's range leaves out overlong forms, surrogates and what is above U+10FFFF.
  missing_ = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
  low_ = byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;
  high_ = byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;
  held_.push_back(static_cast<char>(byte));
}

std::string Utf8Pieces::Feed(absl::string_view bytes) {
  std::string text;
  for (const char c : bytes) Add(static_cast<unsigned char>(c), &text);
  return text;
}

std::string Utf8Pieces::Rest() {
  missing_ = 0;
  return std::exchange(held_, "").empty() ? "" : kReplacement;
}

std::string StopText::Feed(absl::string_view text) {
  if (found_) return "";
  held_.append(text.data(), text.size());
  size_t first_end = std::string::npos;
  size_t begin = 0;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    const size_t end = at + stop.size();
    if (end > first_end || (end == first_end && at > begin)) continue;
    first_end = end;
    begin = at;
  }
  if (first_end != std::string::npos) {
    found_ = true;
    return std::exchange(held_, "").substr(0, begin);
  }
  const size_t sure = held_.size() - HeldBack();
  std::string out = held_.substr(0, sure);
  held_.erase(0, sure);
  return out;
}

// The longest end of held_ with which a stop text may begin.
size_t StopText::HeldBack() const {
  size_t most = 0;
  for (const std::string& stop : stops_) {
    for (size_t size = std::min(stop.size() - 1, held_.size()); size > most; --size) {
      if (absl::EndsWith(held_, absl::string_view(stop).substr(0, size))) most = size;
    }
  }
  return most;
}

std::string StopText::Rest() { return std::exchange(held_, ""); }

}  // namespace milepost::client
