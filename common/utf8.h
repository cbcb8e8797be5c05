// Cuts text to a limit so that it stays UTF-8. Messages and stored records with other text in a
// string field are written silently, but refused when they are read.
#ifndef MILEPOST_COMMON_UTF8_H_
#define MILEPOST_COMMON_UTF8_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace milepost {

// The number of bytes of the first character of `text`, which must not be empty. 0: it does not
// begin with a character (RFC 3629).
inline size_t Utf8Character(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool no_character = (first == 0xed && byte(1) > 0x9f) || (first == 0xf4 && byte(1) > 0x8f);
  return overlong || no_character ? 0 : bytes;
}

// The characters of `text` that fit into `most` bytes. A byte that is not part of a character
// becomes '?'.
inline std::string CutUtf8(absl::string_view text, size_t most) {
  std::string cut;
  while (!text.empty()) {
    const size_t bytes = Utf8Character(text);
    const size_t taken = bytes == 0 ? 1 : bytes;
    if (cut.size() + taken > most) break;
    if (bytes == 0) {
      cut.push_back('?');
    } else {
      cut.append(text.data(), bytes);
    }
    text.remove_prefix(taken);
  }
  return cut;
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_UTF8_H_
