#include "client/cli/run_report.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/cli/format.h"
#include "client/cli/output.h"
#include "client/cli/progress_view.h"
#include "common/spec/to_yaml.h"

namespace milepost::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::Duration kPlainInterval = absl::Seconds(5);
constexpr absl::Duration kStartUp = absl::Seconds(2);
constexpr absl::Duration kSameProblem = absl::Minutes(1);
constexpr absl::Duration kRedrawInterval = absl::Milliseconds(100);

Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

std::string StateName(v1::JobState state) {
  const auto* value = v1::JobState_descriptor()->FindValueByNumber(state);
  return value == nullptr ? absl::StrCat(static_cast<int>(state)) : EnumYamlName(*value);
}

bool Validated(const v1::Progress& progress) { return progress.validation_step() > 0; }

std::string StartedText(const v1::Job& job, const std::string& how, const std::string& address) {
  std::string text = absl::StrCat(how, " ", job.name(), " (", job.spec().name(), ")");
  if (!job.latest_checkpoint().empty()) {
    absl::StrAppend(&text, ", newest checkpoint ", job.latest_checkpoint());
  }
  return absl::StrCat(text, ", coordinator ", address);
}

std::string RestartText(const ProcessEvent& event) {
  return absl::StrFormat("%s ended with %s; starting it again in %d ms", event.name,
                         event.end.ToString(), absl::ToInt64Milliseconds(event.restart_in));
}

// What goes on does so from there. Of a job that has succeeded nothing does.
int64_t SavedStep(const RunSummary& summary) {
  const int64_t made = summary.job.progress().step();
  if (!summary.checkpoints || summary.job.state() == v1::JOB_STATE_SUCCEEDED) return made;
  int64_t saved = summary.job.forked_from().step();
  bool own = false;
  for (const v1::Checkpoint& checkpoint : *summary.checkpoints) {
    if (checkpoint.damaged()) continue;
    own = true;
    saved = std::max(saved, checkpoint.step());
  }
  // It began at the step of a checkpoint that is not listed here.
  if (!own && !summary.job.spec().checkpoint().resume_from().empty()) return made;
  return saved;
}

// What does not go right with each of many checkpoints is one problem.
absl::string_view WithoutStep(absl::string_view problem) {
  const size_t colon = problem.find(": ");
  const bool has_step = colon != absl::string_view::npos && absl::StartsWith(problem, "step ");
  return has_step ? problem.substr(colon + 2) : problem;
}

// What a loss is the mean over.
const char* LossUnit(const v1::JobSpec& spec) {
  return spec.train().has_dpo() ? "pair" : SampleUnit(spec);
}

