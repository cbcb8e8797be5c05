// What becomes of a model's bytes before a client sees them: valid UTF-8, up to a stop text.
//
//   Utf8Pieces utf8;
//   StopText stop({"\n\n"});
//   for (bytes of each token) {
//     client << stop.Feed(utf8.Feed(bytes));
//     if (stop.found()) break;
//   }
//   client << stop.Feed(utf8.Rest()) << stop.Rest();
//
// What comes out does not depend on how the input was cut into pieces. Pure; not thread-safe.
#ifndef MILEPOST_CLIENT_SERVE_TEXT_PIECES_H_
#define MILEPOST_CLIENT_SERVE_TEXT_PIECES_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace milepost::client {

// Characters whose bytes come in several pieces are held back until they are whole. Each longest
// part of a character that cannot go on becomes one U+FFFD, and so does each other wrong byte, as
// Python's "replace" has it.
class Utf8Pieces {
 public:
  std::string Feed(absl::string_view bytes);
  // At the end of the text: U+FFFD for a character that is not whole.
  std::string Rest();

 private:
  void Add(unsigned char byte, std::string* text);

  std::string held_;          // of the character under way
  int missing_ = 0;           // its continuation bytes still to come
  unsigned char low_ = 0x80;  // range of the next one
  unsigned char high_ = 0xbf;
};

class StopText {
 public:
  // Texts that end the answer; none is empty.
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Returns what is known to lie before any stop text. Once one was found, all else is dropped.
  std::string Feed(absl::string_view text);
  // The stop text that is complete first ends the text; of several, the one that begins first.
  bool found() const { return found_; }
  // At the end of the text: what was held back.
  std::string Rest();

 private:
  size_t HeldBack() const;

  const std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_SERVE_TEXT_PIECES_H_
