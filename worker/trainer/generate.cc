#include "worker/trainer/generate.h"

#include <unistd.h>

#include <cstdio>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"

namespace milepost::worker {

namespace {

constexpr int64_t kByteVocabulary = 256;

absl::StatusOr<std::vector<int32_t>> PromptIds(const GenerateRequest& request, int64_t vocabulary) {
  std::vector<int32_t> ids;
  if (vocabulary == kByteVocabulary && request.prompt_ids.empty()) {
    for (char c : request.prompt) ids.push_back(static_cast<unsigned char>(c));
    if (ids.empty()) ids.push_back('\n');
    return ids;
  }
  if (request.prompt_ids.empty()) {
    return absl::InvalidArgumentError(
        "this model's tokens are not bytes: name its tokenizer with --tokenizer FOLDER, or give "
        "the prompt as token ids with --prompt-ids 1,2,3");
  }
  for (absl::string_view part : absl::StrSplit(request.prompt_ids, ',')) {
    if (!absl::SimpleAtoi(part, &ids.emplace_back())) {
      return absl::InvalidArgumentError(
          absl::StrCat("--prompt-ids: \"", part, "\" is not a token id"));
    }
    if (ids.back() < 0 || ids.back() >= vocabulary) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--prompt-ids: ", part, " is none of the model's token ids, 0 to ", vocabulary - 1));
    }
  }
  return ids;
}

// A model may have learnt what rings a terminal's bell or hides its lines.
bool IsControl(int32_t id) { return (id < ' ' && id != '\n' && id != '\t') || id == 0x7f; }

// A file or a pipe gets the bytes as they are.
void Print(int32_t id, bool bytes) {
  static const bool terminal = isatty(STDOUT_FILENO) != 0;
  if (bytes) {
    std::putchar(terminal && IsControl(id) ? '?' : id);
  } else {
    std::printf("%d ", id);
  }
  std::fflush(stdout);
}

}  // namespace

absl::Status Generate(const GenerateRequest& request) {
  MP_ASSIGN_OR_RETURN(const StoredModel stored, StoredModel::Open(request.source));
  const bool bytes = stored.bytes();
  MP_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, PromptIds(request, stored.vocabulary()));
  const int64_t window = static_cast<int64_t>(prompt.size()) + request.options.tokens;
  MP_ASSIGN_OR_RETURN(auto generator, stored.Load({.window = window}));
  for (int32_t id : prompt) Print(id, bytes);
  MP_RETURN_IF_ERROR(generator->Generate(prompt, request.options, [bytes](const TokenScore& made) {
    Print(made.token.token, bytes);
    return true;
  }));
  std::putchar('\n');
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return absl::OkStatus();
  return absl::UnknownError("what was generated could not be written to stdout, or not all of it");
}

}  // namespace milepost::worker
