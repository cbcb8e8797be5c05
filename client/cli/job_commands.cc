// milepost job ...
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands.h"
#include "client/cli/disk_needs.h"
#include "client/cli/format.h"
#include "client/cli/inputs.h"
#include "client/cli/interrupt.h"
#include "client/cli/job_arguments.h"
#include "client/cli/progress_view.h"
#include "client/cli/stored_job.h"
#include "common/exit_codes.h"
#include "common/proto_time.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

constexpr absl::Duration kLineInterval = absl::Seconds(5);
constexpr absl::Duration kListInterval = absl::Seconds(2);

// After an action: the job's name (or all of it, with -o json or yaml) on stdout.
void PrintActedOn(const GlobalOptions& global, const v1::Job& job) {
  const bool whole = global.output == OutputFormat::kJson || global.output == OutputFormat::kYaml;
  Print(whole ? RenderMessage(job, global.output) : job.name() + "\n");
}

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

// What to do next with a job that has been queued.
void AdviseQueued(const GlobalOptions& global, const Access& access, const std::string& job) {
  if (access.stored()) {
    Hint(absl::StrCat("no run is going on in ", global.data_dir,
                      ", so it waits: milepost run --job ", job, DataDirFlag(global.data_dir)));
  } else {
    Hint(absl::StrCat("milepost job wait ", job, "; milepost job logs -f ", job));
  }
}

// All of them before anything is done with one: then what is typed for another may mean a third.
absl::StatusOr<std::vector<std::string>> ResolveJobs(JobClient jobs,
                                                     const std::vector<std::string>& typed) {
  std::vector<std::string> names;
  for (const std::string& one : typed) {
    MP_ASSIGN_OR_RETURN(names.emplace_back(), ResolveJob(jobs, one));
  }
  return names;
}

// The same; NOT_FOUND for one that there is not.
absl::StatusOr<std::vector<std::string>> JobsThatAre(const Access& access,
                                                     const std::vector<std::string>& typed) {
  MP_ASSIGN_OR_RETURN(const std::vector<std::string> names, ResolveJobs(access.jobs(), typed));
  for (const std::string& name : names) MP_RETURN_IF_ERROR(access.jobs().Get(name).status());
  return names;
}

// Does `act` with each of the jobs, in order, until one fails, and prints and tells what became of
// it.
int ForEachJob(const GlobalOptions& global, const std::vector<std::string>& typed,
               WhenStopped when_stopped,
               const std::function<absl::StatusOr<v1::Job>(const Access&, const std::string&)>& act,
               const std::function<void(const Access&, const v1::Job&)>& tell) {
  const auto access = Access::Open(global, when_stopped);
  if (!access.ok()) return Fail(access.status());
  const auto names = ResolveJobs(access->jobs(), typed);
  if (!names.ok()) return Fail(names.status());
  for (const std::string& name : *names) {
    const auto job = act(*access, name);
    if (!job.ok()) return Fail(job.status());
    PrintActedOn(global, *job);
    tell(*access, *job);
  }
  return kExitOk;
}

// Cancels a connection that may not be open yet when the signal comes.
class Detacher {
 public:
  Detacher() : guard_([this] { Cancel(); }) {}
  void Watch(std::shared_ptr<Connection> connection) {
    std::lock_guard lock(mutex_);
    connection_ = std::move(connection);
    if (guard_.interrupted()) connection_->Cancel();
  }
  bool detached() const { return guard_.interrupted(); }
  // False when the signal comes before.
  bool SleepFor(absl::Duration time) {
    std::unique_lock lock(mutex_);
    woken_.wait_for(lock, absl::ToChronoNanoseconds(time), [&] { return guard_.interrupted(); });
    return !guard_.interrupted();
  }

