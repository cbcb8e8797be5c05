#include "coordinator/core/decide.h"

#include <google/protobuf/util/field_mask_util.h>

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
  bool operator()(const JobArraySubmitted& event) {
    transition->SubmitArray(event);
    return true;
  }
  bool operator()(const JobArrayCancelled& event) {
    transition->CancelArray(event.array);
    return true;
  }
  bool operator()(const JobCancelled& event) {
    transition->Cancel(event.job);
    return true;
  }
  bool operator()(const JobDeleted& event) {
    transition->Delete(event);
    return false;
  }
  bool operator()(const JobResumed& event) {
    transition->Resume(event.job, event.request_id, event.new_steps);
    return true;
  }
  bool operator()(const JobSuspended& event) {
    transition->Suspend(event.job);
    return true;
  }
  bool operator()(const JobUpdated& event) {
    transition->Update(event);
    return true;
  }
  bool operator()(const QueuePut& event) {
    transition->Put(event);
    return true;
  }
  bool operator()(const QueueDeleted& event) {
    transition->Delete(event);
    return true;
  }
  bool operator()(const WorkerDrained& event) {
    transition->Drain(event.worker, event.reason, event.deadline);
    return true;
  }
  bool operator()(const WorkerResumed& event) {
    transition->EndDrain(event.worker);
    return true;
  }
  bool operator()(const WorkerDeleted& event) {
    transition->DeleteWorker(event.worker);
    return true;
  }
  bool operator()(const SpotNoticed& event) {
    transition->NoteSpot(event.worker, event.notice);
    return true;
  }
  bool operator()(const WorkerHello& event) {
    transition->Hello(event.hello);
    return true;
  }
  bool operator()(const WorkerHeartbeat& event) {
    return transition->Heartbeat(event.worker, event.devices);
  }
  bool operator()(const HealthReported& event) {
    return transition->NoteHealth(event.worker, event.report);
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
    return transition->Progressed(event.worker, event.progress);
  }
  bool operator()(const CheckpointsChanged& event) {
    transition->Checkpoints(event.job, event.newest, event.newest_step);
    return false;
  }
  bool operator()(const CoordinatorRestarted&) {
    transition->ExtendLeases();
    transition->BoundStoredTimes();
    return false;
  }
  bool operator()(const WorkersGone&) {
    transition->ForgetRanks();
    return true;
  }
  bool operator()(const LeasesLengthened& event) {
    transition->Lengthen(event.by);
    return false;
  }
  bool operator()(const Tick&) {
    transition->ExpireLeases();
    transition->StopOverdue();
    transition->BeginDrains();
    transition->CheckHosts();
    return true;
  }
};

// Whether the drain's deadline has something to do yet.
bool DrainIsAhead(const State& state, const std::string& worker) {
  const std::set<int64_t>& jobs = state.WithRanksOn(worker);
  return std::any_of(jobs.begin(), jobs.end(), [&](int64_t number) {
    const v1::JobRecord& record = *state.FindJob(number);
    return record.ending() == v1::ATTEMPT_ENDING_NONE && HasRankOn(record, worker);
  });
}

bool IsOfNewWorker(const State& state, const Event& event) {
  const auto* hello = std::get_if<WorkerHello>(&event);
  return hello != nullptr && state.FindWorker(WorkerName(hello->hello.worker_id())) == nullptr;
}

absl::Time NextDeadlineOf(const v1::JobRecord& record) {
  absl::Time next = absl::InfiniteFuture();
  if (IsSet(record.stop_deadline())) next = std::min(next, FromProto(record.stop_deadline()));
  const bool backing_off = record.ranks().empty() && IsSet(record.job().next_attempt_time());
  if (backing_off) next = std::min(next, FromProto(record.job().next_attempt_time()));
  if (record.ending() == v1::ATTEMPT_ENDING_NONE) next = std::min(next, TimeLimitEnd(record));
  if (IsSet(record.resize_after())) next = std::min(next, FromProto(record.resize_after()));
  return next;
}

}  // namespace

