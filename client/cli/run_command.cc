// milepost run
#include <algorithm>
#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cli/access.h"
#include "client/cli/commands.h"
#include "client/cli/disk_needs.h"
#include "client/cli/fine_tuning.h"
#include "client/cli/fit.h"
#include "client/cli/format.h"
#include "client/cli/inputs.h"
#include "client/cli/job_arguments.h"
#include "client/cli/local_run.h"
#include "client/cli/run_report.h"
#include "client/cli/script_files.h"
#include "client/cli/tokenizer_folder.h"
#include "client/cli/unigram.h"
#include "common/exit_codes.h"
#include "common/spec/auto_fields.h"
#include "common/spec/model_sizes.h"
#include "common/spec/parse.h"
#include "common/status_macros.h"
#include "engine/data/dataset.h"
#include "engine/plan/fit/fit.h"

namespace milepost::client {
namespace {

constexpr int64_t kByteVocabulary = 256;
constexpr int kPromptBytes = 24;

// Before anything is started. What GPUs there are the worker finds out, and the coordinator checks;
// what is offloaded must fit this host.
absl::StatusOr<DiskNeeds> CheckMemory(const v1::JobSpec& spec) {
  MP_ASSIGN_OR_RETURN(plan::RankPlace place, PlaceOnHost(spec));
  if (spec.resources().device() == v1::DEVICE_KIND_CUDA) {
    if (HasAutoFields(spec)) return DiskNeeds();
    place.memory_bytes = 0;
    place.host_bytes = HostBytesPerRank(spec.resources().ranks());
  }
  MP_ASSIGN_OR_RETURN(const plan::FittingPlan fitting, plan::PlanThatFits(spec, place));
  return DiskNeedsOf(fitting.plan);
}

// Predicts the next token; the other families have nothing that `generate` could continue.
bool WritesText(const v1::JobSpec& spec) {
  return spec.model().has_gpt2() || spec.model().has_llama();
}

bool IsByteLevel(const v1::JobSpec& spec) {
  if (!WritesText(spec)) return false;
  if (SizesOf(spec.model()).vocabulary != kByteVocabulary) return false;
  for (const std::string& path : TrainPaths(spec)) {
    const auto file = data::TokenFile::Open(path);
    if (!file.ok() || (*file)->type() != data::TokenType::kUint8) return false;
  }
  return true;
}

// The first words of the validation (or training) text.
std::string PromptFrom(const v1::JobSpec& spec) {
  const std::string& validation = spec.data().validation();
  const auto file = data::TokenFile::Open(validation.empty() ? TrainPaths(spec)[0] : validation);
  if (!file.ok()) return "\n";
  std::vector<int32_t> tokens(std::min<int64_t>(kPromptBytes, (*file)->size()));
  if (!(*file)->Read(0, kByteVocabulary, absl::MakeSpan(tokens)).ok()) return "\n";
  std::string prompt;
  for (const int32_t token : tokens) {
    if (token < ' ' || token > '~') break;
    prompt.push_back(static_cast<char>(token));
  }
  const size_t space = prompt.rfind(' ');
  if (space != std::string::npos && space > 0) prompt.resize(space);
  return prompt.empty() ? "\n" : prompt;
}

ReportKind KindFor(OutputFormat format) {
  if (format == OutputFormat::kJson) return ReportKind::kJson;
  return StdoutIsTerminal() ? ReportKind::kLive : ReportKind::kPlain;
}

// What goes on with a run's job.
std::string RunAgain(const GlobalOptions& global, const RunOptions& options, const v1::Job& job,
                     bool own) {
  std::string what = "--job " + job.name();
  if (own && options.jobs.empty() && options.spec != "-") {
    what = ShellWord(options.spec);
    for (const std::string& one : options.set) absl::StrAppend(&what, " --set ", ShellWord(one));
  }
  return absl::StrCat("milepost run ", what, DataDirFlag(global.data_dir));
}

// Of a model whose tokens are not bytes, and that has no tokenizer, the prompt is the first ones of
// its data.
std::string GenerateHint(const GlobalOptions& global, const v1::Job& job) {
  constexpr int kPromptTokens = 8;
  std::string prompt = "--prompt 'And God said'";
  const bool text = IsByteLevel(job.spec()) || HasTokenizer(job.spec().train().init_from());
  if (!text) {
    const auto file = data::TokenFile::Open(TrainPaths(job.spec())[0]);
    if (!file.ok()) return "";
    std::vector<int32_t> ids(std::min<int64_t>(kPromptTokens, (*file)->size()));
    const int64_t vocabulary = SizesOf(job.spec().model()).vocabulary;
    if (!(*file)->Read(0, vocabulary, absl::MakeSpan(ids)).ok()) return "";
    prompt = absl::StrCat("--prompt-ids ", absl::StrJoin(ids, ","));
  }
  return absl::StrCat(text ? "text" : "token ids", " from the model: milepost generate",
                      DataDirFlag(global.data_dir), " --job ", job.name(), " ", prompt,
                      " --tokens 300");
}

// `own`: of the spec or the first --job, and not one that was submitted beside it.
void AdviseSucceeded(const GlobalOptions& global, const RunOptions& options, const v1::Job& job,
                     bool own) {
  if (job.spec().has_script()) return;
  const std::string generate = WritesText(job.spec()) ? GenerateHint(global, job) : "";
  if (!generate.empty()) Hint(generate);
  if (EndedEarly(job)) {
    Hint(EndedEarlyText(job));
  } else if (own && options.jobs.empty() && options.spec != "-") {
    Hint(absl::StrCat(
        "train for longer: raise train.steps in ", options.spec,
        " and run again; once more from new parameters, with these checkpoints in the bin: ",
        RunAgain(global, options, job, own), " --fresh"));
  }
  Hint(absl::StrCat("checkpoints: milepost checkpoint list", DataDirFlag(global.data_dir)));
}

// What to try next.
void Advise(const GlobalOptions& global, const RunOptions& options, const LocalRun& run, bool own) {
  const v1::Job& job = run.job();
  const std::string again = RunAgain(global, options, job, own);
  if (run.interrupted() && job.state() != v1::JOB_STATE_SUCCEEDED) {
    return Hint("resume: " + again);
  }
  switch (job.state()) {
    case v1::JOB_STATE_SUCCEEDED:
      return AdviseSucceeded(global, options, job, own);
    case v1::JOB_STATE_FAILED:
      return Hint(absl::StrCat(
          "why: milepost job describe ", job.name(), DataDirFlag(global.data_dir), "; ",
          job.first_failure().class_() == v1::FAILURE_CLASS_USER ? "once that is mended: "
          : job.latest_checkpoint().empty()                      ? "try again: "
                                            : "try again from the newest checkpoint: ",
          again));
    default:
      Hint("resume: " + again);
  }
}

// Nothing starts them but another run.
void TellWaiting(const GlobalOptions& global, const std::vector<WaitingJob>& waiting) {
  constexpr size_t kShown = 8;
  if (waiting.empty()) return;
  std::vector<std::string> names;
  std::string flags;
  for (const WaitingJob& one : waiting) {
    if (names.size() == kShown) {
      names.push_back(absl::StrCat(waiting.size() - kShown, " more"));
      break;
    }
    names.push_back(
        absl::StrCat(one.job.name(), one.why.empty() ? "" : absl::StrCat(" (", one.why, ")")));
    absl::StrAppend(&flags, " --job ", one.job.name());
  }
  Hint(absl::StrCat(absl::StrJoin(names, ", "), waiting.size() == 1 ? " waits" : " wait",
                    "; to run: milepost run", flags, DataDirFlag(global.data_dir)));
}

int ExitCodeFor(const LocalRun& run) {
  if (run.interrupted() && run.job().state() != v1::JOB_STATE_SUCCEEDED) return kExitInterrupted;
  return ExitCodeOfJob(run.job().state());
}

void ExplainFailure(const v1::Job& job) {
  if (job.state() != v1::JOB_STATE_FAILED) return;
  Note(absl::StrCat("milepost: ", job.name(), " failed: ", job.reason_detail()));
  for (const std::string& line : job.first_failure().last_lines()) {
    Note(absl::StrCat("  rank ", job.first_failure().rank(), " | ", Printable(line)));
  }
}

// Before anything is started.
absl::StatusOr<DiskNeeds> CheckSpec(const v1::JobSpec& spec) {
  MP_RETURN_IF_ERROR(CheckReads(spec));
  if (spec.has_script()) return DiskNeeds{};  // nobody knows
  MP_ASSIGN_OR_RETURN(const DiskNeeds needs, CheckMemory(spec));
  MP_RETURN_IF_ERROR(CheckStateFolder(spec, needs.state_bytes));
  MP_RETURN_IF_ERROR(CheckWrites(spec));
  return needs;
}

// On GPUs the workers find out what there is.
void HintPrecision(const v1::JobSpec& spec) {
  if (spec.has_script()) return;
  const auto place = PlaceOnHost(spec);
  if (!place.ok() || spec.resources().device() == v1::DEVICE_KIND_CUDA) return;
  const std::string faster = TellFasterPrecision(spec, *place, "this host");
  if (!faster.empty()) Hint(faster);
}

// Of the first --job, as it is stored. The names in `options` are full ones then.
absl::StatusOr<v1::JobSpec> SpecOfJob(const GlobalOptions& global, RunOptions* options) {
  const DataDir dir(global.data_dir);
  if (!std::filesystem::is_directory(dir.coordinator())) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are no jobs in ", global.data_dir, "; make one: milepost run SPEC"));
  }
  MP_ASSIGN_OR_RETURN(const auto coordinator, TemporaryCoordinator::Start(dir));
  JobClient jobs(
      Connection::To(coordinator->address(), {.called = CoordinatorOf(global.data_dir)}));
  for (std::string& name : options->jobs) {
    MP_ASSIGN_OR_RETURN(name, ResolveJob(jobs, name));
  }
  MP_ASSIGN_OR_RETURN(const v1::Job job, jobs.Get(options->jobs.front()));
  return job.spec();
}

absl::StatusOr<v1::JobSpec> SpecOf(const GlobalOptions& global, RunOptions* options,
                                   ScriptFiles* files) {
  if (!options->jobs.empty()) return SpecOfJob(global, options);
  if (!options->tuning.model.empty()) {
    MP_ASSIGN_OR_RETURN(options->spec, PrepareFineTuning(options->tuning));
  }
  if (options->spec.empty()) {
    return absl::InvalidArgumentError("spec is required, or --model and --data, or --job");
  }
  return LoadSpec({.path = options->spec, .base = std::nullopt, .overrides = options->set}, files);
}

// At a job's end. `sample`: also text from the model, for which the workers stop.
RunSummary Summarize(LocalRun* run, absl::Time started, bool sample) {
  RunSummary summary;
  summary.run_started = started;
  const v1::JobSpec& spec = run->job().spec();
  const bool succeeded = run->job().state() == v1::JOB_STATE_SUCCEEDED;
  summary.job = run->job();
  if (spec.has_script()) return summary;
  if (sample && succeeded && IsByteLevel(spec)) summary.sample = run->Sample(PromptFrom(spec));
  summary.checkpoints = run->Checkpoints();
  // It is of the language model's loss alone.
  const bool one_head =
      spec.model().heads_size() == 0 && !spec.model().has_head_weight() && !spec.train().has_dpo();
  const auto unigram =
      UnigramLoss(spec.data().train(), spec.data().validation(), SizesOf(spec.model()).vocabulary);
  if (unigram.ok() && one_head) summary.unigram_loss = *unigram;
  return summary;
}

// Its own job, then those that were submitted beside it. What is left is the last one's end.
struct Followed {
  absl::Status status;
  bool own = true;         // the last one is the run's own
  int own_exit = kExitOk;  // where it is not
};
Followed FollowAll(LocalRun* run, absl::Time started, RunReport* report) {
  Followed followed;
  followed.status = run->Start();
  if (followed.status.ok()) followed.status = run->FollowToEnd();
  while (followed.status.ok()) {
    const std::optional<v1::Job> next = run->Next();
    if (!next) break;
    report->Finished(Summarize(run, started, /*sample=*/false));
    ExplainFailure(run->job());
    if (followed.own) followed.own_exit = ExitCodeFor(*run);
    followed.own = false;
    run->GoOnWith(*next);
    followed.status = run->FollowToEnd();
  }
  return followed;
}

}  // namespace

