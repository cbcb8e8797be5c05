// milepost generate
#include "client/cli/generate.h"

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/text_generation.h"
#include "client/cli/tokenizer_folder.h"
#include "client/cli/trainer_binary.h"
#include "common/exit_codes.h"
#include "common/openmp.h"
#include "common/status_macros.h"
#include "common/subprocess.h"

namespace milepost::client {
namespace {

absl::StatusOr<std::string> ChosenCheckpoint(const Access& access, const GenerateOptions& options) {
  if (!options.checkpoint.empty()) return FullName("checkpoints", options.checkpoint);
  v1::Job job;
  if (options.job.empty()) {
    MP_ASSIGN_OR_RETURN(const std::vector<v1::Job> jobs, access.jobs().List(1));
    if (jobs.empty()) return absl::NotFoundError("there is no job yet: milepost run SPEC");
    job = jobs[0];
  } else {
    MP_ASSIGN_OR_RETURN(const std::string name, ResolveJob(access.jobs(), options.job));
    MP_ASSIGN_OR_RETURN(job, access.jobs().Get(name));
  }
  if (job.latest_checkpoint().empty()) {
    return absl::NotFoundError(absl::StrCat(job.name(), " has no checkpoint yet"));
  }
  return job.latest_checkpoint();
}

int Ended(const absl::StatusOr<ExitResult>& end) {
  if (!end.ok()) return Fail(end.status());
  if (end->signal == 0) return end->exit_code;
  return Fail(absl::InternalError(absl::StrCat("milepost-trainer: ", end->ToString())));
}

// Of the checkpoint's job. A chat needs one.
absl::StatusOr<std::string> ChosenTokenizer(const Access& access, const std::string& job,
                                            const GenerateOptions& options) {
  if (!options.tokenizer.empty() || !options.prompt_ids.empty()) return options.tokenizer;
  std::string found = TokenizerOf(access, job);
  if (found.empty() && options.message) {
    return absl::InvalidArgumentError(
        "--chat: the job began with no folder on this machine that has a tokenizer: --tokenizer "
        "FOLDER names one");
  }
  return found;
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
  // One argument, as it may begin with a dash; after a bare "--prompt=" the next would be taken.
  if (!options.prompt.empty()) spawn.argv.push_back("--prompt=" + options.prompt);
  if (!options.prompt_ids.empty()) spawn.argv.push_back("--prompt-ids=" + options.prompt_ids);
  spawn.env = ShortOpenMpSpins();
  return spawn;
}

int GenerateCommand(const GlobalOptions& global, const GenerateOptions& given) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  const auto checkpoint = ChosenCheckpoint(*access, given);
  if (!checkpoint.ok()) return Fail(checkpoint.status());
  const absl::Status there = CheckTrainerBinary(given.device == "cuda");
  if (!there.ok()) return Fail(there);
  const auto manifest = access->checkpoints().Get(*checkpoint);
  if (!manifest.ok()) return Fail(manifest.status());
  const std::string& job = manifest->checkpoint().job();
  const auto tokenizer = ChosenTokenizer(*access, job, given);
  if (!tokenizer.ok()) return Fail(tokenizer.status());
  GenerateOptions options = given;
  if (options.base.empty()) options.base = InitialFolderOf(*access, job);
  const TextPrompt prompt = {*tokenizer, given.prompt, given.message};
  if (!tokenizer->empty()) {
    auto ids = PromptIds(prompt);
    if (!ids.ok()) return Fail(ids.status());
    options.prompt.clear();
    options.prompt_ids = *std::move(ids);
  }
  SpawnOptions spawn = GenerateSpawn(access->address(), *checkpoint, options);
  // Also when empty: what this process was given may be another coordinator's.
  spawn.env.emplace_back("MILEPOST_CA", access->login().authority);
  spawn.env.emplace_back("MILEPOST_TOKEN", access->login().token);
  spawn.own_process_group = false;
  if (!tokenizer->empty()) return GenerateText(prompt, options.prompt_ids, std::move(spawn));
  auto trainer = Subprocess::Spawn(std::move(spawn));
  if (!trainer.ok()) return Fail(trainer.status());
  return Ended(trainer->Wait());
}

}  // namespace milepost::client
