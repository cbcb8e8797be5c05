// The coordinator's decisions: (state, event, now) -> what changes and what to tell the workers.
// Pure: the same arguments give the same answer; nothing is read but the arguments.
//
// Job:    QUEUED -> STARTING -> RUNNING -> SUCCEEDED
//         STARTING, RUNNING -> RECOVERING -> STARTING   a rank failed or its worker is lost
//         STARTING, RUNNING -> RECOVERING -> QUEUED     a worker is leaving: costs no budget
//         any -> CANCELLING -> CANCELLED;  RECOVERING -> FAILED when the budget is spent
//         a terminal state -> QUEUED by JobResumed
// Worker: READY <-> DISCONNECTED (stream lost) -> DOWN (lease expired); READY -> DRAINING (leaving)
//
// Budget: job.failures counts failed attempts since the job last committed a checkpoint beyond all
// earlier ones; one more than restart.max_failures fails the job. So a long job survives any number
// of failures as long as it gets on in between. A lost worker counts as a failure; a leaving
// worker, or a restart of the coordinator, does not. A failure of class USER would only repeat
// itself and fails the job at once.
//
// Scheduling: strictly first come, first served among the jobs of a device kind; all ranks of a job
// in one decision, on devices of one model, on the fewest workers. A slot whose device is out of
// order gets none. A job that is backing off keeps its place and its slots.
#ifndef MILEPOST_COORDINATOR_CORE_DECIDE_H_
#define MILEPOST_COORDINATOR_CORE_DECIDE_H_

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
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
};
struct JobCancelled {
  std::string job;
};
// `newest_step`: see JobResumed in job.proto; INVALID_ARGUMENT unless it exceeds the steps done.
struct JobResumed {
  std::string job;
  std::string request_id;
  std::optional<int64_t> new_steps;
};
// First message of a worker's stream. FAILED_PRECONDITION when a newer incarnation is known.
struct WorkerHello {
  v1::Hello hello;
};
// Any message renews the lease. `devices`: what was measured anew.
struct WorkerHeartbeat {
  std::string worker;
  std::vector<v1::DeviceFacts> devices = {};
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
// Once, after the state was loaded from the store: every lease is extended.
struct CoordinatorRestarted {};
// At NextDeadline or later.
struct Tick {};

using Event = std::variant<JobSubmitted, JobCancelled, JobResumed, WorkerHello, WorkerHeartbeat,
                           WorkerStreamLost, WorkerLeaving, RankReported, RankProgressed,
                           CheckpointsChanged, CoordinatorRestarted, Tick>;

Outcome Decide(const State& state, const Event& event, absl::Time now, const Config& config);

// When the next Tick is due: a lease ends, a back-off is over, a graceful stop runs out.
// InfiniteFuture when nothing is pending.
absl::Time NextDeadline(const State& state);

std::string WorkerName(absl::string_view worker_id);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_DECIDE_H_
