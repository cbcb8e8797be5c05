// milepost generate
#include "client/cli/generate.h"

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/generate_prompts.h"
#include "client/cli/generation_source.h"
#include "client/cli/text_generation.h"
#include "client/cli/trainer_binary.h"
#include "common/exit_codes.h"
#include "common/openmp.h"
#include "common/subprocess.h"

namespace milepost::client {
namespace {

int Ended(const absl::StatusOr<ExitResult>& end) {
  if (!end.ok()) return Fail(end.status());
  if (end->signal == 0) return end->exit_code;
  return Fail(absl::InternalError(absl::StrCat("milepost-trainer: ", end->ToString())));
}

// The trainer writes ids, and what they say goes to stdout.
int GenerateText(const TextPrompt& prompt, const std::string& ids, SpawnOptions spawn) {
  spawn.out = Redirect::Pipe();
  auto trainer = Subprocess::Spawn(std::move(spawn));
  if (!trainer.ok()) return Fail(trainer.status());
  const auto all = WriteText(prompt, ids, trainer->TakeOut());
  if (!all.ok()) return Fail(all.status());
  if (*all) return Ended(trainer->Wait());
  // An answer has ended before as many tokens as were asked for.
  trainer->Signal(SIGKILL).IgnoreError();
  return kExitOk;
}

}  // namespace

SpawnOptions GenerateSpawn(const std::string& address, const std::string& checkpoint,
                           const GenerateOptions& options) {
  SpawnOptions spawn;
  spawn.argv = {TrainerBinary(options.device == "cuda"),
                "generate",
                "--coordinator",
                address,
                "--checkpoint",
                checkpoint,
                "--tokens",
                absl::StrCat(options.tokens),
                "--temperature",
                absl::StrCat(options.temperature),
                "--top-k",
                absl::StrCat(options.top_k),
                "--top-p",
                absl::StrCat(options.top_p),
                "--seed",
                absl::StrCat(options.seed),
                "--precision",
                options.precision};
  if (!options.base.empty()) spawn.argv.push_back("--base=" + options.base);
  if (options.trained_weights) spawn.argv.push_back("--trained-weights");
  // One argument, as it may begin with a dash; after a bare "--prompt=" the next would be taken.
  if (!options.prompt.empty()) spawn.argv.push_back("--prompt=" + options.prompt);
  if (!options.prompt_ids.empty()) spawn.argv.push_back("--prompt-ids=" + options.prompt_ids);
  spawn.env = ShortOpenMpSpins();
  return spawn;
}

int GenerateCommand(const GlobalOptions& global, const GenerateOptions& given) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  auto source = FindSource(*access, {given.checkpoint, given.job, given.tokenizer, given.base});
  if (!source.ok()) return Fail(source.status());
  const absl::Status there = CheckTrainerBinary(given.device == "cuda");
  if (!there.ok()) return Fail(there);
  if (source->tokenizer.empty() && given.message) {
    return Fail(absl::InvalidArgumentError(
        "--chat: the job began with no folder on this machine that has a tokenizer: --tokenizer "
        "FOLDER names one"));
  }
  if (!given.prompts_file.empty()) {
    const absl::Status made = GeneratePrompts(*access, *source, given);
    return made.ok() ? int{kExitOk} : Fail(made);
  }
  const bool text = given.prompt_ids.empty() && !source->tokenizer.empty();
  GenerateOptions options = given;
  options.base = source->base;
  const TextPrompt prompt = {source->tokenizer, given.prompt, given.message};
  if (text) {
    auto ids = PromptIds(prompt);
    if (!ids.ok()) return Fail(ids.status());
    options.prompt.clear();
    options.prompt_ids = *std::move(ids);
  }
  SpawnOptions spawn = GenerateSpawn(access->address(), source->checkpoint, options);
  AddCredentials(*access, &spawn);
  spawn.own_process_group = false;
  if (text) return GenerateText(prompt, options.prompt_ids, std::move(spawn));
  auto trainer = Subprocess::Spawn(std::move(spawn));
  if (!trainer.ok()) return Fail(trainer.status());
  return Ended(trainer->Wait());
}

}  // namespace milepost::client