// Lines for people at the end, on stdout.
std::string SummaryText(const RunSummary& summary) {
  const v1::Job& job = summary.job;
  const v1::Progress& progress = job.progress();
  if (job.spec().has_script()) return "";  // its state is told, and its output was shown
  std::string text = absl::StrCat("\n", job.name(), " ", StateName(job.state()), " at step ",
                                  progress.step(), "/", job.spec().train().steps(), "\n");
  if (progress.step() > 0) {
    absl::StrAppend(&text, "  train loss       ", LossText(progress.train_loss()),
                    HeadsText(progress.train_heads()), "\n");
  }
  if (Validated(progress)) {
    const std::string heads = HeadsText(progress.validation_heads());
    absl::StrAppend(&text, "  validation loss  ", LossText(progress.validation_loss()),
                    heads.empty() ? absl::StrCat(" nats per ", LossUnit(job.spec())) : heads, "\n");
  }
  for (const v1::ValidationSetReport& set : progress.validation_sets()) {
    absl::StrAppendFormat(&text, "  on %-13s %s%s\n", Printable(set.name()), LossText(set.loss()),
                          HeadsText(set.heads()));
  }
  if (summary.unigram_loss) {
    absl::StrAppend(&text, "  unigram model    ", LossText(*summary.unigram_loss),
                    " nats per token on the same data: what token frequencies alone give\n");
  }
  if (progress.step() > 0) {
    absl::StrAppend(&text, "  throughput       ", HumanCount(progress.tokens_per_second()), " ",
                    SampleUnit(job.spec()), "s/s, goodput ",
                    absl::StrFormat("%.0f%%", 100 * Goodput(job, absl::Now())), "\n");
  }
  if (progress.planned_bytes() > 0) {
    absl::StrAppend(&text, "  memory           ", HumanBytes(progress.planned_bytes()),
                    " planned, ", HumanBytes(progress.allocated_bytes()), " used per rank\n");
  }
  if (summary.checkpoints) {
    absl::StrAppend(&text, "  checkpoints     ");
    for (const v1::Checkpoint& checkpoint : *summary.checkpoints) {
      absl::StrAppend(&text, " ", checkpoint.name(), "@", checkpoint.step());
    }
    absl::StrAppend(&text, summary.checkpoints->empty() ? " none\n" : "\n");
  }
  if (const int64_t saved = SavedStep(summary); saved < progress.step()) {
    const bool one = saved + 1 == progress.step();
    absl::StrAppend(&text, "  not saved        ", one ? "step " : "steps ", saved + 1,
                    one ? "" : absl::StrCat(" to ", progress.step()), ": to be made again\n");
  }
  if (!summary.sample.empty()) {
    absl::StrAppend(&text, "\nsample:\n");
    for (absl::string_view line : absl::StrSplit(absl::StripSuffix(summary.sample, "\n"), '\n')) {
      absl::StrAppend(&text, "  ", Printable(line), "\n");
    }
  }
  return text;
}

// Rank 0 tells of its first step before all ranks have done it, with which the job is RUNNING.
bool ShowsSteps(const v1::Job& job) { return job.state() != v1::JOB_STATE_STARTING; }

std::string OutputText(const v1::LogLine& line) {
  if (line.dropped_lines() > 0) return Printable(line.text());
  return absl::StrCat("rank ", line.rank(), " | ", Printable(line.text()));
}

class PlainReport : public RunReport {
 public:
  void Started(const v1::Job& job, const std::string& how, const std::string& address) override {
    step_ = job.progress().step();
    validation_step_ = job.progress().validation_step();
    Print(StartedText(job, how, address) + "\n");
  }
  void Changed(const v1::Job& job, absl::Time now) override {
    const std::string state = StateLine(job);
    // Waiting for the workers to come up is not worth a line, unless it goes on.
    const bool starting = job.state() == v1::JOB_STATE_QUEUED && now - begun_ < kStartUp;
    if (state != state_ && !starting) {
      Print(absl::StrCat(job.name(), " ", state, "\n"));
      state_ = state;
    }
    const v1::Progress& progress = job.progress();
    const std::string& problem = progress.checkpoint_problem();
    if (WithoutStep(problem) != problem_ || now - told_ >= kSameProblem) {
      problem_ = std::string(WithoutStep(problem));
      told_ = now;
      if (!problem.empty()) Print(problem + "\n");
    }
    if (progress.step() == step_ || !ShowsSteps(job)) return;
    const bool first = printed_ == absl::InfinitePast();
    const bool validated = progress.validation_step() != validation_step_;
    const bool last = progress.step() == job.spec().train().steps();
    if (!first && !validated && !last && now - printed_ < kPlainInterval) return;
    Print(PlainProgressLine(job, now) + MemoryText(progress) + "\n");
    printed_ = now;
    step_ = progress.step();
    validation_step_ = progress.validation_step();
  }
  void Output(const v1::LogLine& line) override { Print(OutputText(line) + "\n"); }
  void Restarting(const ProcessEvent& event) override { Print(RestartText(event) + "\n"); }
  void Note(absl::string_view text) override { client::Note(text); }
  void Finished(const RunSummary& summary) override { Print(SummaryText(summary)); }

 private:
  const absl::Time begun_ = absl::Now();
  std::string state_;
  std::string problem_;
  absl::Time told_ = absl::InfinitePast();  // of it
  int64_t step_ = 0;
  int64_t validation_step_ = 0;
  absl::Time printed_ = absl::InfinitePast();
};

