// Tar archives as nobody's packer writes them, for tests.
//
//   const std::string bytes = TarEntry("a.txt", "hello") + kTarEnd;
#ifndef MILEPOST_COMMON_FILES_TAR_BY_HAND_H_
#define MILEPOST_COMMON_FILES_TAR_BY_HAND_H_

#include <cstring>
#include <string>

#include "absl/strings/str_format.h"

namespace milepost {

inline const std::string kTarEnd(1024, '\0');

struct TarFields {
  char type = '0';  // '1' hard link, '2' link, '3' device, '5' folder, '6' FIFO
  std::string link = "";
  int mode = 0644;
  int64_t size = -1;  // as it says; -1: what it has
};

// A header of ustar and the contents, filled up to whole blocks.
inline std::string TarEntry(const std::string& name, const std::string& contents,
                            const TarFields& fields = {}) {
  std::string block(512, '\0');
  const auto put = [&](size_t at, const std::string& text) {
    block.replace(at, text.size(), text);
  };
  const auto size = fields.size < 0 ? static_cast<int64_t>(contents.size()) : fields.size;
  put(0, name.substr(0, 100));
  put(100, absl::StrFormat("%07o", fields.mode));
  put(108, "0000000");
  put(116, "0000000");
  put(124, absl::StrFormat("%011o", size));
  put(136, "00000000000");
  put(148, "        ");
  block[156] = fields.type;
  put(157, fields.link.substr(0, 100));
  put(257, std::string("ustar\00000", 8));
  unsigned sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  put(148, absl::StrFormat("%06o", sum) + std::string("\0 ", 2));
  const size_t rest = contents.size() % 512;
  return block + contents + std::string(rest == 0 ? 0 : 512 - rest, '\0');
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_FILES_TAR_BY_HAND_H_
