#include "client/cli/utf8.h"

namespace milepost::client {

bool Utf8Checker::Accept(unsigned char byte) {
  if (missing_ > 0) {
    if (byte < low_ || byte > high_) return false;
    low_ = 0x80;
    high_ = 0xbf;
    --missing_;
    return true;
  }
  character_ = offset_;
  if (byte < 0x80) {
    line_ += byte == '\n' ? 1 : 0;
    return true;
  }
  if (byte < 0xc2 || byte > 0xf4) return false;
  missing_ = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
  // The first continuation byte excludes overlong forms, surrogates and what is above U+10FFFF.
  low_ = byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;
  high_ = byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;
  return true;
}

bool Utf8Checker::Feed(absl::string_view chunk) {
  for (const char c : chunk) {
    if (!Accept(static_cast<unsigned char>(c))) return false;
    ++offset_;
  }
  return true;
}

bool Utf8Checker::Finish() { return missing_ == 0; }

}  // namespace milepost::client
