#include "coordinator/desks/worker_desk.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "common/proto_time.h"
#include "common/status_macros.h"
#include "coordinator/desks/attempt_desk.h"
#include "coordinator/desks/job_desk.h"
#include "coordinator/desks/paging.h"
#include "coordinator/desks/worker_limits.h"
#include "coordinator/desks/worker_session.h"
#include "coordinator/store/log_store.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {
namespace {

constexpr int kHeartbeatsPerLease = 5;

}  // namespace

WorkerDesk::WorkerDesk(const DeskTools& tools, AttemptDesk* attempts, JobDesk* jobs)
    : Desk(tools),
      attempts_(attempts),
      jobs_(jobs),
      log_writer_([this](const v1::LogBatch& batch) { StoreLogs(batch); }) {}

void WorkerDesk::Attach(const std::shared_ptr<WorkerSession>& session, const v1::Hello& hello,
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

bool WorkerDesk::IsCurrentLocked(const std::shared_ptr<WorkerSession>& session) const {
  const auto current = sessions_.find(session->worker());
  return current != sessions_.end() && current->second == session;
}

// What it says of the cluster.
Event WorkerDesk::EventOf(const std::string& worker, v1::WorkerMessage message) {
  switch (message.message_case()) {
    case v1::WorkerMessage::kLogs:
      return WorkerHeartbeat{worker};
    case v1::WorkerMessage::kRankReport:
      return RankReported{worker, std::move(*message.mutable_rank_report())};
    case v1::WorkerMessage::kProgress:
      return RankProgressed{worker, std::move(*message.mutable_progress())};
    case v1::WorkerMessage::kSpotNotice:
      spdlog::warn("{}: its host goes away: {}", worker, message.spot_notice().reason());
      return SpotNoticed{worker, std::move(*message.mutable_spot_notice())};
    case v1::WorkerMessage::kHealthReport:
      spdlog::info(
          "{}: health check: {}", worker,
          message.health_report().problem().empty() ? "passed" : message.health_report().problem());
      return HealthReported{worker, std::move(*message.mutable_health_report())};
    case v1::WorkerMessage::kLeaving:
      spdlog::info("{} is leaving: {}", worker, message.leaving().reason());
      return WorkerLeaving{worker, message.leaving().reason()};
    default: {
      auto* devices = message.mutable_heartbeat()->mutable_devices();
      return WorkerHeartbeat{worker, {devices->begin(), devices->end()}};
    }
  }
}

// Lines of ranks that it has not run are not kept.
void WorkerDesk::WriteLogs(const std::string& worker, v1::LogBatch batch,
                           std::function<void()> done) {
  auto* lines = batch.mutable_lines();
  {
    absl::ReaderMutexLock lock(&mutex_);
    const auto foreign = [&](const v1::LogLine& line) {
      mutex_.AssertReaderHeld();
      return !attempts_->IsItsLineLocked(worker, line);
    };
    lines->erase(std::remove_if(lines->begin(), lines->end(), foreign), lines->end());
  }
  log_writer_.Write(std::move(batch), std::move(done));
}

void WorkerDesk::Receive(const std::shared_ptr<WorkerSession>& session, v1::WorkerMessage message,
                         std::function<void()> done) {
  if (message.has_logs()) {
    message.DiscardUnknownFields();
    WriteLogs(session->worker(), std::move(*message.mutable_logs()), std::move(done));
    done = [] {};
  } else {
    BoundWorkerMessage(&message);
  }
  // What an older stream has to say does not count once a newer one was heard.
  const auto if_current =
      [this, session,
       event = EventOf(session->worker(), std::move(message))]() -> std::optional<Event> {
    mutex_.AssertReaderHeld();
    if (!IsCurrentLocked(session)) return std::nullopt;
    return event;
  };
  loop_.Post({.event = if_current,
              .guarded = true,
              .done = [session, done = std::move(done)](const auto& result) {
                if (!result.ok()) session->Cut(result.status());
                done();
              }});
}

void WorkerDesk::Detach(const std::shared_ptr<WorkerSession>& session) {
  const auto if_current = [this, session]() -> std::optional<Event> {
    mutex_.AssertReaderHeld();
    if (!IsCurrentLocked(session)) return std::nullopt;
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

void WorkerDesk::StoreLogs(const v1::LogBatch& batch) {
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
  for (const auto& [number, lines] : by_job) jobs_->LogsCame(number);
}

void WorkerDesk::TrimLogs() {
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

v1::Worker WorkerDesk::DescribeLocked(const v1::WorkerRecord& record) {
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

absl::StatusOr<v1::Worker> WorkerDesk::Get(const std::string& name) {
  absl::ReaderMutexLock lock(&mutex_);
  const v1::WorkerRecord* record = state_.FindWorker(name);
  if (record == nullptr) {
    return Refusal(v1::ERROR_REASON_WORKER_NOT_FOUND, name,
                   absl::StrCat("there is no worker '", name, "'"));
  }
  return DescribeLocked(*record);
}

std::vector<v1::Worker> WorkerDesk::List(const std::string& after, PageRoom* room) {
  absl::ReaderMutexLock lock(&mutex_);
  std::vector<v1::Worker> workers;
  for (auto it = state_.workers().upper_bound(after); it != state_.workers().end(); ++it) {
    v1::Worker worker = DescribeLocked(it->second);
    if (!room->Take(worker)) break;
    workers.push_back(std::move(worker));
  }
  return workers;
}

absl::StatusOr<v1::Worker> WorkerDesk::Drain(const v1::DrainWorkerRequest& request) {
  if (request.reason().empty() || request.reason().size() > kMaxLineBytes) {
    return absl::InvalidArgumentError(absl::StrCat("reason: must have 1 to ", kMaxLineBytes,
                                                   " bytes: it is shown wherever the worker is"));
  }
  const absl::Time deadline =
      IsSet(request.deadline()) ? FromProto(request.deadline()) : clock_->Now();
  MP_RETURN_IF_ERROR(Do(WorkerDrained{request.name(), request.reason(), deadline}).status());
  return Get(request.name());
}

absl::StatusOr<v1::Worker> WorkerDesk::Resume(const std::string& name) {
  MP_RETURN_IF_ERROR(Do(WorkerResumed{name}).status());
  return Get(name);
}

absl::Status WorkerDesk::Delete(const std::string& name) {
  return Do(WorkerDeleted{name}).status();
}

void WorkerDesk::SendLocked(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    auto session = sessions_.find(action.worker);
    if (session == sessions_.end()) continue;
    if (action.close) {
      spdlog::warn("{}: {}", action.worker, std::string(action.reason.message()));
      session->second->Cut(action.reason);
      sessions_.erase(session);
    } else {
      session->second->Send(action.message);
    }
  }
}

WorkerDesk::Sessions WorkerDesk::TakeSessionsLocked() { return std::exchange(sessions_, {}); }

}  // namespace milepost::coordinator
