// milepost job ...
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/format.h"
#include "client/cli/interrupt.h"
#include "client/cli/progress_view.h"
#include "common/exit_codes.h"
#include "common/spec/parse.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

constexpr absl::Duration kLineInterval = absl::Seconds(5);

// After an action: the job's name (or all of it, with -o json or yaml) on stdout.
void PrintActedOn(const GlobalOptions& global, const v1::Job& job) {
  const bool whole = global.output == OutputFormat::kJson || global.output == OutputFormat::kYaml;
  Print(whole ? RenderMessage(job, global.output) : job.name() + "\n");
}

absl::StatusOr<v1::Job> GetJob(const Access& access, const std::string& typed) {
  MP_ASSIGN_OR_RETURN(const std::string name, ResolveJob(access.jobs(), typed));
  return access.jobs().Get(name);
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

 private:
  void Cancel() {
    std::lock_guard lock(mutex_);
    if (connection_) connection_->Cancel();
  }
  std::mutex mutex_;
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
    if (job.progress().step() == step_ || now - last_ < kLineInterval) return;
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
  const auto spec = LoadJobSpec(options.spec);
  if (!spec.ok()) return Fail(spec.status());
  std::optional<Detacher> detacher;
  if (options.wait) detacher.emplace();
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  if (detacher) detacher->Watch(access->connection());
  const auto job = access->jobs().Submit(*spec, options.validate_only);
  if (!job.ok()) return Fail(job.status());
  for (const v1::Choice& choice : job->choices()) Note(ChoiceText(choice));
  if (options.validate_only) {
    Note(absl::StrCat(options.spec, " is valid; nothing was submitted"));
    return kExitOk;
  }
  Note(absl::StrCat("submitted ", job->name(), " (", job->spec().name(), ")"));
  if (options.wait) return WaitFor(global, *access, job->name(), absl::InfiniteFuture(), *detacher);
  PrintActedOn(global, *job);
  Hint(absl::StrCat("milepost job wait ", job->name(), "; milepost job logs -f ", job->name()));
  return kExitOk;
}

int JobListCommand(const GlobalOptions& global, int limit) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  const auto jobs = access->jobs().List(limit);
  if (!jobs.ok()) return Fail(jobs.status());
  Print(RenderJobs(*jobs, global.output, absl::Now()));
  if (jobs->empty()) Hint("no jobs yet: milepost job submit SPEC, or milepost run SPEC");
  return kExitOk;
}

int JobDescribeCommand(const GlobalOptions& global, const std::string& typed) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  const auto job = GetJob(*access, typed);
  if (!job.ok()) return Fail(job.status());
  Print(RenderJob(*job, global.output, absl::Now()));
  return kExitOk;
}

int JobLogsCommand(const GlobalOptions& global, const LogsOptions& options) {
  std::optional<Detacher> detacher;
  if (options.follow) detacher.emplace();
  const auto access =
      Access::Open(global, options.follow ? WhenStopped::kFail : WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  if (detacher) detacher->Watch(access->connection());
  const auto name = ResolveJob(access->jobs(), options.job);
  if (!name.ok()) return Fail(name.status());
  v1::StreamLogsRequest request;
  request.set_name(*name);
  request.set_follow(options.follow);
  request.set_tail(options.tail);
  if (options.rank) request.set_rank(*options.rank);
  if (options.since_seconds) {
    const absl::Time since = absl::Now() - absl::Seconds(*options.since_seconds);
    request.mutable_since()->set_seconds(absl::ToUnixSeconds(since));
    request.mutable_since()->set_nanos((since - absl::FromUnixSeconds(absl::ToUnixSeconds(since))) /
                                       absl::Nanoseconds(1));
  }
  const absl::Status status = access->jobs().StreamLogs(request, [&](const v1::LogLine& line) {
    Print(global.output == OutputFormat::kJson
              ? RenderMessage(line, OutputFormat::kJson)
              : absl::StrFormat("%s [rank %d] %s\n", TimeText(line.time()), line.rank(),
                                Printable(line.text())));
    return true;
  });
  if (detacher && detacher->detached()) {
    Note(absl::StrCat("detached; ", *name, " goes on"));
    return kExitInterrupted;
  }
  if (!status.ok()) return Fail(status);
  if (!options.follow) return kExitOk;
  const auto job = access->jobs().Get(*name);
  return job.ok() ? ExitCodeOfJob(job->state()) : Fail(job.status());
}

int JobWaitCommand(const GlobalOptions& global, const WaitOptions& options) {
  Detacher detacher;
  const absl::Time deadline = options.timeout_seconds
                                  ? absl::Now() + absl::Seconds(*options.timeout_seconds)
                                  : absl::InfiniteFuture();
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  detacher.Watch(access->connection());
  const auto name = ResolveJob(access->jobs(), options.job);
  if (!name.ok()) return detacher.detached() ? int{kExitInterrupted} : Fail(name.status());
  return WaitFor(global, *access, *name, deadline, detacher);
}

int JobCancelCommand(const GlobalOptions& global, const std::string& typed) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  const auto name = ResolveJob(access->jobs(), typed);
  if (!name.ok()) return Fail(name.status());
  const auto job = access->jobs().Cancel(*name);
  if (!job.ok()) return Fail(job.status());
  PrintActedOn(global, *job);
  Note(absl::StrCat(job->name(), " ", StateLine(*job)));
  Hint(absl::StrCat("its checkpoints are kept: milepost job resume ", job->name()));
  return kExitOk;
}

int JobSuspendCommand(const GlobalOptions& global, const std::string& typed) {
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  const auto name = ResolveJob(access->jobs(), typed);
  if (!name.ok()) return Fail(name.status());
  const auto job = access->jobs().Suspend(*name);
  if (!job.ok()) return Fail(job.status());
  PrintActedOn(global, *job);
  Note(absl::StrCat(job->name(), " ", StateLine(*job)));
  Hint(absl::StrCat("milepost job resume ", job->name()));
  return kExitOk;
}

int JobUpdateCommand(const GlobalOptions& global, const UpdateOptions& options) {
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  const auto name = ResolveJob(access->jobs(), options.job);
  if (!name.ok()) return Fail(name.status());
  v1::UpdateJobRequest request;
  request.mutable_job()->set_name(*name);
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
    for (const std::string& other : options.depends_on) {
      scheduling->add_depends_on(FullName("jobs", other));
    }
    change("depends_on");
  }
  const auto job = access->jobs().Update(request);
  if (!job.ok()) return Fail(job.status());
  PrintActedOn(global, *job);
  Note(absl::StrCat(job->name(), " ", StateLine(*job)));
  return kExitOk;
}

int JobResumeCommand(const GlobalOptions& global, const std::string& typed,
                     std::optional<int64_t> new_steps) {
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  const auto name = ResolveJob(access->jobs(), typed);
  if (!name.ok()) return Fail(name.status());
  const auto job = access->jobs().Resume(*name, new_steps);
  if (!job.ok()) return Fail(job.status());
  PrintActedOn(global, *job);
  Note(absl::StrCat(job->name(), " ", StateLine(*job),
                    job->latest_checkpoint().empty() ? "" : ", from " + job->latest_checkpoint()));
  Hint(absl::StrCat("milepost job wait ", job->name()));
  return kExitOk;
}

}  // namespace milepost::client