 private:
  void Cancel() {
    std::lock_guard lock(mutex_);
    if (connection_) connection_->Cancel();
    woken_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable woken_;
  std::shared_ptr<Connection> connection_;
  InterruptGuard guard_;
};

// Says on stderr how the job goes: every change of state, and a line per interval.
class Narrator {
 public:
  void Tell(const v1::Job& job) {
    const std::string state = StateLine(job);
    if (state != state_) Note(absl::StrCat(job.name(), " ", state));
    state_ = state;
    const absl::Time now = absl::Now();
    const bool starts = job.state() == v1::JOB_STATE_STARTING;  // not all ranks are at work yet
    if (starts || job.progress().step() == step_ || now - last_ < kLineInterval) return;
    Note(absl::StrCat(job.name(), " ", PlainProgressLine(job, now)));
    step_ = job.progress().step();
    last_ = now;
  }

 private:
  std::string state_;
  int64_t step_ = 0;
  absl::Time last_ = absl::InfinitePast();
};

// Cancels a connection at a point in time unless destroyed before.
class CancelAt {
 public:
  CancelAt(absl::Time deadline, std::shared_ptr<Connection> connection) {
    if (deadline == absl::InfiniteFuture()) return;
    thread_ = std::thread([this, deadline, connection = std::move(connection)] {
      std::unique_lock lock(mutex_);
      if (ended_.wait_until(lock, absl::ToChronoTime(deadline), [&] { return done_; })) return;
      expired_ = true;
      connection->Cancel();
    });
  }
  ~CancelAt() { Expired(); }

