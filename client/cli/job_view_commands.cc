// milepost job list, describe, logs, wait: what becomes of jobs.
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/cli/commands.h"
#include "client/cli/format.h"
#include "client/cli/job_answer.h"
#include "client/cli/job_arguments.h"
#include "client/cli/job_waiting.h"
#include "client/cli/progress_view.h"
#include "client/cli/stored_job.h"
#include "common/exit_codes.h"
#include "common/proto_time.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

constexpr absl::Duration kListInterval = absl::Seconds(2);

// Of a run that is over it says so.
absl::StatusOr<v1::Job> GetJob(const Access& access, const std::string& typed) {
  MP_ASSIGN_OR_RETURN(const std::string name, ResolveJob(access.jobs(), typed));
  MP_ASSIGN_OR_RETURN(v1::Job job, access.jobs().Get(name));
  if (access.stored()) MarkNotRunning(&job);
  return job;
}

// Of jobs that the store of a run that is over has, and nothing runs. They are marked.
void TellNotRunning(const GlobalOptions& global, const std::vector<v1::Job>& marked) {
  const std::string text = NotRunningText(marked, DataDirFlag(global.data_dir));
  if (!text.empty()) Note(absl::StrCat("no run is going on in ", global.data_dir, ": ", text));
}

absl::StatusOr<v1::ListJobsRequest> FilterOf(const ListOptions& options) {
  v1::ListJobsRequest filter;
  for (const std::string& text : options.states) {
    MP_ASSIGN_OR_RETURN(const std::vector<v1::JobState> states, ParseState(text));
    for (const v1::JobState state : states) filter.add_states(state);
  }
  for (const std::string& text : options.selectors) {
    MP_ASSIGN_OR_RETURN(const std::vector<v1::LabelRequirement> all, ParseSelector(text));
    filter.mutable_label_requirements()->Add(all.begin(), all.end());
  }
  filter.set_queue(options.queue);
  filter.set_name_prefix(options.name_prefix);
  if (!options.array.empty()) filter.set_array(FullName("arrays", options.array));
  return filter;
}

// `named`: each line says its job.
absl::Status PrintLogs(const GlobalOptions& global, const Access& access, const std::string& name,
                       bool named, const LogsOptions& options) {
  v1::StreamLogsRequest request;
  request.set_name(name);
  request.set_follow(options.follow);
  request.set_tail(options.tail);
  if (options.rank) request.set_rank(*options.rank);
  if (options.since_seconds) {
    *request.mutable_since() = ToProto(absl::Now() - absl::Seconds(*options.since_seconds));
  }
  bool some = false;
  const absl::Status status = access.jobs().StreamLogs(request, [&](const v1::LogLine& line) {
    some = true;
    const bool json = global.output == OutputFormat::kJson;
    if (line.dropped_lines() > 0 && !json) {
      Note(Printable(line.text()));
      return true;
    }
    Print(json ? RenderMessage(line, OutputFormat::kJson)
               : absl::StrFormat("%s [%srank %d] %s\n", TimeText(line.time()),
                                 named ? name + " " : "", line.rank(), Printable(line.text())));
    return true;
  });
  if (some || !status.ok() || !options.rank) return status;
  const auto job = access.jobs().Get(name);
  if (job.ok() && *options.rank >= job->spec().resources().ranks()) {
    return absl::NotFoundError(absl::StrCat("there is no rank ", *options.rank, ": those of ", name,
                                            " are 0 to ", job->spec().resources().ranks() - 1));
  }
  return status;
}

// How a job is whose state no waiting will change, as nothing runs it.
int TellStored(const GlobalOptions& global, const Access& access, const std::string& name) {
  const auto job = GetJob(access, name);
  if (!job.ok()) return Fail(job.status());
  PrintActedOn(global, *job);
  Note(absl::StrCat(job->name(), " ", StateLine(*job)));
  TellNotRunning(global, {*job});
  return ExitCodeOfJob(job->state());
}

// The same; NOT_FOUND for one that there is not.
absl::StatusOr<std::vector<std::string>> JobsThatAre(const Access& access,
                                                     const std::vector<std::string>& typed) {
  MP_ASSIGN_OR_RETURN(const std::vector<std::string> names, ResolveJobs(access.jobs(), typed));
  for (const std::string& name : names) MP_RETURN_IF_ERROR(access.jobs().Get(name).status());
  return names;
}

