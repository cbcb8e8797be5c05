#include "coordinator/core/decide.h"

#include <algorithm>

#include "common/proto_time.h"
#include "coordinator/core/transition.h"

namespace milepost::coordinator {

namespace {

// Applies the event; says whether slots may have been freed or wanted.
struct Apply {
  Transition* transition;

  bool operator()(const JobSubmitted& event) {
    transition->Submit(event);
    return true;
  }
  bool operator()(const JobCancelled& event) {
    transition->Cancel(event.job);
    return true;
  }
  bool operator()(const JobResumed& event) {
    transition->Resume(event.job, event.request_id, event.new_steps);
    return true;
  }
  bool operator()(const WorkerHello& event) {
    transition->Hello(event.hello);
    return true;
  }
  bool operator()(const WorkerHeartbeat& event) {
    return transition->Heartbeat(event.worker, event.devices);
  }
  bool operator()(const WorkerStreamLost& event) {
    transition->StreamLost(event.worker);
    return true;
  }
  bool operator()(const WorkerLeaving& event) {
    transition->Leaving(event.worker, event.reason);
    return true;
  }
  bool operator()(const RankReported& event) {
    transition->Reported(event.worker, event.report);
    return true;
  }
  bool operator()(const RankProgressed& event) {
    transition->Progressed(event.worker, event.progress);
    return false;
  }
  bool operator()(const CheckpointsChanged& event) {
    transition->Checkpoints(event.job, event.newest, event.newest_step);
    return false;
  }
  bool operator()(const CoordinatorRestarted&) {
    transition->ExtendLeases();
    return false;
  }
  bool operator()(const Tick&) {
    transition->ExpireLeases();
    transition->KillOverdue();
    return true;
  }
};

}  // namespace

Outcome Decide(const State& state, const Event& event, absl::Time now, const Config& config) {
  Transition transition(state, now, config);
  const bool slots_may_change = std::visit(Apply{&transition}, event);
  if (slots_may_change) transition.Schedule();
  Outcome outcome = std::move(transition).Take();
  if (outcome.status.ok()) return outcome;
  Outcome refused;
  refused.status = outcome.status;
  return refused;
}

absl::Time NextDeadline(const State& state) {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [name, record] : state.workers()) {
    if (record.worker().state() == v1::WORKER_STATE_DOWN) continue;
    next = std::min(next, FromProto(record.worker().lease_expire_time()));
  }
  for (int64_t number : state.active()) {
    const v1::JobRecord& record = *state.FindJob(number);
    if (IsSet(record.stop_deadline())) next = std::min(next, FromProto(record.stop_deadline()));
    const bool backing_off = record.ranks().empty() && IsSet(record.job().next_attempt_time());
    if (backing_off) next = std::min(next, FromProto(record.job().next_attempt_time()));
  }
  return next;
}

}  // namespace milepost::coordinator