  // Ends the timer; true when it came first.
  bool Expired() {
    {
      std::lock_guard lock(mutex_);
      done_ = true;
    }
    ended_.notify_all();
    if (thread_.joinable()) thread_.join();
    return expired_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  bool expired_ = false;
  std::thread thread_;
};

int WaitFor(const GlobalOptions& global, const Access& access, const std::string& name,
            absl::Time deadline, const Detacher& detacher) {
  Narrator narrator;
  v1::Job last;
  CancelAt timer(deadline, access.connection());
  const absl::Status status = access.jobs().Watch(name, [&](const v1::Job& job) {
    last = job;
    narrator.Tell(job);
    return true;
  });
  const bool expired = timer.Expired();
  if (detacher.detached()) {
    Note(absl::StrCat("detached; ", name, " goes on"));
    Hint(absl::StrCat("milepost job wait ", name));
    return kExitInterrupted;
  }
  if (!status.ok() && !expired) return Fail(status);
  if (last.name().empty()) {
    return Fail(absl::DeadlineExceededError(
        absl::StrCat("the coordinator did not say how ", name, " is doing within --timeout")));
  }
  PrintActedOn(global, last);
  if (expired) Note(absl::StrCat(name, " has not finished"));
  if (last.state() == v1::JOB_STATE_FAILED) Hint(absl::StrCat("milepost job describe ", name));
  return ExitCodeOfJob(last.state());
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

absl::StatusOr<SpecSource> SourceOf(const GlobalOptions& global, const SubmitOptions& options) {
  SpecSource source = {.path = options.spec, .base = std::nullopt, .overrides = options.set};
  if (options.template_name.empty() && options.spec.empty()) {
    return absl::InvalidArgumentError("spec is required, or --template");
  }
  if (options.template_name.empty()) return source;
  MP_ASSIGN_OR_RETURN(source.base, FetchTemplate(global, options.template_name));
  return source;
}

// Of what is submitted, for people.
std::string NameOf(const SubmitOptions& options) {
  return options.spec.empty() ? absl::StrCat("template ", options.template_name) : options.spec;
}

// Of what this machine has; workers may have other files under the same names.
absl::Status CheckFiles(const SubmitOptions& options, const v1::JobSpec& spec) {
  if (options.skip_files) return absl::OkStatus();
  std::vector<std::string> elsewhere;
  absl::Status status = CheckReadsHere(spec, &elsewhere);
  if (status.ok()) status = CheckStateFolderHere(spec, &elsewhere);
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(status.message(),
                     " (as it is on this machine; where workers have another file there, submit "
                     "with --skip-files)"));
  }
  // Who submits from another machine than the workers' knows that their files are not here.
  if (options.validate_only && !elsewhere.empty()) Note(TellElsewhere(elsewhere));
  return absl::OkStatus();
}

// Those of an array's jobs, as far as the elements leave them.
absl::Status CheckArrayFiles(const SubmitOptions& options, const v1::JobSpec& as_written) {
  v1::JobSpec spec = as_written;
  NormalizeJobSpec(&spec);
  return ValidateJobSpec(spec).ok() ? CheckFiles(options, spec) : absl::OkStatus();
}

// Prints the array's name and its jobs'.
int SubmitArray(const GlobalOptions& global, const SubmitOptions& options) {
  if (options.wait) return Fail(absl::InvalidArgumentError("--wait: waits for one job, no array"));
  const auto elements = ExpandArray(options.array);
  if (!elements.ok()) return Fail(elements.status());
  // As it is written: what follows from what the elements change is derived for each.
  const auto source = SourceOf(global, options);
  if (!source.ok()) return Fail(source.status());
  const auto spec = ReadSpec(*source);
  if (!spec.ok()) return Fail(spec.status());
  if (const absl::Status good = CheckArrayFiles(options, *spec); !good.ok()) return Fail(good);
  v1::SubmitJobArrayRequest request;
  *request.mutable_spec() = *spec;
  request.mutable_elements()->Add(elements->begin(), elements->end());
  request.set_max_parallel(options.max_parallel);
  request.set_validate_only(options.validate_only);
  const absl::Status labelled = ChangeLabels(options.labels, request.mutable_labels());
  if (!labelled.ok()) return Fail(labelled);
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  const auto array = access->jobs().SubmitArray(request);
  if (!array.ok()) return Fail(array.status());
  if (options.validate_only) {
    Note(absl::StrCat(elements->size(), " jobs of ", NameOf(options),
                      " are valid; nothing was submitted"));
    return kExitOk;
  }
  Note(absl::StrCat("submitted ", array->jobs_size(), " jobs as ", array->array()));
  const bool whole = global.output == OutputFormat::kJson || global.output == OutputFormat::kYaml;
  Print(whole ? RenderMessage(*array, global.output)
              : absl::StrCat(array->array(), "\n", absl::StrJoin(array->jobs(), "\n"), "\n"));
  Hint(absl::StrCat("milepost job list --array ", array->array(), "; milepost job wait --array ",
                    array->array(), "; milepost job cancel --array ", array->array()));
  return kExitOk;
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

// Of those labels that the job has now.
absl::Status UpdateLabels(JobClient jobs, const std::vector<std::string>& changes,
                          v1::UpdateJobRequest* request) {
  MP_ASSIGN_OR_RETURN(const v1::Job job, jobs.Get(request->job().name()));
  *request->mutable_job()->mutable_labels() = job.labels();
  MP_RETURN_IF_ERROR(ChangeLabels(changes, request->mutable_job()->mutable_labels()));
  request->mutable_job()->set_etag(job.etag());
  request->mutable_update_mask()->add_paths("labels");
  return absl::OkStatus();
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

// Of the job, what the options name.
absl::StatusOr<v1::UpdateJobRequest> UpdateOf(JobClient jobs, const std::string& name,
                                              const UpdateOptions& options) {
  v1::UpdateJobRequest request;
  request.mutable_job()->set_name(name);
  v1::SchedulingSpec* scheduling = request.mutable_job()->mutable_spec()->mutable_scheduling();
  const auto change = [&](const char* field) {
    request.mutable_update_mask()->add_paths(absl::StrCat("spec.scheduling.", field));
  };
  if (options.queue) {
    scheduling->set_queue(*options.queue);
    change("queue");
  }
  if (options.priority) {
    scheduling->set_priority(*options.priority);
    change("priority");
  }
  if (options.time_limit_seconds) {
    scheduling->set_time_limit(*options.time_limit_seconds);
    change("time_limit");
  }
  if (options.independent || !options.depends_on.empty()) {
    for (const std::string& typed : options.depends_on) {
      MP_ASSIGN_OR_RETURN(const std::string other, ResolveJob(jobs, typed));
      scheduling->add_depends_on(other);
    }
    change("depends_on");
  }
  // A bound that is named and not given is taken away.
  v1::ResourceSpec* resources = request.mutable_job()->mutable_spec()->mutable_resources();
  if (options.min_ranks) {
    if (*options.min_ranks > 0) resources->set_min_ranks(*options.min_ranks);
    request.mutable_update_mask()->add_paths("spec.resources.min_ranks");
  }
  if (options.max_ranks) {
    if (*options.max_ranks > 0) resources->set_max_ranks(*options.max_ranks);
    request.mutable_update_mask()->add_paths("spec.resources.max_ranks");
  }
  if (!options.labels.empty()) {
    MP_RETURN_IF_ERROR(UpdateLabels(jobs, options.labels, &request));
  }
  return request;
}

}  // namespace

int ExitCodeOfJob(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_SUCCEEDED:
      return kExitOk;
    case v1::JOB_STATE_FAILED:
      return kExitJobFailed;
    case v1::JOB_STATE_CANCELLED:
      return kExitJobCancelled;
    default:
      return kExitJobNotFinished;
  }
}

int JobSubmitCommand(const GlobalOptions& global, const SubmitOptions& options) {
  if (!options.array.empty()) return SubmitArray(global, options);
  const auto source = SourceOf(global, options);
  if (!source.ok()) return Fail(source.status());
  const auto spec = LoadSpec(*source);
  if (!spec.ok()) return Fail(spec.status());
  if (const absl::Status good = CheckFiles(options, *spec); !good.ok()) return Fail(good);
  v1::SubmitJobRequest request;
  *request.mutable_spec() = *spec;
  request.set_validate_only(options.validate_only);
  const absl::Status labelled = ChangeLabels(options.labels, request.mutable_labels());
  if (!labelled.ok()) return Fail(labelled);
  std::optional<Detacher> detacher;
  if (options.wait) detacher.emplace();
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  if (detacher) detacher->Watch(access->connection());
  const auto job = access->jobs().Submit(request);
  if (!job.ok()) return Fail(job.status());
  for (const v1::Choice& choice : job->choices()) Note(ChoiceText(choice));
  if (options.validate_only) {
    Note(absl::StrCat(NameOf(options), " is valid; nothing was submitted"));
    return kExitOk;
  }
  Note(absl::StrCat("submitted ", job->name(), " (", job->spec().name(), ")"));
  if (options.wait) return WaitFor(global, *access, job->name(), absl::InfiniteFuture(), *detacher);
  PrintActedOn(global, *job);
  AdviseQueued(global, *access, job->name());
  return kExitOk;
}

int JobForkCommand(const GlobalOptions& global, const ForkOptions& options) {
  v1::ForkJobRequest request;
  auto overrides = ParseOverrides(options.set);
  if (!overrides.ok()) return Fail(overrides.status());
  request.mutable_overrides()->Swap(&*overrides);
  const absl::Status labelled = ChangeLabels(options.labels, request.mutable_labels());
  if (!labelled.ok()) return Fail(labelled);
  request.set_validate_only(options.validate_only);
  request.set_project(global.project);
  std::optional<Detacher> detacher;
  if (options.wait) detacher.emplace();
  // Without a run it is stored, and waits for one.
  const auto access =
      Access::Open(global, options.wait ? WhenStopped::kFail : WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  if (detacher) detacher->Watch(access->connection());
  request.set_source(options.from);
  if (!absl::StartsWith(options.from, "checkpoints/")) {
    const auto source = ResolveJob(access->jobs(), options.from);
    if (!source.ok()) return Fail(source.status());
    request.set_source(*source);
  }
  const auto job = access->jobs().Fork(request);
  if (!job.ok()) return Fail(job.status());
  const v1::ForkOrigin& origin = job->forked_from();
  const std::string from = absl::StrCat("from step ", origin.step(), " of ", origin.job(), " (",
                                        origin.checkpoint(), ")");
  if (options.validate_only) {
    Note(absl::StrCat("a fork ", from, " is valid; nothing was submitted"));
    return kExitOk;
  }
  Note(absl::StrCat("submitted ", job->name(), " ", from));
  if (options.wait) return WaitFor(global, *access, job->name(), absl::InfiniteFuture(), *detacher);
  PrintActedOn(global, *job);
  AdviseQueued(global, *access, job->name());
  return kExitOk;
}

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
  const absl::Time deadline = options.timeout_seconds
                                  ? absl::Now() + absl::Seconds(*options.timeout_seconds)
                                  : absl::InfiniteFuture();
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

int JobCancelCommand(const GlobalOptions& global, const std::vector<std::string>& typed) {
  return ForEachJob(
      global, typed, WhenStopped::kServeDataDir,
      [](const Access& access, const std::string& name) { return access.jobs().Cancel(name); },
      [](const Access&, const v1::Job& job) {
        Note(absl::StrCat(job.name(), " ", StateLine(job)));
        if (job.state() == v1::JOB_STATE_SUCCEEDED) return;  // it had made all its steps
        const bool kept = job.attempts() > 0;                // else it has saved none
        Hint(absl::StrCat(kept ? "its checkpoints are kept: " : "it had not run: ",
                          "milepost job resume ", job.name()));
      });
}

int JobCancelArrayCommand(const GlobalOptions& global, const std::string& typed) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  const std::string array = FullName("arrays", typed);
  const auto response = access->jobs().CancelArray(array);
  if (!response.ok()) return Fail(response.status());
  const bool whole = global.output == OutputFormat::kJson || global.output == OutputFormat::kYaml;
  Print(whole ? RenderMessage(*response, global.output) : array + "\n");
  Note(absl::StrCat("cancelled ", response->cancelled(), " of the ", response->jobs(), " jobs of ",
                    array, "; the others had ended"));
  return kExitOk;
}

int JobDeleteCommand(const GlobalOptions& global, const std::vector<std::string>& typed) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  const auto names = ResolveJobs(access->jobs(), typed);
  if (!names.ok()) return Fail(names.status());
  for (const std::string& name : *names) {
    const auto deleted = access->jobs().Delete(name);
    if (!deleted.ok()) return Fail(deleted.status());
    Print(name + "\n");
    Note(absl::StrCat("deleted ", name, " for good, with its log and ", deleted->checkpoints(),
                      deleted->checkpoints() == 1 ? " checkpoint" : " checkpoints", " (",
                      HumanBytes(deleted->bytes()), ")"));
  }
  return kExitOk;
}