Outcome Decide(const State& state, const Event& event, absl::Time now, const Config& config) {
  return DecideAll(state, absl::MakeConstSpan(&event, 1), now, config);
}

Outcome DecideAll(const State& state, absl::Span<const Event> events, absl::Time now,
                  const Config& config) {
  Transition transition(state, now, config);
  std::vector<EventResult> results;
  bool schedule = false;
  for (const Event& event : events) {
    const bool slots_may_change = std::visit(Apply{&transition}, event);
    transition.NoteEvents();
    results.push_back(transition.TakeResult());
    schedule = schedule || (slots_may_change && results.back().status.ok());
  }
  const bool may_forget = std::any_of(events.begin(), events.end(), [&](const Event& event) {
    return std::holds_alternative<Tick>(event) || IsOfNewWorker(state, event);
  });
  if (may_forget) transition.ForgetWorkers();
  Outcome outcome = std::move(transition).Take();
  outcome.schedule = schedule;
  if (!results.empty()) {
    outcome.status = results[0].status;
    outcome.job = results[0].job;
  }
  outcome.results = std::move(results);
  return outcome;
}

Outcome DecideSchedule(const State& state, absl::Time now, const Config& config) {
  Transition transition(state, now, config);
  transition.Schedule();
  transition.NoteEvents();
  return std::move(transition).Take();
}

v1::Job Describe(const State& state, const v1::JobRecord& record) {
  v1::Job job = record.job();
  job.set_etag(EtagOf(record.scheduling_version()));
  const int64_t slot_bytes =
      record.sizes_size() > 0 ? record.sizes(0).slot_bytes() : record.slot_bytes();
  DescribeWait(*state.queue_view(), JobNumber(job.name()), slot_bytes, &job);
  return job;
}

v1::Job Describe(const State& state, const v1::JobRecord& record,
                 const google::protobuf::FieldMask& fields) {
  using google::protobuf::util::FieldMaskUtil;
  if (fields.paths().empty()) return Describe(state, record);
  v1::Job job;
  if (record.job().state() == v1::JOB_STATE_QUEUED ||
      record.job().state() == v1::JOB_STATE_RECOVERING) {
    job = Describe(state, record);  // why it waits is made of more than is asked for
    FieldMaskUtil::TrimMessage(fields, &job);
    return job;
  }
  FieldMaskUtil::MergeMessageTo(record.job(), fields, {}, &job);
  if (FieldMaskUtil::IsPathInFieldMask("etag", fields)) {
    job.set_etag(EtagOf(record.scheduling_version()));
  }
  return job;
}

v1::Job DescribeInFull(const State& state, const v1::JobRecord& record) {
  v1::Job job = Describe(state, record);
  *job.mutable_events() = record.events();
  job.set_events_left_out(record.events_left_out());
  for (v1::RankStats& stats : state.speeds().Stats(JobNumber(job.name()), job.generation())) {
    *job.add_rank_stats() = std::move(stats);
  }
  return job;
}

absl::Time NextDeadline(const State& state) {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [name, record] : state.workers()) {
    if (record.worker().state() == v1::WORKER_STATE_DOWN) continue;
    next = std::min(next, FromProto(record.worker().lease_expire_time()));
    next = std::min(next, NextHealthCheck(record.worker()));
    // Once its jobs have been told, their own deadlines count.
    const v1::Drain& drain = record.worker().drain();
    if (IsSet(drain.deadline()) && !state.WithRanksOn(name).empty() && DrainIsAhead(state, name)) {
      next = std::min(next, FromProto(drain.deadline()));
    }
  }
  for (int64_t number : state.timed()) {
    next = std::min(next, NextDeadlineOf(*state.FindJob(number)));
  }
  return next;
}

}  // namespace milepost::coordinator
