// Finds the first byte of a stream that is not valid UTF-8.
//
//   Utf8Checker checker;
//   for (chunk) if (!checker.Feed(chunk)) ... checker.bad_offset() ...
//   if (!checker.Finish()) ...
//
// Overlong forms, surrogates and code points above U+10FFFF are refused. Not thread-safe.
#ifndef MILEPOST_CLIENT_CLI_UTF8_H_
#define MILEPOST_CLIENT_CLI_UTF8_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace milepost::client {

class Utf8Checker {
 public:
  bool Feed(absl::string_view chunk);
  bool Finish();  // false when the stream ends inside a character

  // The place of the wrong character. The offset counts from 0, the line from 1.
  int64_t bad_offset() const { return character_; }
  int64_t bad_line() const { return line_; }

 private:
  bool Accept(unsigned char byte);

  int64_t offset_ = 0;
  int64_t character_ = 0;  // where the current character began
  int64_t line_ = 1;
  int missing_ = 0;           // continuation bytes still to come
  unsigned char low_ = 0x80;  // range of the next continuation byte
  unsigned char high_ = 0xbf;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_UTF8_H_