int JobSuspendCommand(const GlobalOptions& global, const std::vector<std::string>& typed) {
  return ForEachJob(
      global, typed, WhenStopped::kServeDataDir,
      [](const Access& access, const std::string& name) { return access.jobs().Suspend(name); },
      [](const Access&, const v1::Job& job) {
        Note(absl::StrCat(job.name(), " ", StateLine(job)));
        Hint(absl::StrCat("milepost job resume ", job.name()));
      });
}

int JobUpdateCommand(const GlobalOptions& global, const UpdateOptions& options) {
  return ForEachJob(
      global, options.jobs, WhenStopped::kServeDataDir,
      [&](const Access& access, const std::string& name) -> absl::StatusOr<v1::Job> {
        MP_ASSIGN_OR_RETURN(const v1::UpdateJobRequest request,
                            UpdateOf(access.jobs(), name, options));
        return access.jobs().Update(request);
      },
      [](const Access&, const v1::Job& job) {
        Note(absl::StrCat(job.name(), " ", StateLine(job)));
      });
}

int JobResumeCommand(const GlobalOptions& global, const std::vector<std::string>& typed,
                     std::optional<int64_t> new_steps) {
  return ForEachJob(
      global, typed, WhenStopped::kServeDataDir,
      [&](const Access& access, const std::string& name) -> absl::StatusOr<v1::Job> {
        MP_ASSIGN_OR_RETURN(const v1::Job job, access.jobs().Get(name));
        // It would wait for slots to find that there is nothing to do.
        if (!new_steps && job.state() == v1::JOB_STATE_SUCCEEDED) {
          return absl::FailedPreconditionError(
              absl::StrCat(name, " has made all its ", job.spec().train().steps(),
                           " steps: --steps, with more, extends it"));
        }
        return access.jobs().Resume(name, new_steps);
      },
      [&](const Access& access, const v1::Job& job) {
        Note(absl::StrCat(
            job.name(), " ", StateLine(job),
            job.latest_checkpoint().empty() ? "" : ", from " + job.latest_checkpoint()));
        AdviseQueued(global, access, job.name());
      });
}

}  // namespace milepost::client