int RunCommand(const GlobalOptions& global, const RunOptions& given) {
  const absl::Time started = absl::Now();
  RunOptions options = given;
  ScriptFiles files;
  const auto spec = SpecOf(global, &options, &files);
  if (absl::IsCancelled(spec.status())) {
    Note(absl::StrCat("milepost: ", spec.status().message()));
    return kExitInterrupted;
  }
  if (!spec.ok()) return Fail(spec.status());
  const absl::StatusOr<DiskNeeds> disk = CheckSpec(*spec);
  if (!disk.ok()) return Fail(disk.status());
  HintPrecision(*spec);
  const auto report = MakeRunReport(KindFor(global.output));
  LocalRun run(global, options, *spec, {*disk, &files}, report.get());
  const Followed followed = FollowAll(&run, started, report.get());
  RunSummary summary;
  std::vector<WaitingJob> waiting;
  if (followed.status.ok()) {
    summary = Summarize(&run, started, /*sample=*/true);
    waiting = run.Waiting();
  }
  run.Stop();
  if (run.interrupted() && absl::IsCancelled(followed.status)) return kExitInterrupted;
  if (!followed.status.ok()) {
    // Of exit codes, "not found" and "time-out" are about jobs, not about this machine.
    const int code = Fail(followed.status);
    return code == kExitUsage ? code : int{kExitError};
  }
  summary.job = run.job();
  report->Finished(summary);
  ExplainFailure(run.job());
  Advise(global, options, run, followed.own);
  TellWaiting(global, waiting);
  return followed.own || run.interrupted() ? ExitCodeFor(run) : followed.own_exit;
}

}  // namespace milepost::client
