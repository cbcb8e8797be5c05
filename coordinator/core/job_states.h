// The states of a job: which cause leads from which to which. One table; every change of a job's
// state goes through Move. docs/internals/job-states.md is made from it
// (scripts/checks/job_states_doc.py).
//
// Pure.
#ifndef MILEPOST_COORDINATOR_CORE_JOB_STATES_H_
#define MILEPOST_COORDINATOR_CORE_JOB_STATES_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "milepost/v1/job.pb.h"

namespace milepost::coordinator {

// What may happen to a job. "Holds slots": an attempt runs or winds up.
enum class JobCause : uint8_t {
  kSubmitted,         // a user submits it
  kStarted,           // all its ranks have slots
  kAllRunning,        // every rank has done its first step
  kRankFailed,        // a rank failed or its worker is lost
  kToldToLeave,       // a worker is leaving, or a straggler is replaced
  kPreempted,         // another job needs its slots
  kGrows,             // an elastic job gets more slots
  kTimeLimit,         // its time limit is up while it holds slots
  kSucceeded,         // every rank has succeeded
  kOver,              // all ranks are gone: what they were told to end for is so
  kBacksOff,          // all ranks are gone: it failed, and its budget allows another attempt
  kGivenUp,           // all ranks are gone: its budget is spent, or its user's error failed it
  kTimeSpent,         // all ranks are gone: it has held slots for as long as it may
  kCancelled,         // a user cancels it, and it holds no slots
  kCancelledHolding,  // a user cancels it, and it holds slots
  kSuspended,         // a user suspends it, and it holds no slots
  kSuspendedHolding,  // a user suspends it, and it holds slots
  kResumed,           // a user resumes it
};

struct JobMove {
  v1::JobState from;  // UNSPECIFIED: there was no such job
  JobCause cause;
  v1::JobState to;
};

absl::Span<const JobMove> JobMoves();

// nullopt: the cause cannot come in that state.
std::optional<v1::JobState> NextState(v1::JobState from, JobCause cause);

// Sets the job's state to the next one, which is known to exist.
void Move(JobCause cause, v1::Job* job);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_JOB_STATES_H_
