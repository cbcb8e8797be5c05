#include "coordinator/rpc/coordinator.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "common/proto_time.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "coordinator/metrics/activity.h"
#include "coordinator/rpc/paging.h"
#include "coordinator/rpc/worker_limits.h"
#include "coordinator/rpc/worker_session.h"
#include "coordinator/security/principal.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/log_store.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {

namespace {

constexpr int kHeartbeatsPerLease = 5;
// By one List call, so that it does not hold up decisions for long.
constexpr int kMostLookedAt = 20'000;

class SteadyClock : public Clock {
 public:
  absl::Time Now() override {
    return wall_ + absl::FromChrono(std::chrono::steady_clock::now() - steady_);
  }

 private:
  const absl::Time wall_ = absl::Now();
  const std::chrono::steady_clock::time_point steady_ = std::chrono::steady_clock::now();
};

}  // namespace

Coordinator::Coordinator(Store* store, CoordinatorOptions options)
    : store_(store),
      options_(std::move(options)),
      own_clock_(options_.clock == nullptr ? std::make_unique<SteadyClock>() : nullptr),
      clock_(options_.clock == nullptr ? own_clock_.get() : options_.clock),
      activity_(std::make_unique<Activity>()),
      started_(clock_->Now()),
      rendezvous_(store),
      curves_(&store->curves()),
      thread_(&loop_, {.write = [this](const Outcome& outcome) { return Write(outcome); },
                       .after_turn = [this] { AfterTurn(); }}),
      log_writer_([this](const v1::LogBatch& batch) { StoreLogs(batch); }) {}

Coordinator::~Coordinator() { Stop(); }

absl::Status Coordinator::Start() {
  MP_RETURN_IF_ERROR(rendezvous_.Load());
  MP_ASSIGN_OR_RETURN(State loaded, store_->LoadState());
  std::vector<Event> events;
  for (const int64_t number : loaded.active()) events.push_back(NewestCheckpoint(JobName(number)));
  events.push_back(CoordinatorRestarted{});
  if (options_.start_grace > absl::ZeroDuration()) {
    events.push_back(LeasesLengthened{options_.start_grace});
  }
  loop_.Load(std::move(loaded));
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [number, record] : state_.jobs()) {
      versions_[number] = 1;
      RememberLocked(number, record);
      totals_.Stored(number, record);
    }
  }
  MP_RETURN_IF_ERROR(SendStored());
  MP_RETURN_IF_ERROR(thread_.Begin(std::move(events)));
  if (options_.workers_gone) MP_RETURN_IF_ERROR(NoteWorkersGone());
  thread_.Start();
  return absl::OkStatus();
}

absl::Status Coordinator::NoteWorkersGone() {
  const absl::Status stored = thread_.Begin({WorkersGone{}});
  // Whoever makes room on a full disk reads what is there first. The next start notes it.
  return absl::IsResourceExhausted(stored) ? absl::OkStatus() : stored;
}

void Coordinator::Stop() {
  plans_end_ = true;
  std::map<std::string, std::shared_ptr<WorkerSession>> sessions;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    sessions.swap(sessions_);  // a stream that ends now says nothing about its worker
    waits_.WakeAll();
  }
  loop_.Close();
  for (auto& [name, session] : sessions) {
    session->Cut(Stopping());
  }
  log_writer_.Stop();
  thread_.Stop();
  curves_.Stop();
}

// ---- jobs ----

absl::StatusOr<v1::Job> Coordinator::FindLocked(const std::string& name) {
  const v1::JobRecord* record = state_.FindJob(JobNumber(name));
  if (record == nullptr) return NoSuchJob(name);
  return Describe(state_, *record);
}

// Of all that Describe tells.
uint64_t Coordinator::VersionLocked(int64_t number) const {
  const v1::JobRecord* record = state_.FindJob(number);
  const bool waits = record != nullptr && FindWaiting(*state_.queue_view(), number,
                                                      record->job().spec().resources().device());
  const auto version = versions_.find(number);
  return (version == versions_.end() ? 0 : version->second) << 32 | (waits ? view_version_ : 0);
}

absl::StatusOr<v1::Job> Coordinator::Get(const std::string& name) {
  absl::ReaderMutexLock lock(&mutex_);
  const v1::JobRecord* record = state_.FindJob(JobNumber(name));
  if (record == nullptr) return FindLocked(name);
  return DescribeInFull(state_, *record);
}

