#include "coordinator/core/job_states.h"

#include "common/check.h"

namespace milepost::coordinator {
namespace {

constexpr v1::JobState kNone = v1::JOB_STATE_UNSPECIFIED;
constexpr v1::JobState kQueued = v1::JOB_STATE_QUEUED;
constexpr v1::JobState kStarting = v1::JOB_STATE_STARTING;
constexpr v1::JobState kRunning = v1::JOB_STATE_RUNNING;
constexpr v1::JobState kRecovering = v1::JOB_STATE_RECOVERING;
constexpr v1::JobState kResizing = v1::JOB_STATE_RESIZING;
constexpr v1::JobState kSuspending = v1::JOB_STATE_SUSPENDING;
constexpr v1::JobState kSuspended = v1::JOB_STATE_SUSPENDED;
constexpr v1::JobState kPreempting = v1::JOB_STATE_PREEMPTING;
constexpr v1::JobState kCancelling = v1::JOB_STATE_CANCELLING;
constexpr v1::JobState kSucceeded = v1::JOB_STATE_SUCCEEDED;
constexpr v1::JobState kFailed = v1::JOB_STATE_FAILED;
constexpr v1::JobState kCancelled = v1::JOB_STATE_CANCELLED;

constexpr JobMove kMoves[] = {
    {kNone, JobCause::kSubmitted, kQueued},
    {kQueued, JobCause::kStarted, kStarting},
    {kRecovering, JobCause::kStarted, kStarting},
    {kStarting, JobCause::kAllRunning, kRunning},
    {kStarting, JobCause::kRankFailed, kRecovering},
    {kRunning, JobCause::kRankFailed, kRecovering},
    {kStarting, JobCause::kToldToLeave, kRecovering},
    {kRunning, JobCause::kToldToLeave, kRecovering},
    {kStarting, JobCause::kPreempted, kPreempting},
    {kRunning, JobCause::kPreempted, kPreempting},
    {kRunning, JobCause::kGrows, kResizing},
    {kStarting, JobCause::kTimeLimit, kCancelling},
    {kRunning, JobCause::kTimeLimit, kCancelling},
    {kStarting, JobCause::kSucceeded, kSucceeded},
    {kRunning, JobCause::kSucceeded, kSucceeded},
    {kRecovering, JobCause::kSucceeded, kSucceeded},
    {kResizing, JobCause::kSucceeded, kSucceeded},
    {kSuspending, JobCause::kSucceeded, kSucceeded},
    {kPreempting, JobCause::kSucceeded, kSucceeded},
    {kCancelling, JobCause::kSucceeded, kSucceeded},
    {kRecovering, JobCause::kOver, kQueued},
    {kResizing, JobCause::kOver, kQueued},
    {kPreempting, JobCause::kOver, kQueued},
    {kSuspending, JobCause::kOver, kSuspended},
    {kCancelling, JobCause::kOver, kCancelled},
    {kRecovering, JobCause::kBacksOff, kRecovering},
    {kRecovering, JobCause::kGivenUp, kFailed},
    {kRecovering, JobCause::kTimeSpent, kFailed},
    {kResizing, JobCause::kTimeSpent, kFailed},
    {kSuspending, JobCause::kTimeSpent, kFailed},
    {kPreempting, JobCause::kTimeSpent, kFailed},
    {kCancelling, JobCause::kTimeSpent, kFailed},
    {kQueued, JobCause::kCancelled, kCancelled},
    {kRecovering, JobCause::kCancelled, kCancelled},
    {kSuspended, JobCause::kCancelled, kCancelled},
    {kStarting, JobCause::kCancelledHolding, kCancelling},
    {kRunning, JobCause::kCancelledHolding, kCancelling},
    {kRecovering, JobCause::kCancelledHolding, kCancelling},
    {kResizing, JobCause::kCancelledHolding, kCancelling},
    {kSuspending, JobCause::kCancelledHolding, kCancelling},
    {kPreempting, JobCause::kCancelledHolding, kCancelling},
    {kCancelling, JobCause::kCancelledHolding, kCancelling},
    {kQueued, JobCause::kSuspended, kSuspended},
    {kRecovering, JobCause::kSuspended, kSuspended},
    {kStarting, JobCause::kSuspendedHolding, kSuspending},
    {kRunning, JobCause::kSuspendedHolding, kSuspending},
    {kRecovering, JobCause::kSuspendedHolding, kSuspending},
    {kResizing, JobCause::kSuspendedHolding, kSuspending},
    {kPreempting, JobCause::kSuspendedHolding, kSuspending},
    {kSuspended, JobCause::kResumed, kQueued},
    {kSucceeded, JobCause::kResumed, kQueued},
    {kFailed, JobCause::kResumed, kQueued},
    {kCancelled, JobCause::kResumed, kQueued},
    {kSuspending, JobCause::kResumed, kPreempting},
};

}  // namespace

absl::Span<const JobMove> JobMoves() { return kMoves; }

std::optional<v1::JobState> NextState(v1::JobState from, JobCause cause) {
  for (const JobMove& move : kMoves) {
    if (move.from == from && move.cause == cause) return move.to;
  }
  return std::nullopt;
}

void Move(JobCause cause, v1::Job* job) {
  const std::optional<v1::JobState> next = NextState(job->state(), cause);
  MP_CHECK(next.has_value()) << job->name() << " is " << v1::JobState_Name(job->state())
                             << ": cause " << static_cast<int>(cause) << " cannot come";
  job->set_state(*next);
}

}  // namespace milepost::coordinator
