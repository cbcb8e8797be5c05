#include "client/cli/job_waiting.h"

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/commands.h"
#include "client/cli/format.h"
#include "client/cli/job_answer.h"
#include "client/cli/output.h"
#include "client/cli/progress_view.h"
#include "common/exit_codes.h"

namespace milepost::client {
namespace {

constexpr absl::Duration kLineInterval = absl::Seconds(5);

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

}  // namespace milepost::client
