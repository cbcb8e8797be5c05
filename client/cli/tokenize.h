// Text to token files, for `milepost dataset tokenize`.
#ifndef MILEPOST_CLIENT_CLI_TOKENIZE_H_
#define MILEPOST_CLIENT_CLI_TOKENIZE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace milepost::client {

struct TokenizeJob {
  std::vector<std::string> inputs;
  std::string output;
  // The last part of the text, from the first line break after it, goes here; empty: none.
  std::string validation_output;
  double validation_fraction = 0;  // [0, 1)
  // With a tokenizer.json. Its token between documents (files, or lines of JSON); empty: its
  // end-of-text, where it has one of a usual name.
  std::string separator = {};
  // Of each line of JSON, the text. Empty: "text", in files named .jsonl or .ndjson alone.
  std::string field = {};
};

struct TokenizeResult {
  int64_t train_tokens = 0;
  int64_t validation_tokens = 0;
  int64_t vocabulary = 0;  // what model.*.vocabulary must be at least
  std::string dtype;
  int64_t documents = 0;       // with a tokenizer.json: of the input
  std::string separator = {};  // between them; empty: nothing
};

// One token per byte, uint8. INVALID_ARGUMENT with file, byte and line when the text is not UTF-8.
// CANCELLED at Ctrl-C and SIGTERM. Existing outputs are replaced only when all went well, and none
// is left half written.
absl::StatusOr<TokenizeResult> TokenizeBytes(const TokenizeJob& job);

// With a Hugging Face tokenizer.json, by the Python package `tokenizers`; FAILED_PRECONDITION
// saying how to install it when python3 does not have it. INVALID_ARGUMENT naming file and line for
// what is no text; CANCELLED at Ctrl-C and SIGTERM. Files as above.
absl::StatusOr<TokenizeResult> TokenizeHuggingFace(const TokenizeJob& job,
                                                   const std::string& tokenizer);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_TOKENIZE_H_
