#include "client/cli/progress_view.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/format.h"
#include "common/spec/model_sizes.h"
#include "common/spec/to_yaml.h"
#include "milepost/v1/job.pb.h"

namespace milepost::client {
namespace {

constexpr absl::Duration kPaceNeeds = absl::Seconds(3);

std::string ValidationText(const v1::Progress& progress) {
  if (progress.validation_step() == 0 || std::isnan(progress.validation_loss())) return "";
  return absl::StrFormat("  validation %s @%d", LossText(progress.validation_loss()),
                         progress.validation_step());
}

std::string SkippedText(const v1::Progress& progress) {
  if (progress.skipped_steps() == 0) return "";
  return absl::StrFormat("  skipped %d", progress.skipped_steps());
}

std::string LossScaleText(const v1::Progress& progress) {
  if (progress.loss_scale() == 0) return "";
  return absl::StrFormat("  loss scale %g%s", progress.loss_scale(),
                         progress.loss_scale_at_floor() ? " (its floor)" : "");
}

std::string RestartText(const v1::Job& job) {
  return job.attempts() > 1 ? absl::StrCat("  attempt ", job.attempts()) : "";
}

std::string EtaText(const v1::Job& job, absl::Time now) {
  const absl::Duration left = TimeLeft(job, now);
  const bool unknown = left == absl::InfiniteDuration();
  return unknown || left == absl::ZeroDuration() ? "" : absl::StrCat("  ETA ", HumanDuration(left));
}

std::string StateName(const v1::Job& job) {
  const auto* value = v1::JobState_descriptor()->FindValueByNumber(job.state());
  return value == nullptr ? absl::StrCat(job.state()) : EnumYamlName(*value);
}

}  // namespace

std::string HeadsText(const google::protobuf::RepeatedPtrField<v1::LossReport>& heads) {
  if (heads.size() < 2) return "";
  std::string text;
  for (const v1::LossReport& head : heads) {
    absl::StrAppend(&text, text.empty() ? " (" : ", ", head.name(), " ", LossText(head.loss()));
  }
  return text + ")";
}

std::string MemoryText(const v1::Progress& progress) {
  if (progress.planned_bytes() == 0) return "";
  return absl::StrFormat("  memory %s planned, %s used per rank",
                         HumanBytes(progress.planned_bytes()),
                         HumanBytes(progress.allocated_bytes()));
}

std::string StepsText(const v1::Job& job) {
  const v1::Progress& progress = job.progress();
  if (!job.spec().has_script()) {
    return absl::StrCat(progress.step(), "/", job.spec().train().steps());
  }
  const int64_t total = progress.total_steps();
  if (progress.step() == 0 && total == 0) return "-";
  return absl::StrCat(progress.step(), "/", total == 0 ? "?" : absl::StrCat(total));
}

int64_t TokensPerStep(const v1::Job& job) {
  return job.spec().train().batch().global() * job.spec().data().sequence_length();
}

absl::Duration TimeLeft(const v1::Job& job, absl::Time now) {
  const v1::Progress& progress = job.progress();
  if (job.spec().has_script()) {
    if (progress.remaining_seconds() <= 0) return absl::InfiniteDuration();
    return std::max(absl::ZeroDuration(),
                    TimeOf(progress.time()) + absl::Seconds(progress.remaining_seconds()) - now);
  }
  const int64_t left = job.spec().train().steps() - progress.step();
  if (left <= 0) return absl::ZeroDuration();
  const absl::Time first = TimeOf(progress.first_step_time());
  const int64_t done = progress.step() - progress.start_step() - 1;  // since `first`
  if (first != absl::InfinitePast() && done > 0 && now - first >= kPaceNeeds) {
    return (now - first) / done * left;
  }
  if (progress.tokens_per_second() <= 0) return absl::InfiniteDuration();
  return absl::Seconds(left * TokensPerStep(job) / progress.tokens_per_second());
}

const char* SampleUnit(const v1::JobSpec& spec) {
  return SizesOf(spec.model()).images ? "image" : "token";
}

std::string StateLine(const v1::Job& job) {
  const std::string state = StateName(job);
  return job.reason_detail().empty() ? state : absl::StrCat(state, ": ", job.reason_detail());
}

std::string PlainProgressLine(const v1::Job& job, absl::Time now) {
  const v1::Progress& progress = job.progress();
  if (job.spec().has_script()) {
    return absl::StrCat("step ", StepsText(job), "  loss ", LossText(progress.train_loss()),
                        ValidationText(progress), EtaText(job, now), RestartText(job));
  }
  return absl::StrFormat("step %d/%d  loss %s%s%s  %s %ss/s%s%s%s", progress.step(),
                         job.spec().train().steps(), LossText(progress.train_loss()),
                         HeadsText(progress.train_heads()), ValidationText(progress),
                         HumanCount(progress.tokens_per_second()), SampleUnit(job.spec()),
                         EtaText(job, now), SkippedText(progress), RestartText(job));
}

std::string ProgressBar(double share, size_t width) {
  const size_t inside = std::max<size_t>(width, 3) - 2;
  const double clamped = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0.0;
  const auto full = static_cast<size_t>(clamped * inside);
  std::string bar = "[" + std::string(full, '=');
  if (full < inside) bar += '>' + std::string(inside - full - 1, ' ');
  return bar + "]";
}

// Of a script's steps no more is known than it says.
std::vector<std::string> ScriptLines(const v1::Job& job, absl::Time now) {
  const v1::Progress& progress = job.progress();
  std::vector<std::string> lines = {absl::StrCat(job.name(), " ", StateName(job))};
  if (progress.step() > 0) {
    absl::StrAppend(&lines[0], "  ", PlainProgressLine(job, now));
  }
  if (!job.reason_detail().empty()) lines.push_back("  " + job.reason_detail());
  return lines;
}

std::vector<std::string> LiveProgressLines(const v1::Job& job, absl::Time now, size_t columns) {
  const v1::Progress& progress = job.progress();
  if (job.spec().has_script()) return ScriptLines(job, now);
  const int64_t steps = std::max<int64_t>(job.spec().train().steps(), 1);
  const double share = static_cast<double>(progress.step()) / steps;
  const std::string head =
      absl::StrFormat("%s %s  step %d/%d  ", job.name(), StateName(job), progress.step(), steps);
  const std::string tail = absl::StrFormat("  %3.0f%%%s", share * 100, EtaText(job, now));
  const size_t used = ColumnsOf(head) + ColumnsOf(tail);
  const size_t bar = columns > used + 5 ? std::min<size_t>(columns - used, 40) : 0;
  std::vector<std::string> lines;
  lines.push_back(head + (bar > 0 ? ProgressBar(share, bar) : "") + tail);
  if (!job.reason_detail().empty()) lines.push_back("  " + job.reason_detail());
  if (progress.step() > 0) {
    lines.push_back(absl::StrFormat(
        "  loss %s%s%s  lr %s  gradient norm %.2f%s  %s %ss/s%s%s", LossText(progress.train_loss()),
        HeadsText(progress.train_heads()), ValidationText(progress), RateText(progress.lr()),
        progress.grad_norm(), LossScaleText(progress), HumanCount(progress.tokens_per_second()),
        SampleUnit(job.spec()), SkippedText(progress), RestartText(job)));
    lines.push_back(absl::StrCat(MemoryText(progress), "  checkpoint ",
                                 job.latest_checkpoint().empty() ? "-" : job.latest_checkpoint()));
  }
  if (!progress.checkpoint_problem().empty()) lines.push_back("  " + progress.checkpoint_problem());
  for (std::string& line : lines) line = FitTo(line, columns);
  return lines;
}

}  // namespace milepost::client
