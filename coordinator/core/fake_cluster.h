// A coordinator and its workers without processes, disks or time: for tests of the decisions.
//
//   FakeCluster cluster;
//   cluster.Connect("a", /*slots=*/2);
//   std::string job = cluster.Submit(/*ranks=*/2);
//   cluster.ReportAll(job, v1::RANK_STATE_RUNNING);
//   EXPECT_EQ(cluster.Job(job).state(), v1::JOB_STATE_RUNNING);
//
// Do() decides, checks the invariants and keeps what was sent in `sent`.
#ifndef MILEPOST_COORDINATOR_CORE_FAKE_CLUSTER_H_
#define MILEPOST_COORDINATOR_CORE_FAKE_CLUSTER_H_

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/proto_time.h"
#include "coordinator/core/decide.h"

namespace milepost::coordinator {

struct FakeCluster {
  State state;
  Config config;
  absl::Time now = absl::FromUnixSeconds(1000);
  std::vector<Action> sent;   // since the last Clear
  std::string violation;      // of an invariant; empty: none
  std::set<int64_t> deleted;  // jobs

  // Decides; then schedules, where that has something to do.
  Outcome Do(const Event& event);
  void Clear() { sent.clear(); }
  void Advance(absl::Duration by);  // and Tick

  // A job of `ranks` ranks, max_failures 3, backoff 1 s.
  static v1::JobSpec Spec(int ranks);
  std::string Submit(int ranks, v1::DeviceKind device = v1::DEVICE_KIND_CPU);
  static v1::Hello MakeHello(const std::string& id, int slots, int64_t incarnation);
  Outcome Connect(const std::string& id, int slots, int64_t incarnation = 1);
  // A worker with one GPU slot for each model.
  static v1::Hello MakeGpuHello(const std::string& id, const std::vector<std::string>& models);

  void Apply(const Outcome& outcome);
  v1::Job Job(const std::string& name) const;
  const v1::JobRecord& Record(const std::string& name) const;
  const v1::Worker& Worker(const std::string& id) const;
  // A report of the current generation of one rank.
  v1::RankReport Report(const std::string& job, int rank, v1::RankState rank_state) const;
  void Send(const v1::RankReport& report);  // from the worker that the rank is assigned to
  void ReportAll(const std::string& job, v1::RankState rank_state);  // every rank not gone

  int Count(bool (v1::CoordinatorMessage::*has)() const) const;
  // Slots that a live rank or a stale process holds, each at most once; generations that never
  // shrink; terminal jobs without ranks.
  std::string CheckInvariants(const State& before, const State& after) const;
};

// ---- implementation ----

inline Outcome FakeCluster::Do(const Event& event) {
  Outcome outcome = Decide(state, event, now, config);
  if (!outcome.status.ok()) return outcome;
  Apply(outcome);
  if (outcome.schedule) Apply(DecideSchedule(state, now, config));
  return outcome;
}

inline void FakeCluster::Apply(const Outcome& outcome) {
  const State before = state;
  deleted.insert(outcome.deleted_jobs.begin(), outcome.deleted_jobs.end());
  state.Apply(outcome);
  if (violation.empty()) violation = CheckInvariants(before, state);
  sent.insert(sent.end(), outcome.actions.begin(), outcome.actions.end());
}

inline void FakeCluster::Advance(absl::Duration by) {
  now += by;
  Do(Tick{});
}

inline v1::JobSpec FakeCluster::Spec(int ranks) {
  v1::JobSpec spec;
  spec.mutable_train()->set_steps(100);
  spec.mutable_resources()->set_ranks(ranks);
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CPU);
  spec.mutable_restart()->set_max_failures(3);
  spec.mutable_restart()->set_backoff_seconds(1);
  return spec;
}

inline std::string FakeCluster::Submit(int ranks, v1::DeviceKind device) {
  v1::JobSpec spec = Spec(ranks);
  spec.mutable_resources()->set_device(device);
  return Do(JobSubmitted{.spec = std::move(spec)}).job;
}

