// What holds of scheduling whatever the load: random clusters, queues and jobs, simulated from
// event to event. A failure prints its seed.
//
// - No gang spans pools, and a job that asks for one is in that.
// - No slot is given twice, no job has fewer slots than ranks, none has some and waits for more.
// - No queue exceeds its limit by a start.
// - No two jobs make each other leave by turns: a victim of a job never makes that job leave.
// - Backfill delays no head: it starts no later than when it was first told.
// - Every job that the cluster can run at all ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "coordinator/core/fake_cluster.h"
#include "coordinator/core/queue_view.h"

namespace milepost::coordinator {
namespace {

struct Load {
  int hosts = 4;
  int slots = 4;
  bool priorities = true;
  bool queues = true;
  bool limits = true;  // every job has a time limit
  bool elastic = false;
  int pools = 0;  // of workers, beside those that are of none
};

class LoadedCluster {
 public:
  LoadedCluster(uint64_t seed, const Load& load) : load_(load), random_(seed) {
    cluster_.config.graceful_stop = absl::Seconds(10);
    cluster_.config.lease = absl::Hours(10'000);
    cluster_.config.resize_interval = absl::Seconds(30);
    for (int i = 0; i < load.hosts; ++i) {
      v1::Hello hello = FakeCluster::MakeHello(absl::StrCat("w", i), load.slots, 1);
      (*hello.mutable_labels())["rack"] = absl::StrCat("r", i / 2);
      if (const std::string pool = PickPool(); !pool.empty()) {
        (*hello.mutable_labels())["pool"] = pool;
      }
      slots_of_[hello.labels().contains("pool") ? hello.labels().at("pool") : ""] += load.slots;
      cluster_.Do(WorkerHello{hello});
    }
    if (load.queues) {
      Queue("a", Pick(0, 4), Pick(4, 16));
      Queue("b", Pick(0, 4), -1);
    }
  }

  std::string Run(int jobs) {
    for (int i = 0; i < jobs && error_.empty(); ++i) {
      Submit();
      for (int k = Pick(0, 3); k > 0; --k) Step();
    }
    for (int i = 0; i < 20'000 && error_.empty(); ++i) {
      if (cluster_.state.active().empty()) return "";
      Step();
    }
    return error_.empty() ? "a job never ended" : error_;
  }

 private:
  struct Running {
    absl::Time end;  // by itself
  };

  int Pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  // Draws nothing where there are none.
  std::string PickPool() {
    const int pool = load_.pools == 0 ? 0 : Pick(0, load_.pools);
    return pool == 0 ? "" : absl::StrCat("p", pool);
  }

  // The most that one gang can have in the pool; empty: in any.
  int MostSlots(const std::string& pool) const {
    int most = 0;
    for (const auto& [of, slots] : slots_of_) {
      if (pool.empty() || pool == of) most = std::max(most, slots);
    }
    return most;
  }

  void Queue(const std::string& id, int guaranteed, int limit) {
    v1::Queue queue;
    queue.set_name(QueueName(id));
    v1::SlotQuota* quota = queue.add_quotas();
    quota->set_device(v1::DEVICE_KIND_CPU);
    quota->set_guaranteed(guaranteed);
    if (limit >= 0) quota->set_limit(limit);
    limits_[id] = limit;
    cluster_.Do(QueuePut{queue, /*create=*/true});
  }

  void Submit() {
    const std::string pool = PickPool();
    if (MostSlots(pool) == 0) return;
    v1::JobSpec spec = FakeCluster::Spec(Pick(1, MostSlots(pool)));
    spec.mutable_resources()->set_pool(pool);
    v1::SchedulingSpec* scheduling = spec.mutable_scheduling();
    if (load_.queues) scheduling->set_queue(Pick(0, 1) == 0 ? "a" : "b");
    if (load_.priorities) scheduling->set_priority(Pick(-2, 2));
    const int seconds = Pick(20, 400);
    if (load_.limits || Pick(0, 1) == 0) scheduling->set_time_limit(seconds);
    JobSubmitted event{.spec = spec};
    if (load_.elastic && Pick(0, 1) == 0) MakeElastic(event);
    const Outcome outcome = cluster_.Do(event);
    if (!outcome.status.ok()) return;  // more than its queue may hold
    // Some end long before their limit.
    needs_[outcome.job] = absl::Seconds(Pick(0, 2) == 0 ? Pick(1, seconds) : seconds - 1);
    Check();
  }

  // Some sizes around the usual one.
  void MakeElastic(JobSubmitted& event) {
    v1::ResourceSpec* resources = event.spec.mutable_resources();
    std::set<int> sizes = {resources->ranks()};
    for (int i = Pick(1, 3); i > 0; --i) sizes.insert(Pick(1, MostSlots(resources->pool())));
    resources->set_min_ranks(*sizes.begin());
    resources->set_max_ranks(*sizes.rbegin());
    for (const int ranks : sizes) event.sizes.emplace_back().set_ranks(ranks);
  }

  static bool IsSize(const v1::JobRecord& record) {
    if (record.sizes().empty()) {
      return record.ranks_size() == record.job().spec().resources().ranks();
    }
    return std::any_of(record.sizes().begin(), record.sizes().end(), [&](const v1::JobSize& size) {
      return size.ranks() == record.ranks_size();
    });
  }

  bool IsInOnePool(const v1::JobRecord& record) const {
    const std::string& wanted = record.job().spec().resources().pool();
    std::set<std::string> pools;
    for (const v1::RankRecord& rank : record.ranks()) {
      pools.insert(PoolOf(cluster_.state.FindWorker(rank.worker())->worker()));
    }
    return pools.size() == 1 && (wanted.empty() || pools.contains(wanted));
  }

  // To the next thing that happens: a job ends by itself, or a rank that was told to leaves.
  void Step() {
    if (cluster_.state.active().empty()) return;
    Notice();
    absl::Time next = NextDeadline(cluster_.state);
    if (next > cluster_.now + absl::Hours(1000)) next = absl::InfiniteFuture();  // a lease
    std::string ends;
    for (const auto& [job, run] : running_) {
      if (run.end < next) {
        next = run.end;
        ends = job;
      }
    }
    std::vector<std::string> leaving;
    for (const int64_t number : cluster_.state.with_ranks()) {
      if (cluster_.state.FindJob(number)->ending() != v1::ATTEMPT_ENDING_NONE) {
        leaving.push_back(JobName(number));
      }
    }
    if (!leaving.empty()) {
      cluster_.now += absl::Milliseconds(Pick(0, 200));  // within graceful_stop for all
      Leave(leaving[Pick(0, static_cast<int>(leaving.size()) - 1)]);
    } else if (!ends.empty()) {
      cluster_.now = std::max(cluster_.now, next);
      running_.erase(ends);
      cluster_.ReportAll(ends, v1::RANK_STATE_SUCCEEDED);
    } else if (next < absl::InfiniteFuture()) {
      cluster_.now = std::max(cluster_.now, next);
      cluster_.Do(Tick{});
    } else {
      error_ = "nothing more happens";
    }
    Check();
  }

  // One rank after the other, so that slots come free by and by.
  void Leave(const std::string& job) {
    running_.erase(job);
    const v1::JobRecord& record = cluster_.Record(job);
    for (int i = 0; i < record.ranks_size(); ++i) {
      if (record.ranks(i).gone()) continue;
      cluster_.Send(cluster_.Report(job, i, v1::RANK_STATE_STOPPED));
      return;
    }
  }

  // Attempts that have started since the last look.
  void Notice() {
    for (const int64_t number : cluster_.state.with_ranks()) {
      const std::string job = JobName(number);
      const v1::JobRecord& record = cluster_.Record(job);
      if (record.ending() != v1::ATTEMPT_ENDING_NONE || running_.contains(job)) continue;
      if (!IsSize(record)) error_ = absl::StrCat(job, " has only some of its slots");
      if (!IsInOnePool(record)) error_ = absl::StrCat(job, " is not in one pool, or in another");
      // Somebody may have come meanwhile; not time and again.
      const bool in_vain = grows_.contains(number) && record.ranks_size() <= grows_[number];
      if (in_vain && ++in_vain_[number] > 3) {
        error_ = absl::StrCat(job, " is stopped to grow again and again, and does not");
      }
      grows_.erase(number);
      const auto told = told_.find(number);
      if (told != told_.end() && cluster_.now > told->second) {
        error_ = absl::StrCat(job, " started later than it was told");
      }
      told_.erase(number);
      running_[job] = {cluster_.now + needs_[job]};
      cluster_.ReportAll(job, v1::RANK_STATE_RUNNING);
    }
  }

  void Check() {
    if (!cluster_.violation.empty()) error_ = cluster_.violation;
    std::map<std::string, int> used;
    for (const int64_t number : cluster_.state.with_ranks()) {
      const v1::JobRecord& record = *cluster_.state.FindJob(number);
      for (const v1::RankRecord& rank : record.ranks()) {
        used[record.job().spec().scheduling().queue()] += rank.gone() ? 0 : 1;
      }
      if (record.ending() == v1::ATTEMPT_ENDING_RESIZE) {
        grows_[number] = record.ranks_size();
        for (const v1::RankRecord& rank : record.ranks()) {
          if (rank.state() == v1::RANK_STATE_SUCCEEDED) error_ = "one that has ended is resized";
        }
      }
      if (record.ending() != v1::ATTEMPT_ENDING_PREEMPT) continue;
      const int64_t winner = JobNumber(record.leaves_for());
      made_leave_[winner].insert(number);
      if (made_leave_[number].contains(winner)) {
        error_ = absl::StrCat(JobName(number), " and ", JobName(winner), " make each other leave");
      }
    }
    for (const auto& [queue, limit] : limits_) {
      if (limit >= 0 && used[queue] > limit) error_ = absl::StrCat(queue, " is over its limit");
    }
    // Without priorities and queues nobody may pass the head: what it was told first holds.
    if (load_.priorities || load_.queues) return;
    const auto kind = cluster_.state.queue_view()->kinds.find(v1::DEVICE_KIND_CPU);
    if (kind == cluster_.state.queue_view()->kinds.end()) return;
    for (const auto& [job, waiting] : kind->second.waiting) {
      if (waiting.code == WaitCode::kSlots) told_.try_emplace(job, kind->second.head_start);
    }
  }

  const Load load_;
  std::mt19937_64 random_;
  FakeCluster cluster_;
  std::map<std::string, int> slots_of_;  // by pool
  std::map<std::string, int> limits_;
  std::map<std::string, absl::Duration> needs_;
  std::map<std::string, Running> running_;
  std::map<int64_t, std::set<int64_t>> made_leave_;
  std::map<int64_t, absl::Time> told_;
  std::map<int64_t, int> grows_;    // jobs that are being resized, and what they had
  std::map<int64_t, int> in_vain_;  // how often a job had no more ranks then
  std::string error_;
};

TEST(SchedulingPropertiesTest, HoldUnderRandomQueuesAndPriorities) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    ASSERT_EQ(LoadedCluster(seed, {.limits = seed % 2 == 0}).Run(30), "") << "seed " << seed;
  }
}

TEST(SchedulingPropertiesTest, HoldOfElasticJobs) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    ASSERT_EQ(LoadedCluster(seed, {.limits = seed % 2 == 0, .elastic = true}).Run(30), "")
        << "seed " << seed;
    ASSERT_EQ(LoadedCluster(seed, {.priorities = false, .queues = false, .elastic = true}).Run(30),
              "")
        << "seed " << seed << " without queues";
  }
}

TEST(SchedulingPropertiesTest, HoldInPools) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const int pools = seed % 3 == 0 ? 3 : 1;
    const Load load = {
        .hosts = 6, .limits = seed % 2 == 0, .elastic = seed % 4 < 2, .pools = pools};
    ASSERT_EQ(LoadedCluster(seed, load).Run(30), "") << "seed " << seed;
    ASSERT_EQ(
        LoadedCluster(seed, {.hosts = 6, .priorities = false, .queues = false, .pools = pools})
            .Run(40),
        "")
        << "seed " << seed << " without queues";
  }
}

TEST(SchedulingPropertiesTest, BackfillDelaysNoHead) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    ASSERT_EQ(LoadedCluster(seed, {.priorities = false, .queues = false}).Run(40), "")
        << "seed " << seed;
  }
}

}  // namespace
}  // namespace milepost::coordinator
