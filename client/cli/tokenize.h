// Turns text into token files, for `milepost dataset tokenize`. Both calls block until the files
// are written.
#ifndef MILEPOST_CLIENT_CLI_TOKENIZE_H_
#define MILEPOST_CLIENT_CLI_TOKENIZE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace milepost::client {

struct TokenizeJob {
  std::vector<std::string> inputs;
  std::string output;
  // The last part of the text goes here. It begins after the first line break behind the split.
  // Empty: there is no validation part.
  std::string validation_output;
  double validation_fraction = 0;  // [0, 1)
  // Only with a tokenizer.json: its token between documents (files, or lines of JSON). Empty: its
  // end-of-text token, if that has a usual name.
  std::string separator = {};
  // The field of each JSON line that has the text. Empty: "text", only in files named .jsonl or
  // .ndjson.
  std::string field = {};
  // Of examples: the tokens of a sample, into which whole examples are packed. 0: they follow each
  // other.
  int64_t sequence_length = 0;
  // Texts are taken also where there is a sequence_length. They are not packed.
  bool takes_texts = false;
  // Of examples: all tokens are targets, and not the answers alone.
  bool all_tokens = false;
};

struct TokenizeResult {
  int64_t train_tokens = 0;
  int64_t validation_tokens = 0;
  int64_t vocabulary = 0;  // the least value for model.*.vocabulary
  std::string dtype;
  int64_t documents = 0;       // of the input; only with a tokenizer.json
  std::string separator = {};  // between documents; empty: none
  int64_t separator_id = -1;   // its token; -1: none
  bool masks = false;          // the documents were examples: there are files of MaskPath
  bool pairs = false;          // pairs of them
  int64_t cut = 0;             // examples longer than a sample
  int64_t left_out = 0;        // examples without a target, or pairs longer than a sample
};

// "a.npy" -> "a.mask.npy": the loss mask of a file of examples.
std::string MaskPath(absl::string_view output);

// The Python program that TokenizeHuggingFace runs: tokenize_hugging_face.py, with what it imports.
absl::string_view TokenizeScript();

// Makes one token per byte, uint8. INVALID_ARGUMENT: the text is not UTF-8; the message has file,
// byte and line. CANCELLED: Ctrl-C or SIGTERM. Existing outputs are replaced only when everything
// succeeded, and none is left half written.
absl::StatusOr<TokenizeResult> TokenizeBytes(const TokenizeJob& job);

// Uses a Hugging Face tokenizer.json, or a folder that has one, through the Python package
// `tokenizers`. Lines of JSON that have `messages`, or `prompt` and `completion`, are examples:
// they get loss masks. So do pairs, which have `chosen` and `rejected`. Rows of Parquet files and
// of folders of `datasets` are as lines; they need the package `pyarrow`. Messages need the package
// `transformers`, which renders the folder's chat template. FAILED_PRECONDITION: python3 lacks a
// package; the message says how to install it. INVALID_ARGUMENT: something is not text; the message
// names file and line. CANCELLED: Ctrl-C or SIGTERM. Outputs are replaced as above.
absl::StatusOr<TokenizeResult> TokenizeHuggingFace(const TokenizeJob& job,
                                                   const std::string& tokenizer);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_TOKENIZE_H_
