// What the loop has around it in the process: the store, clocks, and all that follows a decision.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "common/status_macros.h"
#include "common/steady_time.h"
#include "coordinator/metrics/activity.h"
#include "coordinator/rpc/coordinator.h"
#include "coordinator/rpc/worker_session.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {
namespace {

// Between two calls of on_turn.
constexpr absl::Duration kTellEvery = absl::Milliseconds(500);

}  // namespace

absl::StatusOr<std::string> Coordinator::Do(Event event) {
  return coordinator::Do(&loop_, std::move(event));
}

absl::StatusOr<std::string> Coordinator::Do(Entry entry) {
  return coordinator::Do(&loop_, std::move(entry));
}

void Coordinator::AfterTurn() {
  EmptyBin();
  const absl::Time now = SteadyNow();
  if (!options_.on_turn || now < told_ + kTellEvery) return;
  told_ = now;
  Load load;
  {
    absl::ReaderMutexLock lock(&mutex_);
    load = {totals_.running(), totals_.waiting(), sessions_.size()};
  }
  options_.on_turn(load);
}

absl::Time Coordinator::Steady() { return SteadyNow(); }

Outcome Coordinator::Decide(const State& state, std::vector<Event>& events, absl::Time now) {
  return DecideAll(state, events, now, Values().config);
}

Outcome Coordinator::Schedule(const State& state, absl::Time now) {
  return DecideSchedule(state, now, Values().config);
}

void Coordinator::HeldUp(absl::Duration time) {
  spdlog::warn("the coordinator was held up for {}: leases are lengthened by as much",
               absl::FormatDuration(time));
}

void Coordinator::DecidedIn(absl::Duration took) { activity_->Decided(took); }

void Coordinator::ScheduledIn(absl::Duration took) { activity_->Scheduled(took); }

// Of jobs that end with this decision.
std::vector<StoredDelivery> Coordinator::MessagesOf(const Outcome& outcome) {
  std::vector<StoredDelivery> messages;
  if (options_.listener == nullptr) return messages;
  for (const int64_t number : outcome.durable_jobs) {
    const v1::Job& job = outcome.jobs.at(number).job();
    if (!IsTerminal(job.state())) continue;
    const v1::JobRecord* before = loop_.own_state().FindJob(number);
    if (before != nullptr && IsTerminal(before->job().state())) continue;
    for (v1::WebhookDelivery& message : options_.listener->MessagesFor(job)) {
      messages.push_back({next_delivery_++, std::move(message)});
    }
  }
  return messages;
}

// What was not delivered before the coordinator's restart. Numbers are never used again: they go on
// from the time.
absl::Status Coordinator::SendStored() {
  if (options_.listener == nullptr) return absl::OkStatus();
  MP_ASSIGN_OR_RETURN(const std::vector<StoredDelivery> stored, store_->LoadDeliveries());
  next_delivery_ = static_cast<uint64_t>(absl::ToUnixMicros(absl::Now()));
  for (const StoredDelivery& message : stored) {
    next_delivery_ = std::max(next_delivery_, message.number + 1);
    options_.listener->Send(message.number, message.delivery);
  }
  return absl::OkStatus();
}

absl::Status Coordinator::Write(const Outcome& outcome) {
  deliveries_ = MessagesOf(outcome);
  const absl::Time began = SteadyNow();
  absl::Status status = store_->Write(outcome, deliveries_);
  activity_->Wrote(SteadyNow() - began, status.ok());
  if (store_watch_.Wrote(status, SteadyNow()) && options_.on_broken_store) {
    options_.on_broken_store(status);
  }
  if (status.ok()) return status;
  deliveries_.clear();
  spdlog::error("a change of state cannot be stored and did not happen: {}",
                std::string(status.message()));
  return status;
}

void Coordinator::Durable(const State&, const Outcome&) {
  for (const StoredDelivery& message : std::exchange(deliveries_, {})) {
    options_.listener->Send(message.number, message.delivery);
  }
}

void Coordinator::Landing(const State& before, Outcome* outcome) {
  mutex_.AssertHeld();
  for (const auto& [number, record] : outcome->jobs) {
    const v1::JobRecord* known = before.FindJob(number);
    if (known == nullptr || known->job().state() != record.job().state()) {
      const std::string& detail = record.job().reason_detail();
      spdlog::info("{} is {}, generation {}{}{}", JobName(number),
                   v1::JobState_Name(record.job().state()).substr(10), record.job().generation(),
                   detail.empty() ? "" : ": ", detail);
    }
    if (known == nullptr || !AwaitedCheckpoint(record).empty()) continue;
    if (std::string name = AwaitedCheckpoint(*known); !name.empty()) released_.insert(name);
  }
  for (const auto& [number, record] : outcome->jobs) RememberLocked(number, record);
  for (const int64_t number : outcome->durable_jobs) {
    const v1::JobRecord& record = outcome->jobs.at(number);
    activity_->JobChanged(before.FindJob(number), record);
    totals_.Stored(number, record);
  }
  for (const int64_t number : outcome->deleted_jobs) ForgetLocked(number);
  curves_.Take(std::move(outcome->reports), outcome->deleted_jobs);
}

void Coordinator::Dispatch(const State& state, const Outcome& outcome) {
  mutex_.AssertHeld();
  for (int64_t number : outcome.ended_attempts) {
    rendezvous_.Drop(number);
    const v1::JobRecord* record = state.FindJob(number);
    if (record == nullptr) continue;  // deleted since: it had ended before
    const int64_t next = record->job().generation() + 1;
    store_->checkpoints().AbortOlder(JobName(number), next);
  }
  for (const auto& [number, record] : outcome.jobs) {
    ++versions_[number];
    waits_.Wake(number);
  }
  for (const int64_t number : outcome.deleted_jobs) waits_.Wake(number);
  if (outcome.view != nullptr) {  // who waits, and why
    ++view_version_;
    waits_.WakeAll();
  }
  for (const Action& action : outcome.actions) {
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

void Coordinator::Landed() { RetainReleased(std::exchange(released_, {})); }

}  // namespace milepost::coordinator
