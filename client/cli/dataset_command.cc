// milepost dataset tokenize
#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/tokenize.h"
#include "common/exit_codes.h"

namespace milepost::client {
namespace {

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
  if (options.output == options.validation_output) {
    return absl::InvalidArgumentError("--output and --validation-output are the same file");
  }
  return absl::OkStatus();
}

}  // namespace

int TokenizeCommand(const TokenizeOptions& options) {
  const absl::Status valid = CheckOptions(options);
  if (!valid.ok()) return Fail(valid);
  const TokenizeJob job = {options.inputs, options.output, options.validation_output,
                           options.validation_fraction};
  const auto result = options.tokenizer == "bytes" ? TokenizeBytes(job)
                                                   : TokenizeHuggingFace(job, options.tokenizer);
  if (!result.ok()) return Fail(result.status());
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