// A few lines at the bottom of the terminal, drawn over again; other text scrolls above them.
class LiveReport : public RunReport {
 public:
  ~LiveReport() override { Erase(); }
  void Started(const v1::Job& job, const std::string& how, const std::string& address) override {
    Above(StartedText(job, how, address));
  }
  void Changed(const v1::Job& job, absl::Time now) override {
    const bool state_changed = job.state() != state_;
    // Waiting for the workers to come up is not worth showing, unless it goes on.
    if (job.state() == v1::JOB_STATE_QUEUED && now - begun_ < kStartUp) return;
    if (!state_changed && now - drawn_at_ < kRedrawInterval) return;
    state_ = job.state();
    drawn_at_ = now;
    Erase();
    std::string frame;
    const std::vector<std::string> lines = LiveProgressLines(job, now, Columns());
    for (const std::string& line : lines) absl::StrAppend(&frame, line, "\n");
    drawn_ = lines.size();
    Print(frame);
  }
  void Output(const v1::LogLine& line) override { Above(OutputText(line)); }
  void Restarting(const ProcessEvent& event) override { Above(RestartText(event)); }
  void Note(absl::string_view text) override {
    Erase();
    client::Note(text);
  }
  void Finished(const RunSummary& summary) override {
    Changed(summary.job, absl::InfiniteFuture());
    drawn_ = 0;  // stays on the screen
    Print(SummaryText(summary));
  }

 private:
  static size_t Columns() {
    winsize size{};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
    return std::max<size_t>(size.ws_col, 20) - 1;
  }
  void Erase() {
    EraseLines(drawn_);
    drawn_ = 0;
  }
  void Above(const std::string& line) {
    Erase();
    Print(line + "\n");
  }

  const absl::Time begun_ = absl::Now();
  v1::JobState state_ = v1::JOB_STATE_UNSPECIFIED;
  absl::Time drawn_at_ = absl::InfinitePast();
  size_t drawn_ = 0;
};

class JsonReport : public RunReport {
 public:
  void Started(const v1::Job& job, const std::string& how, const std::string& address) override {
    Emit({{"event", "started"},
          {"job", job.name()},
          {"name", job.spec().name()},
          {"how", how},
          {"checkpoint", job.latest_checkpoint()},
          {"step", job.progress().step()},
          {"steps", job.spec().train().steps()},
          {"coordinator", address}});
  }
  void Changed(const v1::Job& job, absl::Time now) override {
    if (job.state() != state_ || job.reason_detail() != detail_) {
      state_ = job.state();
      detail_ = job.reason_detail();
      Emit({{"event", "state"},
            {"job", job.name()},
            {"state", StateName(state_)},
            {"detail", detail_},
            {"attempt", job.attempts()},
            {"generation", job.generation()}});
    }
    const v1::Progress& progress = job.progress();
    if (progress.checkpoint_problem() != problem_) {
      problem_ = progress.checkpoint_problem();
      Emit({{"event", "checkpoint_problem"}, {"message", problem_}});
    }
    if (progress.step() != step_ && ShowsSteps(job)) Progress(progress);
    if (Validated(progress) && progress.validation_step() != validation_step_) {
      validation_step_ = progress.validation_step();
      Emit({{"event", "validation"},
            {"step", validation_step_},
            {"validation_loss", Number(progress.validation_loss())}});
    }
    if (!job.latest_checkpoint().empty() && job.latest_checkpoint() != checkpoint_) {
      checkpoint_ = job.latest_checkpoint();
      Emit({{"event", "checkpoint"},
            {"checkpoint", checkpoint_},
            {"hold_seconds", Number(progress.checkpoint_hold_seconds())}});
    }
  }
  void Output(const v1::LogLine& line) override {
    Emit({{"event", "output"}, {"rank", line.rank()}, {"text", line.text()}});
  }
  void Restarting(const ProcessEvent& event) override {
    Emit({{"event", "restart"}, {"process", event.name}, {"end", event.end.ToString()}});
  }
  void Note(absl::string_view text) override {
    Emit({{"event", "note"}, {"message", std::string(text)}});
  }
  void Finished(const RunSummary& summary) override {
    if (!summary.sample.empty()) Emit({{"event", "sample"}, {"text", summary.sample}});
    Emit(FinishedJson(summary));
  }

