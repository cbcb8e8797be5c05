#include "client/cli/text_generation.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/subprocess.h"

namespace milepost::client {
namespace {

constexpr size_t kMostOutput = 16 << 20;

SpawnOptions Script(const std::string& mode, const TextPrompt& prompt, const std::string& given) {
  SpawnOptions options;
  options.argv = {"/usr/bin/env", "python3",        "-c",  std::string(GenerateTextScript()),
                  mode,           prompt.tokenizer, given, prompt.message ? "1" : "0"};
  options.err = Redirect::Pipe();
  options.own_process_group = false;
  return options;
}

std::string ReadAll(UniqueFd fd) {
  std::string text;
  char part[4096];
  while (text.size() < kMostOutput) {
    const ssize_t got = read(fd.get(), part, sizeof part);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(part, static_cast<size_t>(got));
  }
  return text;
}

// True: it has read all.
absl::StatusOr<bool> Ended(Subprocess* python) {
  const std::string message = ReadAll(python->TakeErr());
  MP_ASSIGN_OR_RETURN(const ExitResult end, python->Wait());
  if (end.success()) return true;
  if (end.signal == 0 && end.exit_code == 5) return false;
  if (end.signal == 0 && end.exit_code == 3) {
    return absl::FailedPreconditionError(
        absl::StrCat("text needs the Python package `", message, "`: pip install '", message,
                     "' (in the environment of the python3 on PATH), or give --prompt-ids"));
  }
  return absl::InvalidArgumentError(
      end.signal == 0 && end.exit_code == 4
          ? std::string(absl::StripAsciiWhitespace(message))
          : absl::StrCat("the tokenizer ended with ", end.ToString(), ": ", message));
}

}  // namespace

absl::StatusOr<std::string> PromptIds(const TextPrompt& prompt) {
  SpawnOptions options = Script("ids", prompt, prompt.prompt);
  options.out = Redirect::Pipe();
  MP_ASSIGN_OR_RETURN(Subprocess python, Subprocess::Spawn(std::move(options)));
  // It writes the one or the other.
  std::string ids = ReadAll(python.TakeOut());
  MP_RETURN_IF_ERROR(Ended(&python).status());
  return ids;
}

absl::StatusOr<bool> WriteText(const TextPrompt& prompt, absl::string_view prompt_ids,
                               UniqueFd ids) {
  const auto count = 1 + std::count(prompt_ids.begin(), prompt_ids.end(), ',');
  SpawnOptions options = Script("text", prompt, absl::StrCat(count));
  options.in = Redirect::Fd(ids.get());
  MP_ASSIGN_OR_RETURN(Subprocess python, Subprocess::Spawn(std::move(options)));
  // Only the script reads: where it ends, the writer learns it.
  ids = UniqueFd();
  return Ended(&python);
}

}  // namespace milepost::client