inline v1::Hello FakeCluster::MakeHello(const std::string& id, int slots, int64_t incarnation) {
  v1::Hello hello;
  hello.set_worker_id(id);
  hello.set_incarnation(incarnation);
  hello.set_host(absl::StrCat("host-", id));
  for (int i = 0; i < slots; ++i) {
    v1::Slot* slot = hello.add_slots();
    slot->set_index(i);
    slot->set_device(v1::DEVICE_KIND_CPU);
  }
  return hello;
}

inline v1::Hello FakeCluster::MakeGpuHello(const std::string& id,
                                           const std::vector<std::string>& models) {
  v1::Hello hello = MakeHello(id, static_cast<int>(models.size()), 1);
  for (v1::Slot& slot : *hello.mutable_slots()) {
    slot.set_device(v1::DEVICE_KIND_CUDA);
    slot.set_model(models[slot.index()]);
  }
  return hello;
}

inline Outcome FakeCluster::Connect(const std::string& id, int slots, int64_t incarnation) {
  return Do(WorkerHello{MakeHello(id, slots, incarnation)});
}

inline const v1::JobRecord& FakeCluster::Record(const std::string& name) const {
  const v1::JobRecord* record = state.FindJob(JobNumber(name));
  MP_CHECK(record != nullptr) << name;
  return *record;
}

inline v1::Job FakeCluster::Job(const std::string& name) const {
  return Describe(state, Record(name));
}

inline const v1::Worker& FakeCluster::Worker(const std::string& id) const {
  const v1::WorkerRecord* record = state.FindWorker(WorkerName(id));
  MP_CHECK(record != nullptr) << id;
  return record->worker();
}

inline v1::RankReport FakeCluster::Report(const std::string& job, int rank,
                                          v1::RankState rank_state) const {
  v1::RankReport report;
  report.set_job(job);
  report.set_generation(Job(job).generation());
  report.set_rank(rank);
  if (rank < Record(job).ranks_size()) report.set_slot(Record(job).ranks(rank).slot());
  report.set_state(rank_state);
  *report.mutable_time() = ToProto(now);
  return report;
}

inline void FakeCluster::Send(const v1::RankReport& report) {
  const std::string worker = Record(report.job()).ranks(report.rank()).worker();
  Do(RankReported{worker, report});
}

inline void FakeCluster::ReportAll(const std::string& job, v1::RankState rank_state) {
  const int64_t generation = Job(job).generation();
  const int ranks = Record(job).ranks_size();
  for (int i = 0; i < ranks; ++i) {
    if (Job(job).generation() != generation || i >= Record(job).ranks_size()) return;
    if (!Record(job).ranks(i).gone()) Send(Report(job, i, rank_state));
  }
}

inline int FakeCluster::Count(bool (v1::CoordinatorMessage::*has)() const) const {
  int count = 0;
  for (const Action& action : sent) count += (action.message.*has)() ? 1 : 0;
  return count;
}

inline std::string FakeCluster::CheckInvariants(const State& before, const State& after) const {
  std::set<std::pair<std::string, int>> owned;
  auto own = [&](const std::string& worker, int slot) {
    return owned.emplace(worker, slot).second ? ""
                                              : absl::StrCat(worker, "/", slot, " owned twice");
  };
  for (const auto& [number, record] : after.jobs()) {
    const v1::JobRecord* old = before.FindJob(number);
    if (old != nullptr && old->job().generation() > record.job().generation()) {
      return absl::StrCat("generation of ", record.job().name(), " shrank");
    }
    if (IsTerminal(record.job().state()) && !record.ranks().empty()) {
      return absl::StrCat(record.job().name(), " is over and has ranks");
    }
    for (const v1::RankRecord& rank : record.ranks()) {
      if (rank.gone()) continue;
      if (std::string error = own(rank.worker(), rank.slot()); !error.empty()) return error;
    }
  }
  for (const auto& [number, record] : before.jobs()) {
    const bool there = after.FindJob(number) != nullptr;
    if (there == deleted.contains(number)) return absl::StrCat(record.job().name(), " is lost");
  }
  return "";
}

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_FAKE_CLUSTER_H_
