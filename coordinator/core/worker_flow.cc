// What happens to a worker: its lease, its stream, the ranks it says it has.
#include <algorithm>
#include <set>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "common/incarnation.h"
#include "common/proto_time.h"
#include "common/rank_state.h"
#include "coordinator/core/clock_bounds.h"
#include "coordinator/core/decide.h"
#include "coordinator/core/transition.h"

namespace milepost::coordinator {

namespace {

constexpr int kMostStale = 4096;
// No clock of a worker's counts for more.
constexpr absl::Duration kLongestSpotTime = absl::Hours(24);
constexpr size_t kMostDrainReason = 1024;  // bytes: an operator's, and what the host says

void RemoveStale(v1::WorkerRecord* record, const v1::RankReport& report) {
  auto* stale = record->mutable_stale();
  stale->erase(std::remove_if(stale->begin(), stale->end(),
                              [&](const v1::RankPlacementOfJob& entry) {
                                return entry.job() == report.job() &&
                                       entry.generation() == report.generation() &&
                                       entry.rank() == report.rank();
                              }),
               stale->end());
}

bool HasGpuSlot(const v1::Worker& worker, int index) {
  return std::any_of(worker.slots().begin(), worker.slots().end(), [&](const v1::Slot& slot) {
    return slot.index() == index && slot.device() == v1::DEVICE_KIND_CUDA;
  });
}

// True when what keeps the slot from being used is not what it was.
bool ReplaceFacts(const v1::DeviceFacts& facts, v1::Worker* worker) {
  for (v1::DeviceFacts& known : *worker->mutable_devices()) {
    if (known.slot() != facts.slot()) continue;
    const bool changed = known.problem() != facts.problem();
    known = facts;
    return changed;
  }
  *worker->add_devices() = facts;
  return !facts.problem().empty();
}

}  // namespace

std::string WorkerName(absl::string_view worker_id) { return absl::StrCat("workers/", worker_id); }

bool Transition::IsDown(const std::string& name) const {
  const v1::WorkerRecord* known = Worker(name);
  return known == nullptr || known->worker().state() == v1::WORKER_STATE_DOWN;
}

void Transition::Renew(const std::string& name) {
  if (IsDown(name)) return;
  *ChangeWorkerSoft(name).mutable_worker()->mutable_lease_expire_time() =
      ToProto(now_ + config_.lease);
}

bool Transition::Heartbeat(const std::string& name, const std::vector<v1::DeviceFacts>& devices) {
  Renew(name);
  bool slots_changed = false;
  for (const v1::DeviceFacts& facts : devices) {
    const v1::WorkerRecord* known = Worker(name);
    if (known == nullptr || !HasGpuSlot(known->worker(), facts.slot())) continue;
    slots_changed |= ReplaceFacts(facts, ChangeWorkerSoft(name).mutable_worker());
  }
  return slots_changed;
}

void Transition::Hello(const v1::Hello& hello) {
  const std::string name = WorkerName(hello.worker_id());
  const v1::WorkerRecord* known = Worker(name);
  const int64_t newest = known == nullptr ? 0 : known->worker().incarnation();
  if (hello.incarnation() < newest) {
    return Refuse(Superseded(name, hello.incarnation(), newest));
  }
  if (hello.incarnation() > std::max(kMostIncarnation, newest + 1)) {
    return Refuse(absl::InvalidArgumentError(
        absl::StrCat("incarnation: must be at most ", kMostIncarnation)));
  }
  const bool reborn = known != nullptr && hello.incarnation() > newest;
  if (reborn) {
    LoseRanks(name, absl::StrCat("worker ", hello.worker_id(), " restarted"));
  }
  v1::WorkerRecord& record = outcome_.workers.contains(name) ? outcome_.workers[name]
                             : known != nullptr              ? ChangeWorkerSoft(name)
                                                             : outcome_.workers[name];
  outcome_.forgotten_workers.erase(name);
  outcome_.durable_workers.insert(name);
  if (reborn) record.set_leaving(false);
  record.clear_stale();
  v1::Worker* worker = record.mutable_worker();
  if (reborn && worker->drain().spot()) worker->clear_drain();
  if (reborn) record.clear_spot_time();
  worker->set_name(name);
  const bool no_ranks = record.leaving() || worker->has_drain();
  worker->set_state(no_ranks ? v1::WORKER_STATE_DRAINING : v1::WORKER_STATE_READY);
  worker->set_incarnation(hello.incarnation());
  worker->set_host(hello.host());
  *worker->mutable_slots() = hello.slots();
  worker->set_version(hello.version());
  worker->clear_devices();
  for (const v1::DeviceFacts& facts : hello.devices()) {
    if (HasGpuSlot(*worker, facts.slot())) ReplaceFacts(facts, worker);
  }
  worker->set_driver(hello.driver());
  worker->set_device_note(hello.device_note());
  *worker->mutable_labels() = hello.labels();
  *worker->mutable_connect_time() = ToProto(now_);
  *worker->mutable_lease_expire_time() = ToProto(now_ + config_.lease);
  ReconcileRanks(name, hello);
  if (hello.has_spot_notice()) NoteSpot(name, hello.spot_notice());
  SettleDrain(name);
}

// The worker's list is the truth about its processes; ours is the truth about what should run.
void Transition::ReconcileRanks(const std::string& name, const v1::Hello& hello) {
  std::set<std::tuple<std::string, int64_t, int32_t>> mentioned;
  for (const v1::RankReport& report : hello.ranks()) {
    mentioned.emplace(report.job(), report.generation(), report.rank());
  }
  for (const v1::RankReport& report : hello.ranks()) Reported(name, report);
  for (int64_t number : JobsOn(name)) {
    const int ranks = Job(number)->ranks_size();
    for (int i = 0; i < ranks && i < Job(number)->ranks_size(); ++i) {
      const v1::JobRecord& record = *Job(number);
      const v1::RankRecord& rank = record.ranks(i);
      if (rank.worker() != name || rank.gone()) continue;
      if (mentioned.contains({record.job().name(), record.job().generation(), i})) {
        if (rank.stop() != v1::STOP_KIND_NONE) SendStop(record, rank);
        continue;
      }
      const bool never_started = rank.state() == v1::RANK_STATE_UNSPECIFIED;
      if (never_started && record.ending() == v1::ATTEMPT_ENDING_NONE) {
        SendStart(record, rank);
      } else if (never_started) {
        v1::RankRecord* changed = Change(number).mutable_ranks(i);
        changed->set_gone(true);  // the stop came before the start: nothing failed
        changed->set_state(v1::RANK_STATE_STOPPED);
      } else {
        RankLost(number, i, absl::StrCat(name, " no longer has the rank's process"));
      }
    }
    Settle(number);
  }
}

void Transition::Reported(const std::string& name, const v1::RankReport& report) {
  Renew(name);
  const int64_t number = JobNumber(report.job());
  const v1::JobRecord* record = Job(number);
  const bool current = record != nullptr && record->job().generation() == report.generation() &&
                       report.rank() >= 0 && report.rank() < record->ranks_size() &&
                       record->ranks(report.rank()).worker() == name &&
                       !record->ranks(report.rank()).gone();
  if (!current) return ReportStale(name, report);
  RankReported(number, report.rank(), report);
  Settle(number);
  SettleDrain(name);
}

// A rank that nobody waits for: of an older generation, or counted as lost since. Its slot is not
// free before its process has ended.
void Transition::ReportStale(const std::string& name, const v1::RankReport& report) {
  if (Worker(name) == nullptr || JobNumber(report.job()) <= 0) return;
  if (HasEnded(report.state())) {
    RemoveStale(&ChangeWorkerSoft(name), report);
    return SendForget(name, report);
  }
  AddStale(name, report);
  Action action{.worker = name};
  v1::StopRank* stop = action.message.mutable_stop_rank();
  stop->set_job(report.job());
  stop->set_generation(report.generation());
  stop->set_rank(report.rank());
  stop->set_graceful(false);
  outcome_.actions.push_back(std::move(action));
}

void Transition::AddStale(const std::string& name, const v1::RankReport& report) {
  v1::WorkerRecord& record = ChangeWorkerSoft(name);  // the next Hello would tell again
  RemoveStale(&record, report);
  if (record.stale_size() >= kMostStale) return;  // more than it can have slots
  v1::RankPlacementOfJob* stale = record.add_stale();
  stale->set_job(report.job());
  stale->set_generation(report.generation());
  stale->set_rank(report.rank());
  stale->set_slot(report.slot());
}

void Transition::LoseRanks(const std::string& name, const std::string& why) {
  for (int64_t number : JobsOn(name)) {
    bool changed = false;
    for (int i = 0; i < Job(number)->ranks_size(); ++i) {
      const v1::RankRecord& rank = Job(number)->ranks(i);
      if (rank.worker() != name || rank.gone()) continue;
      RankLost(number, i, why);
      changed = true;
    }
    if (changed) Settle(number);
  }
}

void Transition::StreamLost(const std::string& name) {
  if (IsDown(name)) return;
  v1::WorkerRecord& record = ChangeWorkerSoft(name);
  const bool has_ranks = HasRanks(name);
  const bool left = record.leaving() && !has_ranks;
  if (left) outcome_.durable_workers.insert(name);
  v1::Worker* worker = record.mutable_worker();
  worker->set_state(left ? v1::WORKER_STATE_DOWN : v1::WORKER_STATE_DISCONNECTED);
  if (left) *worker->mutable_lease_expire_time() = ToProto(now_);
}

void Transition::Leaving(const std::string& name, const std::string& reason) {
  const v1::WorkerRecord* known = Worker(name);
  if (known == nullptr) return;
  Renew(name);
  v1::WorkerRecord& record = ChangeWorker(name);
  record.set_leaving(true);
  if (record.worker().state() == v1::WORKER_STATE_READY) {
    record.mutable_worker()->set_state(v1::WORKER_STATE_DRAINING);
  }
  Evict(name, absl::StrCat(name, " is leaving", reason.empty() ? "" : ": ", reason));
}

// The jobs with ranks there checkpoint and go elsewhere.
void Transition::Evict(const std::string& name, const std::string& why) {
  for (int64_t number : JobsOn(name)) {
    if (!HasRankOn(*Job(number), name)) continue;
    BeginEnding(number, v1::ATTEMPT_ENDING_REQUEUE, v1::JOB_REASON_WORKER_LEAVING, why);
    Settle(number);
  }
}

bool Transition::HasRanks(const std::string& name) const {
  const std::vector<int64_t> jobs = JobsOn(name);
  return std::any_of(jobs.begin(), jobs.end(),
                     [&](int64_t number) { return HasRankOn(*Job(number), name); });
}

void Transition::Drain(const std::string& name, const std::string& reason, absl::Time deadline) {
  if (Worker(name) == nullptr) {
    return Refuse(Refusal(v1::ERROR_REASON_WORKER_NOT_FOUND, name,
                          absl::StrCat("there is no worker '", name, "'")));
  }
  v1::Worker* worker = ChangeWorker(name).mutable_worker();
  v1::Drain* drain = worker->mutable_drain();
  // The host goes away when it has said, whatever anybody wishes.
  if (drain->spot()) deadline = std::min(deadline, FromProto(drain->deadline()));
  drain->set_reason(reason);
  drain->set_spot(false);
  if (!IsSet(drain->request_time())) *drain->mutable_request_time() = ToProto(now_);
  *drain->mutable_deadline() = ToProto(deadline);
  if (worker->state() == v1::WORKER_STATE_READY) worker->set_state(v1::WORKER_STATE_DRAINING);
  BeginDrains();
  SettleDrain(name);
}

// A drain that somebody has asked for stays his, with the earlier deadline: it outlasts the
// worker's restart. A notice that is said again changes nothing: somebody may have answered it
// with a resumption.
void Transition::NoteSpot(const std::string& name, const v1::SpotNotice& notice) {
  if (Worker(name) == nullptr) return;
  Renew(name);
  const v1::WorkerRecord& known = *Worker(name);
  if (known.has_spot_time() && FromProto(known.spot_time()) == FromProto(notice.time())) return;
  v1::WorkerRecord& record = ChangeWorker(name);
  *record.mutable_spot_time() = notice.time();
  v1::Worker* worker = record.mutable_worker();
  const bool drained = worker->has_drain();
  const bool asked = drained && !worker->drain().spot();
  v1::Drain* drain = worker->mutable_drain();
  const std::string reason = absl::StrCat("its host goes away: ", notice.reason());
  absl::Time deadline = now_;
  if (notice.has_deadline()) {
    deadline = std::clamp(FromProto(notice.deadline()), now_, now_ + kLongestSpotTime);
  }
  if (drained) deadline = std::min(deadline, FromProto(drain->deadline()));
  if (!asked) {
    drain->set_reason(reason);
  } else if (!absl::StrContains(drain->reason(), reason)) {
    const std::string both = absl::StrCat(drain->reason(), "; ", reason);
    if (both.size() <= kMostDrainReason) drain->set_reason(both);
  }
  drain->set_spot(!asked);
  if (!drained) *drain->mutable_request_time() = ToProto(now_);
  *drain->mutable_deadline() = ToProto(deadline);
  if (worker->state() == v1::WORKER_STATE_READY) worker->set_state(v1::WORKER_STATE_DRAINING);
  BeginDrains();
  SettleDrain(name);
}

void Transition::EndDrain(const std::string& name) {
  const v1::WorkerRecord* known = Worker(name);
  if (known == nullptr) {
    return Refuse(Refusal(v1::ERROR_REASON_WORKER_NOT_FOUND, name,
                          absl::StrCat("there is no worker '", name, "'")));
  }
  v1::WorkerRecord& record = ChangeWorker(name);
  record.clear_failures();  // somebody has looked at it
  record.mutable_worker()->clear_exclusion();
  if (!record.worker().has_drain()) return;
  v1::Worker* worker = record.mutable_worker();
  worker->clear_drain();
  const bool connected =
      worker->state() == v1::WORKER_STATE_DRAINING || worker->state() == v1::WORKER_STATE_DRAINED;
  if (connected && !record.leaving()) worker->set_state(v1::WORKER_STATE_READY);
}

void Transition::DeleteWorker(const std::string& name) {
  const v1::WorkerRecord* known = Worker(name);
  if (known == nullptr) {
    return Refuse(Refusal(v1::ERROR_REASON_WORKER_NOT_FOUND, name,
                          absl::StrCat("there is no worker '", name, "'")));
  }
  if (known->worker().state() != v1::WORKER_STATE_DOWN) {
    return Refuse(Refusal(
        v1::ERROR_REASON_WORKER_NOT_DOWN, name,
        absl::StrCat(name, " is ", v1::WorkerState_Name(known->worker().state()).substr(13),
                     "; only a worker that is DOWN can be deleted: stop it first, or wait until "
                     "its lease is over")));
  }
  for (const int64_t number : JobsOn(name)) {
    const auto& ranks = Job(number)->ranks();
    const bool there = std::any_of(ranks.begin(), ranks.end(), [&](const v1::RankRecord& rank) {
      return rank.worker() == name;
    });
    if (!there) continue;
    return Refuse(Refusal(v1::ERROR_REASON_WORKER_NOT_DOWN, name,
                          absl::StrCat("an attempt of ", JobName(number), " that had ranks on ",
                                       name, " is still ending; try again in a moment")));
  }
  outcome_.workers.erase(name);
  outcome_.durable_workers.erase(name);
  outcome_.forgotten_workers.insert(name);
}

void Transition::BeginDrains() {
  for (const auto& [name, record] : state_.workers()) {
    const v1::WorkerRecord* known = Worker(name);
    if (known == nullptr) continue;
    const v1::Drain& drain = known->worker().drain();
    if (!IsSet(drain.deadline()) || FromProto(drain.deadline()) > now_) continue;
    Evict(name, absl::StrCat(name, " is drained: ", drain.reason()));
  }
}

// A drained worker that is connected and has no ranks left is DRAINED.
void Transition::SettleDrain(const std::string& name) {
  const v1::WorkerRecord* known = Worker(name);
  if (known == nullptr || !known->worker().has_drain()) return;
  if (known->worker().state() != v1::WORKER_STATE_DRAINING || HasRanks(name)) return;
  ChangeWorker(name).mutable_worker()->set_state(v1::WORKER_STATE_DRAINED);
}

void Transition::Lengthen(absl::Duration by) {
  for (const auto& [name, record] : state_.workers()) {
    if (IsDown(name)) continue;
    v1::Worker* worker = ChangeWorkerSoft(name).mutable_worker();
    *worker->mutable_lease_expire_time() = ToProto(FromProto(worker->lease_expire_time()) + by);
  }
}

void Transition::ExtendLeases() {
  for (const auto& [name, record] : state_.workers()) {
    if (IsDown(name)) continue;
    v1::Worker* worker = ChangeWorkerSoft(name).mutable_worker();
    worker->set_state(v1::WORKER_STATE_DISCONNECTED);
    *worker->mutable_lease_expire_time() = ToProto(now_ + config_.lease);
  }
}

void Transition::ForgetRanks() {
  for (const auto& [name, record] : state_.workers()) {
    if (IsDown(name)) continue;
    v1::Worker* worker = ChangeWorker(name).mutable_worker();
    worker->set_state(v1::WORKER_STATE_DOWN);
    *worker->mutable_lease_expire_time() = ToProto(now_);
  }
  for (const int64_t number : JobsWithRanks()) {
    v1::JobRecord& record = Change(number);
    // That may have been days ago: of the time that they held their slots what is known counts.
    const absl::Duration known =
        std::max(absl::ZeroDuration(), absl::Seconds(record.job().progress().productive_seconds()));
    *record.mutable_attempt_start_time() =
        ToProto(std::max(FromProto(record.attempt_start_time()), now_ - known));
    for (v1::RankRecord& rank : *record.mutable_ranks()) {
      if (rank.gone()) continue;
      rank.set_gone(true);
      rank.set_state(v1::RANK_STATE_STOPPED);
      // Others may have lost it as a peer before they ended as well.
      record.set_rank_stopped(true);
    }
    BeginEnding(number, v1::ATTEMPT_ENDING_REQUEUE, v1::JOB_REASON_WORKER_LEAVING,
                "its workers ended together, with who had started them");
    Settle(number);
  }
}

void Transition::BoundStoredTimes() {
  for (const int64_t number : state_.active()) {
    v1::JobRecord record = *Job(number);
    if (BoundTimes(now_, config_, &record)) ChangeSoft(number) = std::move(record);
  }
  for (const auto& [name, unused] : state_.workers()) {
    const v1::WorkerRecord* known = Worker(name);
    if (known == nullptr) continue;
    v1::WorkerRecord record = *known;
    if (BoundTimes(now_, &record)) ChangeWorkerSoft(name) = std::move(record);
  }
}

void Transition::ExpireLeases() {
  for (const auto& [name, record] : state_.workers()) {
    if (IsDown(name)) continue;
    if (FromProto(Worker(name)->worker().lease_expire_time()) > now_) continue;
    ChangeWorker(name).mutable_worker()->set_state(v1::WORKER_STATE_DOWN);
    const std::string why =
        absl::StrCat("nothing was heard of ", name, " for ", absl::FormatDuration(config_.lease));
    LoseRanks(name, why);
    // Should its stream still be open, a new Hello puts things right.
    outcome_.actions.push_back(
        {.worker = name, .close = true, .reason = absl::UnavailableError(why)});
  }
}

void Transition::ForgetWorkers() {
  if (!outcome_.NeedsWrite()) return;
  for (const auto& [name, record] : state_.workers()) {
    const v1::Worker& worker = record.worker();
    if (worker.state() != v1::WORKER_STATE_DOWN || outcome_.workers.contains(name)) continue;
    if (FromProto(worker.lease_expire_time()) + config_.forget_worker_after > now_) continue;
    const bool drained = worker.has_drain() && !worker.drain().spot();
    if (drained || worker.has_exclusion() || !state_.WithRanksOn(name).empty()) continue;
    outcome_.forgotten_workers.insert(name);
  }
}

}  // namespace milepost::coordinator
