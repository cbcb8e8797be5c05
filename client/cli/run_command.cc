// milepost run
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/commands.h"
#include "client/cli/fit.h"
#include "client/cli/format.h"
#include "client/cli/local_run.h"
#include "client/cli/run_report.h"
#include "client/cli/unigram.h"
#include "common/exit_codes.h"
#include "common/spec/auto_fields.h"
#include "common/spec/model_sizes.h"
#include "common/spec/parse.h"
#include "common/status_macros.h"
#include "engine/data/dataset.h"
#include "engine/data/images/image_set.h"
#include "engine/models/hugging_face.h"
#include "engine/plan/admission.h"

namespace milepost::client {
namespace {

constexpr int64_t kByteVocabulary = 256;
constexpr int kPromptBytes = 24;

std::vector<std::string> TrainPaths(const v1::JobSpec& spec) {
  std::vector<std::string> paths;
  for (const v1::TokenSource& source : spec.data().mixture()) paths.push_back(source.path());
  if (paths.empty()) paths.push_back(spec.data().train());
  return paths;
}

// What further heads learn of the training data, or of the validation data.
std::vector<data::LabelOptions> LabelsOf(const v1::JobSpec& spec, bool train) {
  std::vector<data::LabelOptions> options;
  for (const v1::TaskHeadSpec& head : spec.model().heads()) {
    for (const v1::LabelSource& labels : spec.data().labels()) {
      if (labels.head() != head.name()) continue;
      options.push_back({.field = head.name(),
                         .path = train ? labels.train() : labels.validation(),
                         .classes = head.classes(),
                         .head = head.name()});
    }
  }
  return options;
}

absl::Status CheckImages(const v1::JobSpec& spec) {
  for (const bool train : {true, false}) {
    const std::string& path = train ? spec.data().train() : spec.data().validation();
    if (path.empty()) continue;
    data::ImageSetOptions options = {.classes = spec.model().resnet().classes()};
    const std::vector<data::LabelOptions> labels = LabelsOf(spec, train);
    for (const data::LabelOptions& of_one : labels) {
      if (of_one.path.empty()) options.heads.push_back(of_one.head);
    }
    const auto opened = data::OpenImageSet(path, options);
    if (!opened.ok()) return absl::InvalidArgumentError(opened.status().message());
    const auto read = data::ReadHeadLabels(path, **opened, labels);
    if (!read.ok()) return absl::InvalidArgumentError(read.status().message());
  }
  return absl::OkStatus();
}

// Opens the data as a trainer would: what is wrong with it is said before anything starts.
absl::Status CheckData(const v1::JobSpec& spec) {
  if (SizesOf(spec.model()).images) return CheckImages(spec);
  data::DatasetOptions options = {.sequence_length = spec.data().sequence_length(),
                                  .vocabulary = SizesOf(spec.model()).vocabulary};
  const auto check = [&](const std::string& path, bool train) -> absl::Status {
    options.labels = LabelsOf(spec, train);
    const auto opened = data::TokenDataset::Open(path, options);
    return opened.ok() ? absl::OkStatus() : absl::InvalidArgumentError(opened.status().message());
  };
  for (const std::string& path : TrainPaths(spec)) MP_RETURN_IF_ERROR(check(path, true));
  const std::string& validation = spec.data().validation();
  return validation.empty() ? absl::OkStatus() : check(validation, false);
}

absl::Status CheckInitFrom(const v1::JobSpec& spec) {
  const std::string& folder = spec.train().init_from();
  if (folder.empty()) return absl::OkStatus();
  const absl::Status status = models::CheckHfFolder(spec.model(), folder);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("train.init_from: ", status.message()));
}

// Before anything is started. What GPUs there are the worker finds out, and the coordinator checks;
// what is offloaded must fit this host.
absl::Status CheckMemory(const v1::JobSpec& spec) {
  MP_ASSIGN_OR_RETURN(plan::RankPlace place, PlaceOnHost(spec));
  if (spec.resources().device() == v1::DEVICE_KIND_CUDA) {
    if (HasAutoFields(spec)) return absl::OkStatus();
    place.memory_bytes = 0;
    place.host_bytes = HostBytesPerRank(spec.resources().ranks());
  }
  return plan::Admit(spec, place).status();
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

std::string DataDirFlag(const GlobalOptions& global) {
  return global.data_dir == GlobalOptions().data_dir ? "" : " --data-dir " + global.data_dir;
}

// What to try next.
void Advise(const GlobalOptions& global, const RunOptions& options, const LocalRun& run) {
  const std::string flag = DataDirFlag(global);
  if (run.interrupted()) {
    Hint(absl::StrCat("resume: milepost run ", options.spec, flag));
    return;
  }
  switch (run.job().state()) {
    case v1::JOB_STATE_SUCCEEDED:
      if (WritesText(run.job().spec())) {
        Hint(absl::StrCat("text from the model: milepost generate", flag, " --job ",
                          run.job().name(), " --prompt 'And God said' --tokens 300"));
      }
      Hint(absl::StrCat("train for longer: raise train.steps in ", options.spec,
                        " and run again; from scratch: milepost run ", options.spec, flag,
                        " --fresh"));
      Hint(absl::StrCat("checkpoints: milepost checkpoint list", flag));
      break;
    case v1::JOB_STATE_FAILED:
      Hint(absl::StrCat("why: milepost job describe ", run.job().name(), flag,
                        "; try again from the newest checkpoint: milepost run ", options.spec,
                        flag));
      break;
    default:
      Hint(absl::StrCat("resume: milepost run ", options.spec, flag));
  }
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

}  // namespace

int RunCommand(const GlobalOptions& global, const RunOptions& options) {
  const absl::Time started = absl::Now();
  const auto spec = LoadJobSpec(options.spec);
  if (!spec.ok()) return Fail(spec.status());
  if (const absl::Status data = CheckData(*spec); !data.ok()) return Fail(data);
  if (const absl::Status weights = CheckInitFrom(*spec); !weights.ok()) return Fail(weights);
  if (const absl::Status fits = CheckMemory(*spec); !fits.ok()) return Fail(fits);
  const auto report = MakeRunReport(KindFor(global.output));
  LocalRun run(global, options, *spec, report.get());
  absl::Status status = run.Start();
  if (status.ok()) status = run.FollowToEnd();
  RunSummary summary;
  summary.run_started = started;
  if (status.ok()) {
    const bool succeeded = run.job().state() == v1::JOB_STATE_SUCCEEDED;
    if (succeeded && IsByteLevel(*spec)) summary.sample = run.Sample(PromptFrom(*spec));
    summary.checkpoints = run.Checkpoints();
  }
  run.Stop();
  if (run.interrupted() && absl::IsCancelled(status)) return kExitInterrupted;
  if (!status.ok()) {
    // Of exit codes, "not found" and "time-out" are about jobs, not about this machine.
    const int code = Fail(status);
    return code == kExitUsage ? code : int{kExitError};
  }
  summary.job = run.job();
  // It is of the language model's loss alone.
  const bool one_head = spec->model().heads_size() == 0 && !spec->model().has_head_weight();
  const auto unigram = UnigramLoss(spec->data().train(), spec->data().validation(),
                                   SizesOf(spec->model()).vocabulary);
  if (unigram.ok() && one_head) summary.unigram_loss = *unigram;
  report->Finished(summary);
  ExplainFailure(run.job());
  Advise(global, options, run);
  return ExitCodeFor(run);
}

}  // namespace milepost::client