Coordinator::JobPage Coordinator::List(int64_t before, int limit,
                                       const std::function<bool(const v1::Job&)>& wanted,
                                       const google::protobuf::FieldMask& fields) {
  absl::ReaderMutexLock lock(&mutex_);
  JobPage page;
  PageRoom room(limit);
  int looked_at = 0;
  const auto end = before == 0 ? state_.jobs().end() : state_.jobs().lower_bound(before);
  for (auto it = std::make_reverse_iterator(end); it != state_.jobs().rend(); ++it) {
    if (looked_at++ < kMostLookedAt) {
      if (wanted != nullptr && !wanted(it->second.job())) continue;
      v1::Job job = Describe(state_, it->second, fields);
      if (room.Take(job)) {
        page.jobs.push_back(std::move(job));
        continue;
      }
    }
    page.next_before = it->first + 1;
    break;
  }
  return page;
}

absl::StatusOr<v1::Job> Coordinator::Cancel(const std::string& name) {
  MP_RETURN_IF_ERROR(Do(JobCancelled{name}).status());
  return Get(name);
}

absl::StatusOr<v1::Job> Coordinator::Resume(const v1::ResumeJobRequest& request) {
  if (request.request_id().size() > kMaxRequestIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("request_id: at most ", kMaxRequestIdBytes, " bytes"));
  }
  JobResumed event{.job = request.name(), .request_id = request.request_id()};
  if (request.has_new_steps()) event.new_steps = request.new_steps();
  MP_RETURN_IF_ERROR(UpdateNewestCheckpoint(request.name()));
  MP_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> kept,
                      KeepForResuming(request.name(), request.request_id()));
  MP_RETURN_IF_ERROR(Do(std::move(event)).status());
  return Get(request.name());
}

absl::StatusOr<v1::Job> Coordinator::Suspend(const std::string& name) {
  MP_RETURN_IF_ERROR(Do(JobSuspended{name}).status());
  return Get(name);
}

absl::StatusOr<Coordinator::Snapshot> Coordinator::Wait(const std::string& name, uint64_t seen,
                                                        absl::Duration timeout) {
  const int64_t number = JobNumber(name);
  const absl::Time deadline = SteadyNow() + timeout;
  absl::ReaderMutexLock lock(&mutex_);
  JobWaits::Waiter waiter(&waits_, number);
  while (!stopping_ && state_.FindJob(number) != nullptr && VersionLocked(number) == seen) {
    if (waiter.Wait(&mutex_, deadline - SteadyNow())) break;
  }
  if (stopping_) return Stopping();
  if (state_.FindJob(number) != nullptr && VersionLocked(number) == seen) return Snapshot{{}, seen};
  MP_ASSIGN_OR_RETURN(v1::Job job, FindLocked(name));
  return Snapshot{std::move(job), VersionLocked(number)};
}

absl::StatusOr<v1::JobCurves> Coordinator::GetCurves(const std::string& name, int max_points) {
  if (max_points < 0) return absl::InvalidArgumentError("max_points: must be at least 0");
  const int64_t number = JobNumber(name);
  {
    absl::ReaderMutexLock lock(&mutex_);
    if (state_.FindJob(number) == nullptr) return NoSuchJob(name);
  }
  return curves_.Get(number, static_cast<size_t>(max_points));
}

void Coordinator::WaitLogs(const std::string& name, absl::Duration timeout) {
  absl::ReaderMutexLock lock(&mutex_);
  JobWaits::Waiter waiter(&waits_, JobNumber(name));
  if (!stopping_) waiter.Wait(&mutex_, timeout);
}

// ---- workers ----

void Coordinator::Attach(const std::shared_ptr<WorkerSession>& session, const v1::Hello& hello,
                         std::function<void(const absl::Status&)> done) {
  if (absl::Status status = CheckHello(hello); !status.ok()) return done(status);
  v1::CoordinatorMessage welcome;
  const double lease = absl::ToDoubleSeconds(Values().config.lease);
  welcome.mutable_welcome()->set_lease_seconds(lease);
  welcome.mutable_welcome()->set_heartbeat_seconds(lease / kHeartbeatsPerLease);
  v1::Hello bounded = hello;
  BoundWorkerMessage(&bounded);
  // A worker takes it for a sign that all is well, and begins its back-off anew: not before its
  // Hello is stored.
  const auto take_over = [this, session, welcome = std::move(welcome)] {
    mutex_.AssertHeld();
    if (stopping_) return;
    session->Send(welcome);
    std::shared_ptr<WorkerSession> before = std::exchange(sessions_[session->worker()], session);
    if (before == nullptr) return;
    before->Cut(Refusal(v1::ERROR_REASON_SESSION_REPLACED, session->worker(),
                        "a newer stream of this worker is open"));
  };
  loop_.Post({.event = [bounded = std::move(bounded)] { return WorkerHello{bounded}; },
              .applied = take_over,
              .done = [done = std::move(done)](const auto& result) { done(result.status()); }});
}