// The oldest first. NOT_FOUND when there is none.
absl::StatusOr<std::vector<std::string>> JobsOfArray(const Access& access,
                                                     const std::string& typed) {
  v1::ListJobsRequest filter;
  filter.set_array(FullName("arrays", typed));
  MP_ASSIGN_OR_RETURN(const std::vector<v1::Job> jobs, access.jobs().List(10'000, filter));
  if (jobs.empty()) return absl::NotFoundError(absl::StrCat("there is no ", filter.array()));
  std::vector<std::string> names;
  for (auto job = jobs.rbegin(); job != jobs.rend(); ++job) names.push_back(job->name());
  return names;
}

absl::Time DeadlineOf(const WaitOptions& options) {
  return options.timeout_seconds ? absl::Now() + absl::Seconds(*options.timeout_seconds)
                                 : absl::InfiniteFuture();
}

}  // namespace

int JobListCommand(const GlobalOptions& global, int limit, const ListOptions& options) {
  const auto filter = FilterOf(options);
  if (!filter.ok()) return Fail(filter.status());
  std::optional<Detacher> detacher;
  if (options.watch) detacher.emplace();
  const auto access =
      Access::Open(global, options.watch ? WhenStopped::kFail : WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  if (detacher) detacher->Watch(access->connection());
  while (true) {
    auto jobs = access->jobs().List(limit, *filter);
    if (detacher && detacher->detached()) return kExitInterrupted;
    if (!jobs.ok()) return Fail(jobs.status());
    for (v1::Job& job : *jobs) {
      if (access->stored()) MarkNotRunning(&job);
    }
    const std::vector<v1::Job> newest_first = *jobs;
    SortJobs(options.sort, &*jobs);
    Print(RenderJobs(*jobs, global.output, absl::Now()));
    if (access->stored()) TellNotRunning(global, newest_first);
    if (jobs->empty() && filter->ByteSizeLong() > 0) {
      Hint("no job is like that: milepost job list shows all");
    } else if (jobs->empty() && !access->login().project.empty()) {
      Hint(absl::StrCat("project ", Printable(access->login().project),
                        " has no job, or none that you may see: milepost auth whoami says where "
                        "you may see some"));
    } else if (jobs->empty()) {
      Hint("no jobs yet: milepost job submit SPEC, or milepost run SPEC");
    }
    if (!options.watch) return kExitOk;
    if (!detacher->SleepFor(kListInterval)) return kExitInterrupted;
    Print("\n");
  }
}

int JobDescribeCommand(const GlobalOptions& global, const std::vector<std::string>& typed) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  std::vector<v1::Job> jobs;
  for (const std::string& one : typed) {
    const auto job = GetJob(*access, one);
    if (!job.ok()) return Fail(job.status());
    const bool table =
        global.output == OutputFormat::kTable || global.output == OutputFormat::kWide;
    if (table && !jobs.empty()) Print("\n");
    Print(RenderJob(*job, global.output, absl::Now()));
    jobs.insert(jobs.begin(), *job);
  }
  if (access->stored()) TellNotRunning(global, jobs);
  return kExitOk;
}

int JobLogsCommand(const GlobalOptions& global, const LogsOptions& options) {
  const bool several = options.jobs.size() > 1;
  if (several && options.follow) {
    return Fail(absl::InvalidArgumentError("--follow: follows one job, not several"));
  }
  std::optional<Detacher> detacher;
  if (options.follow) detacher.emplace();
  const auto access =
      Access::Open(global, options.follow ? WhenStopped::kFail : WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  if (detacher) detacher->Watch(access->connection());
  std::string last;
  for (const std::string& typed : options.jobs) {
    const auto name = ResolveJob(access->jobs(), typed);
    if (!name.ok()) return Fail(name.status());
    last = *name;
    const absl::Status status = PrintLogs(global, *access, *name, several, options);
    if (detacher && detacher->detached()) {
      Note(absl::StrCat("detached; ", *name, " goes on"));
      return kExitInterrupted;
    }
    if (!status.ok()) return Fail(status);
  }
  if (!options.follow) return kExitOk;
  const auto job = access->jobs().Get(last);
  return job.ok() ? ExitCodeOfJob(job->state()) : Fail(job.status());
}

int JobWaitCommand(const GlobalOptions& global, const WaitOptions& options) {
  Detacher detacher;
  const absl::Time deadline = DeadlineOf(options);
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  detacher.Watch(access->connection());
  // Before any is waited for: a name that is wrong is not told hours later.
  const auto names = options.array.empty() ? JobsThatAre(*access, options.jobs)
                                           : JobsOfArray(*access, options.array);
  if (!names.ok()) return detacher.detached() ? int{kExitInterrupted} : Fail(names.status());
  int exit_code = kExitOk;  // of the first that did not succeed
  for (const std::string& name : *names) {
    const int ended = access->stored() ? TellStored(global, *access, name)
                                       : WaitFor(global, *access, name, deadline, detacher);
    if (exit_code == kExitOk) exit_code = ended;
    if (detacher.detached() || absl::Now() >= deadline) break;
  }
  return exit_code;
}

}  // namespace milepost::client
