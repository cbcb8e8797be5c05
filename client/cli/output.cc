#include "client/cli/output.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/format.h"
#include "client/cli/progress_view.h"
#include "client/cli/table.h"
#include "client/cli/worker_view.h"
#include "common/exit_codes.h"
#include "common/spec/labels.h"
#include "common/spec/sizes.h"
#include "common/spec/to_yaml.h"
#include "milepost/v1/checkpoint.pb.h"
#include "milepost/v1/job.pb.h"
#include "milepost/v1/template.pb.h"
#include "milepost/v1/worker.pb.h"

namespace milepost::client {
namespace {

using Json = nlohmann::ordered_json;

std::string JsonText(const Json& json, OutputFormat format) {
  if (format == OutputFormat::kYaml) return JsonToYaml(json);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

template <typename Item, typename Row>
std::string RenderList(const std::vector<Item>& items, OutputFormat format,
                       std::vector<std::string> header, const Row& row) {
  std::string text;
  if (format == OutputFormat::kName) {
    for (const Item& item : items) absl::StrAppend(&text, Printable(item.name()), "\n");
    return text;
  }
  if (format == OutputFormat::kJson || format == OutputFormat::kYaml) {
    return RenderMessages(items, format);
  }
  Table table(std::move(header));
  for (const Item& item : items) table.Add(row(item));
  return table.ToString();
}

template <typename Enum>
std::string EnumText(Enum value) {
  const auto* descriptor = google::protobuf::GetEnumDescriptor<Enum>()->FindValueByNumber(value);
  if (descriptor == nullptr) return absl::StrCat(static_cast<int>(value));
  return descriptor->number() == 0 ? "-" : EnumYamlName(*descriptor);
}

std::string ShortReason(const v1::Job& job) {
  return job.reason() == v1::JOB_REASON_UNSPECIFIED ? "-" : EnumText(job.reason());
}

std::string QueueOf(const v1::Job& job) {
  const std::string& queue = job.spec().scheduling().queue();
  return queue.empty() ? "default" : queue;
}

// "  key:          value\n"
void Line(std::string* text, absl::string_view key, absl::string_view value) {
  absl::StrAppend(text, absl::StrFormat("%-14s%s\n", absl::StrCat(key, ":"), Printable(value)));
}

std::string StepTimeText(const v1::Progress& p) {
  const double hidden = std::max(0.0, p.communication_seconds() - p.communication_wait_seconds());
  return absl::StrFormat(
      "%.1f ms: forward %.1f, backward %.1f, update %.1f, waiting for data %.1f, for other ranks "
      "%.1f (%.1f of communication hidden); last checkpoint held it %.1f ms",
      p.step_seconds() * 1e3, p.forward_seconds() * 1e3, p.backward_seconds() * 1e3,
      p.update_seconds() * 1e3, p.data_wait_seconds() * 1e3, p.communication_wait_seconds() * 1e3,
      hidden * 1e3, p.checkpoint_hold_seconds() * 1e3);
}

std::string DataText(const v1::DataReport& data) {
  const auto samples = static_cast<double>(data.samples());
  std::string text = absl::StrFormat(
      "%d samples on one rank, %.2f ms of a thread and %s of file each", data.samples(),
      data.busy_seconds() / samples * 1e3, HumanBytes(data.bytes_read() / data.samples()));
  if (data.damaged_samples() == 0) return text;
  return absl::StrCat(text, "; ", data.damaged_samples(),
                      " damaged ones replaced, the first: ", data.first_damage());
}

std::string MetricsText(const v1::Progress& progress) {
  const std::map<std::string, double> sorted(progress.metrics().begin(), progress.metrics().end());
  return absl::StrJoin(sorted, ", ", [](std::string* out, const auto& metric) {
    absl::StrAppend(out, metric.first, " ", absl::StrFormat("%.6g", metric.second));
  });
}

// `set`: of a further one "code, ".
void AppendValidation(const v1::Progress& progress, const std::string& set,
                      const google::protobuf::RepeatedPtrField<v1::LossReport>& heads,
                      std::string* text) {
  for (const v1::LossReport& head : heads) {
    const std::string what =
        absl::StrFormat("step %d, %s%s", progress.validation_step(), set, head.name());
    if (std::isnan(head.loss())) {
      Line(text, "Validation", what + ": not one valid target");
      continue;
    }
    Line(text, "Validation",
         absl::StrFormat("%s: loss %s, perplexity %.4g, accuracy %.2f%%", what,
                         LossText(head.loss()), std::exp(head.loss()), head.accuracy() * 100));
  }
}

void AppendProgress(const v1::Job& job, absl::Time now, std::string* text) {
  const v1::Progress& progress = job.progress();
  if (progress.step() == 0) return;
  Line(text, "Progress", PlainProgressLine(job, now));
  if (job.spec().has_script()) {
    if (!progress.metrics().empty()) Line(text, "Metrics", MetricsText(progress));
    return;
  }
  if (progress.has_data()) Line(text, "Data", DataText(progress.data()));
  Line(text, "Memory",
       absl::StrFormat(
           "%s planned, %s used per rank; %s resident in all at the peak%s",
           HumanBytes(progress.planned_bytes()), HumanBytes(progress.allocated_bytes()),
           HumanBytes(progress.peak_resident_bytes()),
           progress.required_bytes() > progress.planned_bytes()
               ? absl::StrCat(", a checkpoint's copy of ",
                              HumanBytes(progress.required_bytes() - progress.planned_bytes()),
                              " among it")
               : ""));
  if (!progress.checkpoint_problem().empty()) {
    Line(text, "Unsaved", Printable(progress.checkpoint_problem()));
  }
  Line(text, "Step time", StepTimeText(progress));
  if (progress.model_flops_per_second() > 0) {
    Line(text, "Compute",
         absl::StrFormat("%.3g TFLOP/s per rank, %.0f%% MFU",
                         progress.model_flops_per_second() * 1e-12, progress.mfu() * 100));
  }
  for (const v1::LossReport& head : progress.train_heads()) {
    Line(text, "Training", absl::StrFormat("%s: loss %s", head.name(), LossText(head.loss())));
  }
  AppendValidation(progress, "", progress.validation_heads(), text);
  for (const v1::ValidationSetReport& set : progress.validation_sets()) {
    AppendValidation(progress, absl::StrCat(Printable(set.name()), ", "), set.heads(), text);
  }
}

// "4", and of an elastic job "2/1-8": those that run, at least, at most.
std::string RanksText(const v1::Job& job) {
  const v1::ResourceSpec& resources = job.spec().resources();
  if (!resources.has_min_ranks() && !resources.has_max_ranks()) {
    return absl::StrCat(resources.ranks());
  }
  return absl::StrCat(job.placements_size(), "/", LeastRanks(resources), "-", MostRanks(resources));
}

// "a=1,b=2"
std::string LabelsText(const v1::Job& job) {
  const std::map<std::string, std::string> sorted(job.labels().begin(), job.labels().end());
  return absl::StrJoin(sorted, ",", absl::PairFormatter("="));
}

// What an array varied, or a fork changed: "train.seed=2 train.optimizer.lr=1e-4".
std::string OverridesText(const v1::Job& job) {
  const auto& overrides = job.has_array() ? job.array().overrides() : job.forked_from().overrides();
  if (overrides.empty()) return "-";
  return absl::StrJoin(overrides, " ", [](std::string* out, const v1::SpecOverride& one) {
    absl::StrAppend(out, one.path(), "=", one.value());
  });
}

void AppendOverrides(const google::protobuf::RepeatedPtrField<v1::SpecOverride>& overrides,
                     std::string* text) {
  for (const v1::SpecOverride& one : overrides) {
    Line(text, "  Set", absl::StrCat(one.path(), "=", one.value()));
  }
}

// What it belongs to.
void AppendKinship(const v1::Job& job, std::string* text) {
  if (!job.labels().empty()) Line(text, "Labels", LabelsText(job));
  if (job.has_forked_from()) {
    const v1::ForkOrigin& origin = job.forked_from();
    Line(
        text, "Forked from",
        absl::StrCat("step ", origin.step(), " of ", origin.job(), " (", origin.checkpoint(), ")"));
    AppendOverrides(origin.overrides(), text);
  }
  if (!job.has_array()) return;
  const v1::ArrayMembership& array = job.array();
  Line(text, "Array",
       absl::StrCat(
           array.name(), ", number ", array.index() + 1, " of ", array.size(),
           array.max_parallel() > 0 ? absl::StrCat(", ", array.max_parallel(), " at a time") : ""));
  AppendOverrides(array.overrides(), text);
}

constexpr int kShownEvents = 10;

void AppendEvents(const v1::Job& job, std::string* text) {
  const int first = std::max(0, job.events_size() - kShownEvents);
  for (int i = first; i < job.events_size(); ++i) {
    const v1::JobEvent& event = job.events(i);
    std::string line = absl::StrCat(TimeText(event.time()), "  ", EnumText(event.state()));
    if (event.reason() != v1::JOB_REASON_UNSPECIFIED) {
      absl::StrAppend(&line, " (", EnumText(event.reason()), ")");
    }
    if (event.ranks() > 0) {
      absl::StrAppend(&line, ", ", event.ranks(), " ranks, generation ", event.generation());
    }
    if (!event.detail().empty()) absl::StrAppend(&line, ": ", Printable(event.detail()));
    Line(text, "Event", line);
  }
}

void AppendStragglers(const v1::Job& job, std::string* text) {
  for (const v1::Straggler& straggler : job.stragglers()) {
    Line(text, "Straggler",
         absl::StrFormat("rank %d on %s needs %.2f times as long as the others, since %s",
                         straggler.rank(), straggler.worker(), straggler.ratio(),
                         TimeText(straggler.since())));
  }
}

void AppendFailure(const v1::Failure& failure, std::string* text) {
  Line(text, "Failure",
       absl::StrFormat("%s, rank %d on %s, attempt of generation %d, %s",
                       EnumText(failure.class_()), failure.rank(), failure.worker(),
                       failure.generation(), TimeText(failure.time())));
  Line(text, "Message", failure.message());
  for (const std::string& line : failure.last_lines()) {
    absl::StrAppend(text, "    | ", Printable(line), "\n");
  }
}

// What a rank has told of itself.
std::string StatsText(const v1::RankStats& stats) {
  std::string text = absl::StrCat(HumanBytes(stats.planned_bytes()), " planned, ",
                                  HumanBytes(stats.allocated_bytes()), " allocated");
  if (stats.peak_resident_bytes() > 0) {
    absl::StrAppend(&text, ", ", HumanBytes(stats.peak_resident_bytes()), " resident");
  }
  if (stats.own_seconds() > 0) {
    absl::StrAppendFormat(&text, "; %.1f ms of each step are its own", stats.own_seconds() * 1e3);
  }
  return text;
}

// Where each rank runs, and what it has told of itself.
void AppendRanks(const v1::Job& job, std::string* text) {
  std::map<int, const v1::RankStats*> told;
  for (const v1::RankStats& stats : job.rank_stats()) told[stats.rank()] = &stats;
  for (const v1::RankPlacement& placement : job.placements()) {
    std::string line = absl::StrFormat("%s slot %d", placement.worker(), placement.slot());
    const auto found = told.find(placement.rank());
    if (found != told.end()) absl::StrAppend(&line, ": ", StatsText(*found->second));
    Line(text, absl::StrCat("Rank ", placement.rank()), line);
  }
}

}  // namespace

std::string RenderJobs(const std::vector<v1::Job>& jobs, OutputFormat format, absl::Time now) {
  const bool wide = format == OutputFormat::kWide;
  std::vector<std::string> header = {"NAME",  "SPEC", "STATE", "REASON",   "QUEUE", "PRIO",
                                     "RANKS", "STEP", "LOSS",  "RESTARTS", "AGE"};
  if (wide) {
    header.insert(header.end(),
                  {"VALIDATION", "TOKENS/S", "CHECKPOINT", "LABELS", "SET", "DETAIL"});
  }
  return RenderList(jobs, format, header, [&](const v1::Job& job) {
    const v1::Progress& progress = job.progress();
    const bool stepped = progress.step() > 0;
    std::vector<std::string> row = {job.name(),
                                    job.spec().name(),
                                    EnumText(job.state()),
                                    ShortReason(job),
                                    QueueOf(job),
                                    absl::StrCat(job.spec().scheduling().priority()),
                                    RanksText(job),
                                    StepsText(job),
                                    stepped ? LossText(progress.train_loss()) : "-",
                                    absl::StrCat(std::max(job.attempts() - 1, 0)),
                                    AgeText(job.create_time(), now)};
    if (wide) {
      const bool validated = progress.validation_step() > 0;
      row.push_back(validated ? LossText(progress.validation_loss()) : "-");
      row.push_back(stepped ? HumanCount(progress.tokens_per_second()) : "-");
      row.push_back(job.latest_checkpoint().empty() ? "-" : job.latest_checkpoint());
      row.push_back(job.labels().empty() ? "-" : LabelsText(job));
      row.push_back(OverridesText(job));
      row.push_back(job.reason_detail().empty() ? "-" : job.reason_detail());
    }
    return row;
  });
}

// Of a deleted one also until when it can be restored.
static std::string CheckpointStateText(const v1::Checkpoint& checkpoint, absl::Time now) {
  if (!checkpoint.has_delete_time()) return checkpoint.damaged() ? "DAMAGED" : "COMMITTED";
  return absl::StrCat(checkpoint.damaged() ? "DELETED,DAMAGED" : "DELETED", " for ",
                      AgeText(checkpoint.delete_time(), now), ", kept ",
                      HumanDuration(TimeOf(checkpoint.purge_time()) - now), " more");
}

std::string RenderCheckpoints(const std::vector<v1::Checkpoint>& checkpoints, OutputFormat format,
                              absl::Time now) {
  const bool wide = format == OutputFormat::kWide;
  std::vector<std::string> header = {"NAME", "JOB", "STEP", "SIZE", "STATE", "PINNED", "AGE"};
  if (wide) header.insert(header.end(), {"VALIDATION", "GENERATION", "CHUNKS"});
  return RenderList(checkpoints, format, header, [&](const v1::Checkpoint& checkpoint) {
    std::vector<std::string> row = {checkpoint.name(),
                                    checkpoint.job(),
                                    absl::StrCat(checkpoint.step()),
                                    HumanBytes(checkpoint.bytes()),
                                    CheckpointStateText(checkpoint, now),
                                    checkpoint.pinned() ? "yes" : "no",
                                    AgeText(checkpoint.create_time(), now)};
    if (wide) {
      row.push_back(checkpoint.has_validation_loss()
                        ? absl::StrFormat("%.4f", checkpoint.validation_loss())
                        : "-");
      row.push_back(absl::StrCat(checkpoint.generation()));
      row.push_back(absl::StrCat(checkpoint.chunks()));
    }
    return row;
  });
}

std::string RenderTemplates(const std::vector<v1::Template>& templates, OutputFormat format,
                            absl::Time now) {
  const auto row = [&](const v1::Template& one) -> std::vector<std::string> {
    return {one.name(), one.etag(), AgeText(one.create_time(), now),
            AgeText(one.update_time(), now)};
  };
  return RenderList(templates, format, {"NAME", "ETAG", "AGE", "CHANGED"}, row);
}

std::string RenderWorkers(const std::vector<v1::Worker>& workers, OutputFormat format,
                          absl::Time now) {
  const bool wide = format == OutputFormat::kWide;
  std::vector<std::string> header = {"NAME", "STATE",  "HOST",   "SLOTS",
                                     "BUSY", "DEVICE", "MEMORY", "CONNECTED"};
  if (wide) header.insert(header.end(), {"POOL", "INCARNATION", "VERSION", "DRIVER"});
  return RenderList(workers, format, header, [&](const v1::Worker& worker) {
    std::vector<std::string> row = {
        worker.name(),
        absl::StrCat(EnumText(worker.state()), worker.has_exclusion() ? ",EXCLUDED" : ""),
        worker.host(),
        absl::StrCat(worker.slots_size()),
        absl::StrCat(worker.assignments_size()),
        DevicesText(worker),
        SlotMemoryText(worker),
        worker.state() == v1::WORKER_STATE_DOWN
            ? absl::StrCat("gone ", AgeText(worker.lease_expire_time(), now))
            : AgeText(worker.connect_time(), now)};
    if (wide) {
      const auto pool = worker.labels().find(kPoolLabel);
      row.push_back(pool == worker.labels().end() || pool->second.empty() ? "-" : pool->second);
      row.push_back(absl::StrCat(worker.incarnation()));
      row.push_back(worker.version().empty() ? "-" : worker.version());
      row.push_back(worker.driver().empty() ? "-" : worker.driver());
    }
    return row;
  });
}

std::string RenderMessage(const google::protobuf::Message& message, OutputFormat format) {
  return JsonText(MessageToJson(message, Absent::kPrintDefault), format);
}

std::string RenderMessages(const std::vector<const google::protobuf::Message*>& messages,
                           OutputFormat format) {
  Json list = Json::array();
  for (const google::protobuf::Message* message : messages) {
    list.push_back(MessageToJson(*message, Absent::kPrintDefault));
  }
  return JsonText(list, format);
}

std::string ChoiceText(const v1::Choice& choice) {
  return absl::StrCat(choice.field(), ": ", choice.value(), " (", choice.reason(), ")");
}

std::string RenderJob(const v1::Job& job, OutputFormat format, absl::Time now) {
  if (format == OutputFormat::kName) return job.name() + "\n";
  if (format == OutputFormat::kJson || format == OutputFormat::kYaml) {
    return RenderMessage(job, format);
  }
  std::string text;
  Line(&text, "Name", job.name());
  Line(&text, "Spec", job.spec().name());
  AppendKinship(job, &text);
  Line(&text, "State", StateLine(job));
  if (job.reason() != v1::JOB_REASON_UNSPECIFIED) Line(&text, "Reason", EnumText(job.reason()));
  Line(&text, "Created",
       absl::StrCat(TimeText(job.create_time()), " (", AgeText(job.create_time(), now), " ago)"));
  if (job.has_start_time()) Line(&text, "Started", TimeText(job.start_time()));
  if (job.has_end_time()) Line(&text, "Ended", TimeText(job.end_time()));
  if (job.state() == v1::JOB_STATE_RECOVERING && job.has_next_attempt_time()) {
    Line(&text, "Next attempt", TimeText(job.next_attempt_time()));
  }
  Line(&text, "Queue",
       absl::StrCat(QueueOf(job), ", priority ", job.spec().scheduling().priority(),
                    job.queue_position() > 0
                        ? absl::StrCat(", place ", job.queue_position(), " of those that wait")
                        : ""));
  Line(&text, "Attempts",
       absl::StrFormat("%d, failures %d of at most %d", job.attempts(), job.failures(),
                       job.spec().restart().max_failures()));
  const v1::ResourceSpec& resources = job.spec().resources();
  if (resources.has_min_ranks() || resources.has_max_ranks()) {
    Line(&text, "Ranks",
         absl::StrFormat("%d now, %d to %d", job.placements_size(), LeastRanks(resources),
                         MostRanks(resources)));
  }
  if (!job.progress().restored_from().empty()) {
    Line(&text, "Began at",
         absl::StrFormat("step %d, restored from %s", job.progress().start_step(),
                         job.progress().restored_from()));
  }
  if (job.preemptions() > 0) Line(&text, "Preempted", absl::StrCat(job.preemptions(), " times"));
  for (const v1::Choice& choice : job.choices()) Line(&text, "Chosen", ChoiceText(choice));
  AppendRanks(job, &text);
  AppendProgress(job, now, &text);
  if (!job.latest_checkpoint().empty()) Line(&text, "Checkpoint", job.latest_checkpoint());
  AppendStragglers(job, &text);
  AppendEvents(job, &text);
  if (job.has_first_failure()) AppendFailure(job.first_failure(), &text);
  if (format == OutputFormat::kWide) {
    absl::StrAppend(&text, "\n", MessageToYaml(job.spec()));
  }
  return text;
}

void AppendExclusion(const v1::Exclusion& exclusion, std::string* text) {
  Line(text, "Excluded",
       absl::StrCat("since ", TimeText(exclusion.time()), ": ", exclusion.reason()));
  if (!exclusion.problem().empty()) {
    Line(text, "Health",
         absl::StrCat(exclusion.problem(), " (failed ", exclusion.failed_checks(),
                      exclusion.failed_checks() == 1 ? " check" : " checks", ", next one at ",
                      TimeText(exclusion.next_check_time()), ")"));
  }
}

std::string RenderWorker(const v1::Worker& worker, OutputFormat format, absl::Time now) {
  if (format == OutputFormat::kName) return worker.name() + "\n";
  if (format == OutputFormat::kJson || format == OutputFormat::kYaml) {
    return RenderMessage(worker, format);
  }
  std::string text;
  Line(&text, "Name", worker.name());
  Line(&text, "State", EnumText(worker.state()));
  Line(&text, "Host", worker.host());
  Line(&text, "Version", worker.version());
  Line(&text, "Incarnation", absl::StrCat(worker.incarnation()));
  Line(&text, "Connected", absl::StrCat(AgeText(worker.connect_time(), now), " ago"));
  if (worker.has_drain()) {
    Line(&text, "Drained",
         absl::StrCat(worker.drain().reason(), " (since ", TimeText(worker.drain().request_time()),
                      ", jobs leave at ", TimeText(worker.drain().deadline()), ")"));
  }
  if (worker.has_exclusion()) AppendExclusion(worker.exclusion(), &text);
  for (const auto& [key, value] :
       std::map<std::string, std::string>(worker.labels().begin(), worker.labels().end())) {
    Line(&text, "Label", absl::StrCat(key, "=", value));
  }
  if (!worker.driver().empty()) Line(&text, "Driver", worker.driver());
  if (!worker.device_note().empty()) Line(&text, "GPUs", worker.device_note());
  for (const v1::Slot& slot : worker.slots()) {
    std::string use = "free";
    for (const auto& assignment : worker.assignments()) {
      if (assignment.slot() != slot.index()) continue;
      use = absl::StrFormat("%s rank %d", assignment.job(), assignment.rank());
    }
    Line(&text, absl::StrCat("Slot ", slot.index()), absl::StrCat(SlotText(slot), ": ", use));
    for (const v1::DeviceFacts& facts : worker.devices()) {
      if (facts.slot() == slot.index()) Line(&text, "  GPU", FactsText(facts, now));
    }
  }
  return text;
}

namespace {

std::atomic<int> output_error = 0;  // errno of the first write to stdout that failed

}  // namespace

void Print(absl::string_view text) {
  const std::string safe = StdoutIsTerminal() ? ForTerminal(text) : std::string(text);
  const bool written = fwrite(safe.data(), 1, safe.size(), stdout) == safe.size();
  if (fflush(stdout) == 0 && written) return;
  int none = 0;
  output_error.compare_exchange_strong(none, errno);
}

bool OutputFailed() { return output_error != 0; }

int FinishOutput(int exit_code) {
  if (exit_code != kExitOk || output_error == 0) return exit_code;
  Note(absl::StrCat("milepost: the output could not be written: ", strerror(output_error)));
  return kExitError;
}

// Stays in stdio's buffer until what is drawn instead follows: no flicker.
void EraseLines(size_t lines) {
  if (lines == 0) return;
  const std::string sequence = absl::StrCat("\x1b[", lines, "A\r\x1b[J");
  fwrite(sequence.data(), 1, sequence.size(), stdout);
}

void Note(absl::string_view text) {
  fflush(stdout);  // what was written before it, and lines that were erased
  const std::string line = absl::StrCat(ForTerminal(text), "\n");
  fwrite(line.data(), 1, line.size(), stderr);
}

void Hint(absl::string_view text) { Note(absl::StrCat("hint: ", text)); }

int Fail(const absl::Status& status) {
  Note(absl::StrCat("milepost: ", status.message()));
  return ExitCodeOf(status);
}

bool StdoutIsTerminal() { return isatty(STDOUT_FILENO) == 1; }

}  // namespace milepost::client
