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
    if (!options.separator.empty() || !options.field.empty() || options.sequence_length > 0) {
      return absl::InvalidArgumentError(
          "--separator, --field and --sequence-length need --tokenizer FILE: bytes have no token "
          "between documents");
    }
    for (const std::string& input : options.inputs) {
      bool rows = std::filesystem::is_directory(input);
      for (const char* ending : {".jsonl", ".ndjson", ".parquet", ".arrow"}) {
        rows = rows || absl::EndsWith(input, ending);
      }
      if (!rows) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          input, ": has a document in each line or row, which needs a token between documents: ",
          "give a --tokenizer FILE, or a file of the text alone"));
    }
  }
  if (OneNameOf(options.output) == OneNameOf(options.validation_output)) {
    return absl::InvalidArgumentError("--output and --validation-output are the same file");
  }
  if (!options.validation_output.empty() &&
      (OneNameOf(MaskPath(options.output)) == OneNameOf(options.validation_output) ||
       OneNameOf(options.output) == OneNameOf(MaskPath(options.validation_output)))) {
    return absl::InvalidArgumentError(
        "--output, --validation-output: one of them is the other's loss mask by its name; choose "
        "another name");
  }
  return absl::OkStatus();
}

void TellOfDocuments(const TokenizeOptions& options, const TokenizeResult& result) {
  if (result.cut > 0) {
    Note(absl::StrCat(result.cut, " of ", result.documents, " examples were longer than ",
                      options.sequence_length, " tokens, and were cut there"));
  }
  if (result.left_out > 0) {
    Note(absl::StrCat(result.left_out, " of ", result.documents,
                      result.pairs ? " pairs are longer than a sample or have no target"
                                   : " examples have no target",
                      ", and were left out"));
  }
  if (result.documents < 2) return;
  Note(absl::StrCat(result.documents, " documents, with ",
                    result.separator.empty()
                        ? "nothing between them: the tokenizer has no end-of-text of a usual "
                          "name; --separator names one"
                        : absl::StrCat(result.separator, " between them")));
}

// What the spec needs, as YAML.
std::string SpecHint(const TokenizeOptions& options, const TokenizeResult& result) {
  const bool validation = !options.validation_output.empty();
  if (!result.masks) {
    return absl::StrCat("in the job spec: data.train: ", options.output,
                        ", and a model vocabulary of at least ", result.vocabulary);
  }
  return absl::StrCat(
      "in the job spec: data: {train: ", options.output,
      validation ? absl::StrCat(", validation: ", options.validation_output) : "",
      ", loss_mask: {train: ", MaskPath(options.output),
      validation ? absl::StrCat(", validation: ", MaskPath(options.validation_output)) : "",
      "}, document_separator: ", result.separator_id,
      options.sequence_length > 0 ? absl::StrCat(", sequence_length: ", options.sequence_length)
                                  : "",
      "}, ", result.pairs ? "train: {dpo: {}}, " : "", "and a model vocabulary of at least ",
      result.vocabulary);
}

}  // namespace

int TokenizeCommand(const TokenizeOptions& options) {
  const absl::Status valid = CheckOptions(options);
  if (!valid.ok()) return Fail(valid);
  const TokenizeJob job = {.inputs = options.inputs,
                           .output = options.output,
                           .validation_output = options.validation_output,
                           .validation_fraction = options.validation_fraction,
                           .separator = options.separator,
                           .field = options.field,
                           .sequence_length = options.sequence_length,
                           .all_tokens = options.loss == "all"};
  const auto result = options.tokenizer == "bytes" ? TokenizeBytes(job)
                                                   : TokenizeHuggingFace(job, options.tokenizer);
  if (absl::IsCancelled(result.status())) {
    Note(absl::StrCat("milepost: ", result.status().message()));
    return kExitInterrupted;
  }
  if (!result.ok()) return Fail(result.status());
  TellOfDocuments(options, *result);
  Print(options.output + "\n");
  Note(absl::StrCat(options.output, ": ", result->train_tokens, " tokens (", result->dtype, ")"));
  if (!options.validation_output.empty()) {
    Print(options.validation_output + "\n");
    Note(absl::StrCat(options.validation_output, ": ", result->validation_tokens, " tokens"));
  }
  Hint(SpecHint(options, *result));
  return kExitOk;
}

}  // namespace milepost::client
