#include "coordinator/desks/coordinator.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "coordinator/desks/worker_session.h"
#include "coordinator/metrics/activity.h"
#include "coordinator/metrics/cluster_series.h"
#include "coordinator/metrics/names.h"
#include "coordinator/metrics/series.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {
namespace {

// Between two calls of on_turn.
constexpr absl::Duration kTellEvery = absl::Milliseconds(500);

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
      thread_(&loop_, {.write = [this](const Outcome& outcome) { return Write(outcome); },
                       .after_turn = [this] { AfterTurn(); }}),
      attempts_({&loop_, store, &options_, clock_, &stopping_}),
      checkpoints_({&loop_, store, &options_, clock_, &stopping_}, &attempts_),
      files_({&loop_, store, &options_, clock_, &stopping_}),
      jobs_({&loop_, store, &options_, clock_, &stopping_}, activity_.get(), &checkpoints_,
            &files_),
      workers_({&loop_, store, &options_, clock_, &stopping_}, &attempts_, &jobs_),
      queues_({&loop_, store, &options_, clock_, &stopping_}) {}

Coordinator::~Coordinator() { Stop(); }

absl::Status Coordinator::Start() {
  MP_RETURN_IF_ERROR(attempts_.rendezvous().Load());
  MP_ASSIGN_OR_RETURN(State loaded, store_->LoadState());
  std::vector<Event> events;
  for (const int64_t number : loaded.active()) events.push_back(NewestCheckpoint(JobName(number)));
  events.push_back(CoordinatorRestarted{});
  if (options_.start_grace > absl::ZeroDuration()) {
    events.push_back(LeasesLengthened{options_.start_grace});
  }
  loop_.Load(std::move(loaded));
  {
    absl::MutexLock lock(&loop_.mutex());
    jobs_.LoadLocked();
    for (const auto& [number, record] : loop_.state().jobs()) {
      attempts_.RememberLocked(number, record);
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
  stopping_ = true;
  WorkerDesk::Sessions sessions;
  {
    absl::MutexLock lock(&loop_.mutex());
    sessions = workers_.TakeSessionsLocked();
    jobs_.WakeAll();
  }
  loop_.Close();
  for (auto& [name, session] : sessions) {
    session->Cut(Stopping());
  }
  workers_.Stop();
  thread_.Stop();
  jobs_.Stop();
}

void Coordinator::CollectMetrics(Series* series) {
  activity_->Collect(series);
  series->Set(Metric::kStartTime, {}, absl::ToUnixMillis(started_) / 1000.0);
  absl::ReaderMutexLock lock(&loop_.mutex());
  for (const auto& [key, count] : jobs_.TotalsLocked().by_state()) {
    series->Set(Metric::kJobs,
                {key.first.empty() ? kDefaultQueue : key.first, StateLabel(key.second)},
                static_cast<double>(count));
  }
  series->Set(Metric::kJobRecordBytes, {}, static_cast<double>(jobs_.TotalsLocked().bytes()));
  CollectState(loop_.state(), clock_->Now(), {}, series);
}

// ---- what the loop has around it ----

void Coordinator::AfterTurn() {
  checkpoints_.EmptyBin();
  files_.CollectNowAndThen();
  const absl::Time now = SteadyNow();
  if (!options_.on_turn || now < told_ + kTellEvery) return;
  told_ = now;
  Load load;
  {
    absl::ReaderMutexLock lock(&loop_.mutex());
    load = {jobs_.TotalsLocked().running(), jobs_.TotalsLocked().waiting(),
            workers_.ConnectedLocked()};
  }
  options_.on_turn(load);
}

CheckpointsChanged Coordinator::NewestCheckpoint(const std::string& job) {
  return checkpoints_.Newest(job);
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

void Coordinator::Durable(const State&, const Outcome& outcome) {
  // Messages of an earlier decision that was written and did not land are not sent.
  if (!outcome.NeedsWrite()) return;
  for (const StoredDelivery& message : std::exchange(deliveries_, {})) {
    options_.listener->Send(message.number, message.delivery);
  }
}

void Coordinator::Landing(const State& before, Outcome* outcome) {
  loop_.mutex().AssertHeld();
  for (const auto& [number, record] : outcome->jobs) {
    const v1::JobRecord* known = before.FindJob(number);
    if (known == nullptr || known->job().state() != record.job().state()) {
      const std::string& detail = record.job().reason_detail();
      spdlog::info("{} is {}, generation {}{}{}", JobName(number),
                   v1::JobState_Name(record.job().state()).substr(10), record.job().generation(),
                   detail.empty() ? "" : ": ", detail);
    }
    attempts_.RememberLocked(number, record);
  }
  for (const int64_t number : outcome->deleted_jobs) attempts_.ForgetLocked(number);
  checkpoints_.LandingLocked(before, *outcome);
  jobs_.LandingLocked(before, outcome);
}

void Coordinator::Dispatch(const State& state, const Outcome& outcome) {
  loop_.mutex().AssertHeld();
  for (const int64_t number : outcome.ended_attempts) {
    attempts_.rendezvous().Drop(number);
    const v1::JobRecord* record = state.FindJob(number);
    if (record == nullptr) continue;  // deleted since: it had ended before
    store_->checkpoints().AbortOlder(JobName(number), record->job().generation() + 1);
  }
  jobs_.ChangedLocked(outcome);
  workers_.SendLocked(outcome.actions);
}

void Coordinator::Landed() { checkpoints_.Landed(); }

}  // namespace milepost::coordinator
