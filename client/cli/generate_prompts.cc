#include "client/cli/generate_prompts.h"

#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/model_spawns.h"
#include "client/cli/output.h"
#include "client/cli/prompt_file.h"
#include "client/serve/model_processes.h"
#include "common/regular_file.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

constexpr size_t kMostPromptBytes = 256 << 20;

std::string UsersMessage(const std::string& text) {
  const nlohmann::json messages = {{{"role", "user"}, {"content", text}}};
  return messages.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<std::vector<TextLine>> LinesOf(const std::vector<std::string>& prompts,
                                              const GenerateOptions& options,
                                              ModelProcesses& model) {
  std::vector<TextLine> lines;
  for (const std::string& prompt : prompts) {
    auto ids =
        options.message ? model.EncodeChat(UsersMessage(prompt), "{}") : model.Encode(prompt);
    if (!ids.ok()) {
      return absl::Status(
          ids.status().code(),
          absl::StrCat(options.prompts_file, ":", lines.size() + 1, ": ", ids.status().message()));
    }
    lines.push_back({.tokens = options.tokens,
                     .temperature = options.temperature,
                     .top_k = options.top_k,
                     .top_p = options.top_p,
                     .seed = options.seed,
                     .prompt = *std::move(ids)});
  }
  return lines;
}

// A tokenizer may have tokens that the model lacks.
absl::Status CheckIds(const std::vector<TextLine>& lines, const std::string& file,
                      int64_t vocabulary) {
  for (size_t i = 0; i < lines.size(); ++i) {
    for (const int32_t id : lines[i].prompt) {
      if (id < vocabulary) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          file, ":", i + 1, ": the tokenizer's id ", id, " is none of the model's, 0 to ",
          vocabulary - 1, ": is it this model's tokenizer?"));
    }
  }
  return absl::OkStatus();
}

// That all texts have room for.
int64_t WindowOf(const std::vector<TextLine>& lines) {
  int64_t window = 2;
  for (const TextLine& line : lines) {
    window = std::max(window, static_cast<int64_t>(line.prompt.size()) + line.tokens);
  }
  return std::min(window, int64_t{1} << 24);
}

}  // namespace

absl::Status GeneratePrompts(const Access& access, const GenerationSource& source,
                             const GenerateOptions& options) {
  signal(SIGPIPE, SIG_IGN);
  MP_ASSIGN_OR_RETURN(const std::string text,
                      ReadRegularFile(options.prompts_file, kMostPromptBytes));
  MP_ASSIGN_OR_RETURN(const std::vector<std::string> prompts,
                      ParsePrompts(options.prompts_file, text));
  ModelProcesses model({.trainer = {}, .tokenizer = ServingTokenizer(source.tokenizer)});
  MP_RETURN_IF_ERROR(model.LoadTokenizer());
  MP_ASSIGN_OR_RETURN(const std::vector<TextLine> lines, LinesOf(prompts, options, model));
  const int64_t texts = std::min(options.parallel, static_cast<int64_t>(lines.size()));
  const TrainerRoom room = {options.device, options.precision, WindowOf(lines), texts,
                            options.trained_weights};
  MP_RETURN_IF_ERROR(model.LoadTrainer(ServingTrainer(access, source, room)));
  MP_RETURN_IF_ERROR(CheckIds(lines, options.prompts_file, model.facts().vocabulary));
  PromptTexts made(prompts, model.facts().ends, options.tokens);
  return model.Generate(lines, !options.message, OutputFailed,
                        [&](size_t which, const TokenScore& token, absl::string_view bytes) {
                          const bool more = made.Take(which, token.token.token, bytes);
                          if (!more) Print(made.Ready());
                          return more && !OutputFailed();
                        });
}

}  // namespace milepost::client