 private:
  void Progress(const v1::Progress& progress) {
    step_ = progress.step();
    Json event = {{"event", "progress"},
                  {"step", step_},
                  {"train_loss", Number(progress.train_loss())},
                  {"lr", progress.lr()},
                  {"grad_norm", Number(progress.grad_norm())},
                  {"tokens_per_second", progress.tokens_per_second()},
                  {"step_seconds", progress.step_seconds()},
                  {"mfu", progress.mfu()},
                  {"skipped_steps", progress.skipped_steps()},
                  {"planned_bytes", progress.planned_bytes()},
                  {"allocated_bytes", progress.allocated_bytes()}};
    if (progress.loss_scale() > 0) event["loss_scale"] = progress.loss_scale();
    for (const v1::LossReport& head : progress.train_heads()) {
      event["train_heads"][head.name()] = Number(head.loss());
    }
    Emit(event);
  }
  static void Emit(const Json& event) {
    Print(event.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  }

  v1::JobState state_ = v1::JOB_STATE_UNSPECIFIED;
  std::string detail_;
  std::string problem_;
  int64_t step_ = 0;
  int64_t validation_step_ = 0;
  std::string checkpoint_;
};

}  // namespace

double Goodput(const v1::Job& job, absl::Time now) {
  const absl::Time begin = TimeOf(job.create_time());
  const absl::Time end = job.has_end_time() ? TimeOf(job.end_time()) : now;
  if (begin == absl::InfinitePast() || end <= begin) return 0;
  return std::clamp(job.productive_seconds() / absl::ToDoubleSeconds(end - begin), 0.0, 1.0);
}

Json FinishedJson(const RunSummary& summary) {
  const v1::Job& job = summary.job;
  const v1::Progress& progress = job.progress();
  const absl::Time first = TimeOf(progress.first_step_time());
  const bool stepped = first != absl::InfinitePast() && first >= summary.run_started;
  Json checkpoints = Json::array();
  for (const v1::Checkpoint& checkpoint :
       summary.checkpoints.value_or(std::vector<v1::Checkpoint>())) {
    checkpoints.push_back({{"name", checkpoint.name()},
                           {"step", checkpoint.step()},
                           {"bytes", checkpoint.bytes()},
                           {"damaged", checkpoint.damaged()}});
  }
  return {{"event", "finished"},
          {"job", job.name()},
          {"state", StateName(job.state())},
          {"step", progress.step()},
          {"saved_step", SavedStep(summary)},
          {"train_loss", Number(progress.train_loss())},
          {"validation_loss", Validated(progress) ? Number(progress.validation_loss()) : nullptr},
          {"unigram_loss", summary.unigram_loss ? Number(*summary.unigram_loss) : nullptr},
          {"tokens_per_second", progress.tokens_per_second()},
          {"first_step_seconds",
           stepped ? Json(absl::ToDoubleSeconds(first - summary.run_started)) : Json(nullptr)},
          {"goodput", Goodput(job, absl::Now())},
          {"planned_bytes", progress.planned_bytes()},
          {"allocated_bytes", progress.allocated_bytes()},
          {"peak_resident_bytes", progress.peak_resident_bytes()},
          {"required_bytes", progress.required_bytes()},
          {"attempts", job.attempts()},
          {"failure", job.state() == v1::JOB_STATE_FAILED ? Json(job.reason_detail()) : nullptr},
          {"checkpoints", std::move(checkpoints)}};
}

std::unique_ptr<RunReport> MakeRunReport(ReportKind kind) {
  switch (kind) {
    case ReportKind::kLive:
      return std::make_unique<LiveReport>();
    case ReportKind::kPlain:
      return std::make_unique<PlainReport>();
    case ReportKind::kJson:
      break;
  }
  return std::make_unique<JsonReport>();
}

}  // namespace milepost::client
