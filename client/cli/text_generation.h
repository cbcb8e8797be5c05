// Text in and out of a model whose tokens are a Hugging Face tokenizer's, for `milepost generate`.
//
//   MP_ASSIGN_OR_RETURN(const std::string ids, PromptIds({.tokenizer = folder, .prompt = "Once"}));
//   // start the trainer with these ids, its stdout a pipe
//   MP_RETURN_IF_ERROR(WriteText(text, ids, std::move(trainers_output)).status());
//
// Both run Python, with the package `tokenizers`, and block. FAILED_PRECONDITION: python3 lacks a
// package; the message says how to install it. INVALID_ARGUMENT: the tokenizer cannot be read, or
// the prompt is no text or gives no tokens.
#ifndef MILEPOST_CLIENT_CLI_TEXT_GENERATION_H_
#define MILEPOST_CLIENT_CLI_TEXT_GENERATION_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/unique_fd.h"

namespace milepost::client {

struct TextPrompt {
  std::string tokenizer;  // a folder, or a tokenizer.json
  std::string prompt;
  // The prompt is a user's message, which the folder's chat template renders. Needs `transformers`.
  bool message = false;
};

// The prompt's ids: "1,2,3".
absl::StatusOr<std::string> PromptIds(const TextPrompt& prompt);

// Reads ids with blanks between them from `ids`, first those of the prompt, and writes their text
// to stdout as they come. Of a message the prompt is not written. Returns true at the end of `ids`,
// and false where nobody reads `ids` any more: at a token that ends answers, or because stdout is
// closed.
absl::StatusOr<bool> WriteText(const TextPrompt& prompt, absl::string_view prompt_ids,
                               UniqueFd ids);

// The Python program that both run: generate_text.py.
absl::string_view GenerateTextScript();

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_TEXT_GENERATION_H_
