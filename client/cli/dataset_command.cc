// milepost dataset tokenize
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/tokenize.h"
#include "common/exit_codes.h"

namespace milepost::client {
namespace {

// Also by other names: ./a, and a path through a link.
std::filesystem::path OneNameOf(const std::string& path) {
  std::error_code error;
  const std::filesystem::path name =
      std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  return error ? std::filesystem::path(path) : name;
}

absl::Status CheckOptions(const TokenizeOptions& options) {
  const bool fraction = options.validation_fraction > 0;
  if (!(options.validation_fraction >= 0 && options.validation_fraction < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--validation-fraction: expected 0 up to below 1, got ", options.validation_fraction));
  }
  if (fraction != !options.validation_output.empty()) {
    return absl::InvalidArgumentError(
        "--validation-fraction and --validation-output go together: give both or neither");
  }
  for (const std::string& output : {options.output, options.validation_output}) {
    if (output.empty() || absl::EndsWith(output, ".npy")) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--output: ", output, ": NumPy files are all that is written: name it .npy"));
  }
  if (options.tokenizer == "bytes") {
    if (!options.separator.empty() || !options.field.empty()) {
      return absl::InvalidArgumentError(
          "--separator and --field need --tokenizer FILE: bytes have no token between documents");
    }
    for (const std::string& input : options.inputs) {
      if (!absl::EndsWith(input, ".jsonl") && !absl::EndsWith(input, ".ndjson")) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          input, ": is lines of JSON, whose text needs a token between documents: give a ",
          "--tokenizer FILE, or a file of the text alone"));
    }
  }
  if (OneNameOf(options.output) == OneNameOf(options.validation_output)) {
    return absl::InvalidArgumentError("--output and --validation-output are the same file");
  }
  return absl::OkStatus();
}

}  // namespace

int TokenizeCommand(const TokenizeOptions& options) {
  const absl::Status valid = CheckOptions(options);
  if (!valid.ok()) return Fail(valid);
  const TokenizeJob job = {
      options.inputs,    options.output, options.validation_output, options.validation_fraction,
      options.separator, options.field};
  const auto result = options.tokenizer == "bytes" ? TokenizeBytes(job)
                                                   : TokenizeHuggingFace(job, options.tokenizer);
  if (absl::IsCancelled(result.status())) {
    Note(absl::StrCat("milepost: ", result.status().message()));
    return kExitInterrupted;
  }
  if (!result.ok()) return Fail(result.status());
  if (result->documents > 1) {
    Note(absl::StrCat(result->documents, " documents, with ",
                      result->separator.empty()
                          ? "nothing between them: the tokenizer has no end-of-text of a usual "
                            "name; --separator names one"
                          : absl::StrCat(result->separator, " between them")));
  }
  Print(options.output + "\n");
  Note(absl::StrCat(options.output, ": ", result->train_tokens, " tokens (", result->dtype, ")"));
  if (!options.validation_output.empty()) {
    Print(options.validation_output + "\n");
    Note(absl::StrCat(options.validation_output, ": ", result->validation_tokens, " tokens"));
  }
  Hint(absl::StrCat("in the job spec: data.train: ", options.output,
                    ", and a model vocabulary of at least ", result->vocabulary));
  return kExitOk;
}

}  // namespace milepost::client
