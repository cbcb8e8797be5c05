// A file of prompts, and what is written of the texts that go on with them, for `milepost generate
// --prompts`.
//
//   MP_ASSIGN_OR_RETURN(const std::vector<std::string> prompts, ParsePrompts("p.jsonl", text));
//   PromptTexts texts(prompts, ends, /*tokens=*/200);
//   if (!texts.Take(0, token, bytes)) ... text 0 has ended ...
//   Print(texts.Ready());
//
// Pure; not thread-safe.
#ifndef MILEPOST_CLIENT_CLI_PROMPT_FILE_H_
#define MILEPOST_CLIENT_CLI_PROMPT_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/serve/text_pieces.h"

namespace milepost::client {

// Of a file called *.jsonl each line is an object with a text `prompt`; of others each line is a
// prompt. INVALID_ARGUMENT names the line: it is empty or no such object; or there is none.
absl::StatusOr<std::vector<std::string>> ParsePrompts(const std::string& path,
                                                      absl::string_view text);

// One line of JSON for each prompt, in their order, whichever text ends first.
class PromptTexts {
 public:
  // `ends`: tokens that end a text, sorted. `tokens`: of a text, at most.
  PromptTexts(std::vector<std::string> prompts, std::vector<int32_t> ends, int64_t tokens);

  // A text's next token and what it adds. Returns whether the text goes on.
  bool Take(size_t text, int32_t token, absl::string_view bytes);
  // Lines of texts that have ended, and before which all have, once each.
  std::string Ready();

 private:
  struct Text {
    std::string text;
    Utf8Pieces utf8;
    int64_t tokens = 0;
    bool stopped = false;  // by a token that ends texts
    bool ended = false;
  };

  const std::vector<std::string> prompts_;
  const std::vector<int32_t> ends_;
  const int64_t tokens_;
  std::vector<Text> texts_;
  size_t told_ = 0;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_PROMPT_FILE_H_