void Coordinator::Receive(const std::shared_ptr<WorkerSession>& session, v1::WorkerMessage message,
                          std::function<void()> done) {
  const std::string& worker = session->worker();
  if (message.has_logs()) {
    message.DiscardUnknownFields();
  } else {
    BoundWorkerMessage(&message);
  }
  Event event;
  switch (message.message_case()) {
    case v1::WorkerMessage::kLogs: {
      auto* lines = message.mutable_logs()->mutable_lines();
      {
        absl::ReaderMutexLock lock(&mutex_);
        const auto foreign = [&](const v1::LogLine& line) {
          mutex_.AssertReaderHeld();
          return !IsItsLineLocked(worker, line);
        };
        lines->erase(std::remove_if(lines->begin(), lines->end(), foreign), lines->end());
      }
      log_writer_.Write(std::move(*message.mutable_logs()), std::move(done));
      done = [] {};
      event = WorkerHeartbeat{worker};
      break;
    }
    case v1::WorkerMessage::kRankReport:
      event = RankReported{worker, std::move(*message.mutable_rank_report())};
      break;
    case v1::WorkerMessage::kProgress:
      event = RankProgressed{worker, std::move(*message.mutable_progress())};
      break;
    case v1::WorkerMessage::kSpotNotice:
      spdlog::warn("{}: its host goes away: {}", worker, message.spot_notice().reason());
      event = SpotNoticed{worker, std::move(*message.mutable_spot_notice())};
      break;
    case v1::WorkerMessage::kHealthReport:
      spdlog::info(
          "{}: health check: {}", worker,
          message.health_report().problem().empty() ? "passed" : message.health_report().problem());
      event = HealthReported{worker, std::move(*message.mutable_health_report())};
      break;
    case v1::WorkerMessage::kLeaving:
      spdlog::info("{} is leaving: {}", worker, message.leaving().reason());
      event = WorkerLeaving{worker, message.leaving().reason()};
      break;
    default: {
      auto* devices = message.mutable_heartbeat()->mutable_devices();
      event = WorkerHeartbeat{worker, {devices->begin(), devices->end()}};
    }
  }
  // What an older stream has to say does not count once a newer one was heard.
  const auto if_current = [this, session, event = std::move(event)]() -> std::optional<Event> {
    mutex_.AssertReaderHeld();
    auto current = sessions_.find(session->worker());
    if (current == sessions_.end() || current->second != session) return std::nullopt;
    return event;
  };
  loop_.Post({.event = if_current,
              .guarded = true,
              .done = [session, done = std::move(done)](const auto& result) {
                if (!result.ok()) session->Cut(result.status());
                done();
              }});
}

void Coordinator::Detach(const std::shared_ptr<WorkerSession>& session) {
  const auto if_current = [this, session]() -> std::optional<Event> {
    mutex_.AssertReaderHeld();
    auto current = sessions_.find(session->worker());
    if (current == sessions_.end() || current->second != session) return std::nullopt;
    return WorkerStreamLost{session->worker()};
  };
  const auto forget = [this, session] {
    mutex_.AssertHeld();
    sessions_.erase(session->worker());
    spdlog::info("{} disconnected", session->worker());
  };
  // Should this not be stored, the lease runs out all the same.
  loop_.Post({.event = if_current, .applied = forget, .guarded = true, .done = [](const auto&) {}});
}

void Coordinator::StoreLogs(const v1::LogBatch& batch) {
  std::map<int64_t, std::vector<v1::LogLine>> by_job;
  std::vector<int64_t> deleted;
  for (const v1::LogLine& line : batch.lines()) by_job[JobNumber(line.job())].push_back(line);
  for (auto& [number, lines] : by_job) {
    {
      absl::ReaderMutexLock lock(&mutex_);
      if (state_.FindJob(number) == nullptr) continue;
    }
    absl::Status status = store_->logs().Append(number, std::move(lines));
    if (!status.ok()) {
      spdlog::warn("log lines of {} are lost: {}", JobName(number), std::string(status.message()));
    }
    absl::ReaderMutexLock lock(&mutex_);
    if (state_.FindJob(number) == nullptr) deleted.push_back(number);  // meanwhile
  }
  for (const int64_t number : deleted) store_->logs().DeleteLate(number).IgnoreError();
  TrimLogs();
  for (const auto& [number, lines] : by_job) waits_.Wake(number);
}

