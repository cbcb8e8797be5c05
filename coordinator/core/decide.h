// The coordinator's decisions: (state, event, now) -> what changes and what to tell the workers.
// Pure: the same arguments give the same answer; nothing is read but the arguments.
//
// Job:    job_states.h has the table: what happens in which state, and the state then.
// Worker: READY <-> DISCONNECTED (stream lost) -> DOWN (lease expired); READY -> DRAINING (leaving,
//         or drained: DRAINED when it has no ranks left, READY again by WorkerResumed)
//
// Budget: job.failures counts failed attempts since the job last committed a checkpoint beyond all
// earlier ones; one more than restart.max_failures fails the job. So a long job survives any number
// of failures as long as it gets on in between. A lost worker counts as a failure; a leaving
// worker, or a restart of the coordinator, does not. A failure of class USER would only repeat
// itself and fails the job at once.
//
// Scheduling is a decision of its own, DecideSchedule, which follows those that set
// Outcome::schedule, or several of them: scheduler.h has its rules.
#ifndef MILEPOST_COORDINATOR_CORE_DECIDE_H_
#define MILEPOST_COORDINATOR_CORE_DECIDE_H_

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "coordinator/core/state.h"

namespace milepost::coordinator {

// A job that has been validated and normalised. The same request_id (when not empty) gives the job
// that it gave before. Outcome::job is its name.
struct JobSubmitted {
  std::string request_id;
  std::string uid;  // used when the job is new
  v1::JobSpec spec;
  // Where the spec as submitted left something to the planner: it, and what was chosen.
  std::optional<v1::JobSpec> submitted_spec = std::nullopt;
  std::vector<v1::Choice> choices = {};
  // Memory that a GPU slot must have for one of its ranks; 0: any will do.
  int64_t slot_bytes = 0;
  // Of an elastic job all that it can run with, ascending; empty: all that are possible.
  std::vector<v1::JobSize> sizes = {};
  std::string project = {};
  std::map<std::string, std::string> labels = {};
  std::optional<v1::ForkOrigin> forked_from = std::nullopt;
  // Of a job of an array, without its name.
  std::optional<v1::ArrayMembership> array = std::nullopt;
  // Of all that was asked for with `request_id`; 0: not known.
  uint64_t request_digest = 0;
};
// Jobs with `array`, none with a request_id: all are added or, when one may not be, none.
// Outcome::job is the first one's name.
struct JobArraySubmitted {
  std::string request_id;
  std::vector<JobSubmitted> jobs;
  uint64_t request_digest = 0;
};
struct JobArrayCancelled {
  std::string array;
};
struct JobCancelled {
  std::string job;
};
// A job that has ended goes for good, with its checkpoints.
struct JobDeleted {
  std::string job;
  std::set<std::string> checkpoints = {};  // that it has
};
struct JobSuspended {
  std::string job;
};
// How many ranks a job may have, and what it was planned to need with each.
struct RankBounds {
  v1::ResourceSpec resources;
  std::vector<v1::JobSize> sizes = {};  // as in JobSubmitted
};
// New values of spec.scheduling and, where they are given, of the others; valid by themselves.
// ABORTED unless `etag` is empty or the job's. PERMISSION_DENIED when the time limit of a job that
// holds slots is raised or removed without `by_admin`: others have been promised these slots.
struct JobUpdated {
  std::string job;
  std::string etag;
  v1::SchedulingSpec scheduling;
  std::optional<RankBounds> bounds = std::nullopt;
  std::optional<std::map<std::string, std::string>> labels = std::nullopt;
  bool by_admin = false;  // of the job's project
};
// A new queue, or new values of one. With `create` ALREADY_EXISTS, without it NOT_FOUND unless
// `allow_missing`. ABORTED as above.
struct QueuePut {
  v1::Queue queue;
  bool create = false;
  bool allow_missing = false;
};
struct QueueDeleted {
  std::string name;
  std::string etag;
};
// Until `deadline` its jobs may go on.
struct WorkerDrained {
  std::string worker;
  std::string reason;
  absl::Time deadline;
};
struct WorkerResumed {
  std::string worker;
};
// FAILED_PRECONDITION unless it is DOWN.
struct WorkerDeleted {
  std::string worker;
};
// The worker's host is about to be taken away.
struct SpotNoticed {
  std::string worker;
  v1::SpotNotice notice;
};
// `newest_step`: see JobResumed in job.proto; INVALID_ARGUMENT unless it exceeds the steps done.
struct JobResumed {
  std::string job;
  std::string request_id;
  std::optional<int64_t> new_steps;
};
// First message of a worker's stream. FAILED_PRECONDITION, with its number, when a newer
// incarnation is known; INVALID_ARGUMENT for one that is too high (common/incarnation.h).
struct WorkerHello {
  v1::Hello hello;
};
// Any message renews the lease. `devices`: what was measured anew.
struct WorkerHeartbeat {
  std::string worker;
  std::vector<v1::DeviceFacts> devices = {};
};
struct HealthReported {
  std::string worker;
  v1::HealthReport report;
};
struct WorkerStreamLost {
  std::string worker;
};
struct WorkerLeaving {
  std::string worker;
  std::string reason;
};
struct RankReported {
  std::string worker;
  v1::RankReport report;
};
struct RankProgressed {
  std::string worker;
  v1::RankProgress progress;
};
// The job's newest checkpoint that can be resumed from is now this one (empty: none).
struct CheckpointsChanged {
  std::string job;
  std::string newest;
  int64_t newest_step = 0;
};
// Once, after the state was loaded from the store: every lease is extended, and times that were
// stored by another clock are bounded (clock_bounds.h).
struct CoordinatorRestarted {};
// Right after that, where the workers have ended together with who started them, as the processes
// of `milepost run` do: their ranks have ended as well, at no cost to their jobs.
struct WorkersGone {};
// For that long nobody has listened: no lease ends for it.
struct LeasesLengthened {
  absl::Duration by;
};
// At NextDeadline or later.
struct Tick {};

using Event =
    std::variant<JobSubmitted, JobArraySubmitted, JobCancelled, JobArrayCancelled, JobDeleted,
                 JobSuspended, JobResumed, JobUpdated, QueuePut, QueueDeleted, WorkerHello,
                 WorkerHeartbeat, HealthReported, WorkerStreamLost, WorkerLeaving, WorkerDrained,
                 WorkerResumed, WorkerDeleted, SpotNoticed, RankReported, RankProgressed,
                 CheckpointsChanged, CoordinatorRestarted, WorkersGone, LeasesLengthened, Tick>;

Outcome Decide(const State& state, const Event& event, absl::Time now, const Config& config);

// Several events in one decision, for one write: as if each had been decided on and applied before
// the next. Outcome::results has what became of each; a refused one changes nothing.
Outcome DecideAll(const State& state, absl::Span<const Event> events, absl::Time now,
                  const Config& config);

// Starts what can start, has others make room, says why the rest waits (Outcome::view).
Outcome DecideSchedule(const State& state, absl::Time now, const Config& config);

// The job as users see it: with the reason why it waits.
v1::Job Describe(const State& state, const v1::JobRecord& record);
// Of it what `fields` names; all where that is empty. They are known to be fields of a job.
v1::Job Describe(const State& state, const v1::JobRecord& record,
                 const google::protobuf::FieldMask& fields);
// And with its events, and what its ranks have last told.
v1::Job DescribeInFull(const State& state, const v1::JobRecord& record);

// OK when a request of this digest, for an array or not, is the one that made `record`; where no
// digest is known, the kind alone is compared. ALREADY_EXISTS otherwise: its id has been used.
absl::Status CheckSameRequest(const v1::JobRecord& record, bool of_array, uint64_t digest);
// A ResumeJob with this id has been decided on: one of the last 16.
bool HasResumed(const v1::JobRecord& record, absl::string_view request_id);

// When the next Tick is due: a lease ends, a back-off is over, a graceful stop or a time limit runs
// out, a drain begins, a host's health is to be checked. InfiniteFuture when nothing is pending.
absl::Time NextDeadline(const State& state);

std::string WorkerName(absl::string_view worker_id);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_DECIDE_H_