void Coordinator::TrimLogs() {
  if (!store_->logs().IsOverTotal()) return;
  const absl::Status status = store_->logs().TrimTotal([this](int64_t number) {
    absl::ReaderMutexLock lock(&mutex_);
    const v1::JobRecord* record = state_.FindJob(number);
    if (record == nullptr) return absl::InfinitePast();
    const v1::Job& job = record->job();
    return IsTerminal(job.state()) ? FromProto(job.end_time()) : absl::InfiniteFuture();
  });
  if (!status.ok()) {
    spdlog::warn("old log lines cannot be dropped: {}", std::string(status.message()));
  }
}

v1::Worker Coordinator::DescribeLocked(const v1::WorkerRecord& record) {
  v1::Worker worker = record.worker();
  for (int64_t number : state_.WithRanksOn(worker.name())) {
    const v1::JobRecord& job = *state_.FindJob(number);
    for (const v1::RankRecord& rank : job.ranks()) {
      if (rank.gone() || rank.worker() != worker.name()) continue;
      v1::RankPlacementOfJob* assignment = worker.add_assignments();
      assignment->set_job(job.job().name());
      assignment->set_generation(job.job().generation());
      assignment->set_rank(rank.rank());
      assignment->set_slot(rank.slot());
    }
  }
  return worker;
}

absl::StatusOr<v1::Worker> Coordinator::GetWorker(const std::string& name) {
  absl::ReaderMutexLock lock(&mutex_);
  const v1::WorkerRecord* record = state_.FindWorker(name);
  if (record == nullptr) {
    return Refusal(v1::ERROR_REASON_WORKER_NOT_FOUND, name,
                   absl::StrCat("there is no worker '", name, "'"));
  }
  return DescribeLocked(*record);
}

std::vector<v1::Worker> Coordinator::ListWorkers(const std::string& after, PageRoom* room) {
  absl::ReaderMutexLock lock(&mutex_);
  std::vector<v1::Worker> workers;
  for (auto it = state_.workers().upper_bound(after); it != state_.workers().end(); ++it) {
    v1::Worker worker = DescribeLocked(it->second);
    if (!room->Take(worker)) break;
    workers.push_back(std::move(worker));
  }
  return workers;
}

absl::StatusOr<v1::Worker> Coordinator::Drain(const v1::DrainWorkerRequest& request) {
  if (request.reason().empty() || request.reason().size() > kMaxLineBytes) {
    return absl::InvalidArgumentError(absl::StrCat("reason: must have 1 to ", kMaxLineBytes,
                                                   " bytes: it is shown wherever the worker is"));
  }
  const absl::Time deadline =
      IsSet(request.deadline()) ? FromProto(request.deadline()) : clock_->Now();
  MP_RETURN_IF_ERROR(Do(WorkerDrained{request.name(), request.reason(), deadline}).status());
  return GetWorker(request.name());
}

absl::StatusOr<v1::Worker> Coordinator::ResumeWorker(const std::string& name) {
  MP_RETURN_IF_ERROR(Do(WorkerResumed{name}).status());
  return GetWorker(name);
}

absl::Status Coordinator::DeleteWorker(const std::string& name) {
  return Do(WorkerDeleted{name}).status();
}

// ---- attempts ----

absl::Status Coordinator::CheckGenerationLocked(const std::string& job, int64_t generation) {
  const v1::JobRecord* record = state_.FindJob(JobNumber(job));
  if (record == nullptr) return NoSuchJob(job);
  if (record->job().generation() == generation && !record->ranks().empty()) return absl::OkStatus();
  return Refusal(v1::ERROR_REASON_GENERATION_OVER, job,
                 absl::StrCat("generation ", generation, " of ", job, " is over (it is ",
                              v1::JobState_Name(record->job().state()).substr(10),
                              " with generation ", record->job().generation(), ")"));
}

absl::Status Coordinator::CheckGeneration(const std::string& job, int64_t generation) {
  absl::ReaderMutexLock lock(&mutex_);
  return CheckGenerationLocked(job, generation);
}

absl::Status Coordinator::WithGeneration(const std::string& job, int64_t generation,
                                         const std::function<absl::Status()>& action) {
  // Between two decisions no other generation can come to be.
  absl::Status status;
  const auto run = [&]() -> std::optional<Event> {
    mutex_.AssertReaderHeld();
    status = CheckGenerationLocked(job, generation);
    if (status.ok()) status = action();
    return std::nullopt;
  };
  MP_RETURN_IF_ERROR(Do(Entry{.event = run}).status());
  return status;
}

}  // namespace milepost::coordinator
