// Decisions under random workers, messages, losses and restarts. A failure prints its seed.
//
// The fake workers keep processes and report as real ones do: level-triggered, with messages that
// may be lost. Checked at every event: no slot owned twice, generations only grow, no job lost
// (FakeCluster); at the end: every job has ended.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <tuple>

#include "coordinator/core/fake_cluster.h"

namespace milepost::coordinator {
namespace {

using RankKey = std::tuple<std::string, int64_t, int>;  // job, generation, rank

struct SimWorker {
  std::string id;
  int64_t incarnation = 1;
  int slots = 1;
  bool alive = true;
  bool connected = false;
  bool leaving = false;
  std::map<RankKey, v1::RankReport> ranks;  // running, or ended and not forgotten
  std::map<RankKey, bool> stopping;         // told to stop, still there; true: gracefully
  std::optional<v1::CheckHealth> check;     // asked for, not answered
};

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed) {
    cluster_.config.lease = absl::Seconds(5);
    for (int i = 0; i < 4; ++i) {
      workers_.push_back({.id = "w" + std::to_string(i), .slots = Pick(1, 4)});
    }
  }

  // Chaos for `steps` events, then calm until all jobs have ended. The violated invariant, or "".
  std::string Run(int steps) {
    for (int i = 0; i < steps && cluster_.violation.empty(); ++i) Chaos();
    faults_ = false;
    for (SimWorker& worker : workers_) {
      if (!worker.alive || worker.leaving) Restart(&worker);
    }
    for (int i = 0; i < 5000 && cluster_.violation.empty(); ++i) {
      if (cluster_.state.active().empty()) return "";
      Calm();
    }
    return cluster_.violation.empty() ? "a job never ended" : cluster_.violation;
  }

 private:
  int Pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  SimWorker& Any() { return workers_[Pick(0, static_cast<int>(workers_.size()) - 1)]; }

  void Chaos() {
    const int dice = Pick(0, 99);
    if (dice < 8) {
      Submit();
    } else if (dice < 11 && cluster_.state.NextJobNumber() > 1) {
      Do(JobCancelled{JobName(Pick(1, static_cast<int>(cluster_.state.NextJobNumber()) - 1))});
    } else if (dice < 15) {
      Kill(&Any());
    } else if (dice < 22) {
      Disconnect(&Any());
    } else if (dice < 24) {
      Leave(&Any());
    } else if (dice < 27) {
      RestartCoordinator();
    } else {
      Calm();
    }
  }

  void Calm() {
    SimWorker& worker = Any();
    if (!worker.alive) return Restart(&worker);
    if (!worker.connected) return Connect(&worker);
    if (Pick(0, 3) == 0) {
      cluster_.now += absl::Milliseconds(Pick(10, 1500));
      for (SimWorker& other : workers_) {
        if (other.connected) Do(WorkerHeartbeat{WorkerName(other.id)});
      }
      Do(Tick{});
    } else {
      Advance(&worker);
    }
  }

  void Submit() {
    v1::JobSpec spec = FakeCluster::Spec(Pick(1, 4));
    spec.mutable_restart()->set_max_failures(2);
    Do(JobSubmitted{.spec = spec});
  }

  // Decides, and delivers what is sent to the workers that are connected.
  void Do(const Event& event) {
    cluster_.Clear();
    cluster_.Do(event);
    for (const Action& action : cluster_.sent) Deliver(action);
  }

  void Deliver(const Action& action) {
    for (SimWorker& worker : workers_) {
      if (WorkerName(worker.id) != action.worker || !worker.connected) continue;
      // A message is lost only with its stream.
      const bool lost = action.close || (faults_ && Pick(0, 19) == 0);
      if (!lost) {
        Handle(&worker, action.message);
        continue;
      }
      worker.connected = false;
      lost_streams_.push_back(action.worker);
    }
  }

  void Handle(SimWorker* worker, const v1::CoordinatorMessage& message) {
    if (message.has_start_rank()) {
      const v1::StartRank& start = message.start_rank();
      v1::RankReport& rank = worker->ranks[{start.job(), start.generation(), start.rank()}];
      if (rank.state() != v1::RANK_STATE_UNSPECIFIED) return;
      for (const auto& [key, other] : worker->ranks) {
        const bool runs =
            other.state() == v1::RANK_STATE_STARTING || other.state() == v1::RANK_STATE_RUNNING;
        if (runs && other.slot() == start.slot()) {
          cluster_.violation = "two processes on one slot of " + worker->id;
        }
      }
      rank.set_job(start.job());
      rank.set_generation(start.generation());
      rank.set_rank(start.rank());
      rank.set_slot(start.slot());
      rank.set_state(v1::RANK_STATE_STARTING);
    } else if (message.has_stop_rank()) {
      const v1::StopRank& stop = message.stop_rank();
      auto rank = worker->ranks.find({stop.job(), stop.generation(), stop.rank()});
      if (rank == worker->ranks.end() || rank->second.state() >= v1::RANK_STATE_SUCCEEDED) return;
      bool& graceful = worker->stopping.try_emplace(rank->first, true).first->second;
      graceful = graceful && stop.graceful();
    } else if (message.has_check_health()) {
      worker->check = message.check_health();
    } else if (message.has_forget_rank()) {
      const v1::ForgetRank& forget = message.forget_rank();
      worker->ranks.erase({forget.job(), forget.generation(), forget.rank()});
    }
  }

  void AnswerCheck(SimWorker* worker) {
    v1::HealthReport report;
    *report.mutable_exclusion_time() = worker->check->exclusion_time();
    if (faults_ && Pick(0, 1) == 0) report.set_problem("it is not well");
    worker->check.reset();
    Do(HealthReported{WorkerName(worker->id), report});
    Reap();
  }

  // One rank of the worker gets on, or says again what it has said.
  void Advance(SimWorker* worker) {
    if (worker->check.has_value()) return AnswerCheck(worker);
    if (worker->ranks.empty()) return;
    auto it = std::next(worker->ranks.begin(), Pick(0, static_cast<int>(worker->ranks.size()) - 1));
    v1::RankReport& rank = it->second;
    if (auto stop = worker->stopping.extract(it->first); !stop.empty()) {
      rank.set_state(stop.mapped() ? v1::RANK_STATE_STOPPED : v1::RANK_STATE_FAILED);
      rank.set_signal(stop.mapped() ? 0 : 9);
    } else if (rank.state() == v1::RANK_STATE_STARTING) {
      rank.set_state(v1::RANK_STATE_RUNNING);
    } else if (rank.state() == v1::RANK_STATE_RUNNING) {
      const bool fails = faults_ && Pick(0, 9) == 0;
      rank.set_state(fails ? v1::RANK_STATE_FAILED : v1::RANK_STATE_SUCCEEDED);
      rank.set_peer_lost(fails && Pick(0, 1) == 0);
    }
    const v1::RankReport report = rank;  // a Forget may come back before Do returns
    Do(RankReported{WorkerName(worker->id), report});
    Reap();
  }

  void Reap() {
    while (!lost_streams_.empty()) {
      const std::string name = lost_streams_.back();
      lost_streams_.pop_back();
      Do(WorkerStreamLost{name});
    }
  }

  void Connect(SimWorker* worker) {
    v1::Hello hello = FakeCluster::MakeHello(worker->id, worker->slots, worker->incarnation);
    for (const auto& [key, rank] : worker->ranks) *hello.add_ranks() = rank;
    worker->connected = true;
    Do(WorkerHello{hello});
    if (worker->leaving && worker->connected) Do(WorkerLeaving{WorkerName(worker->id), ""});
    Reap();
  }

  void Disconnect(SimWorker* worker) {
    if (!worker->connected) return;
    worker->connected = false;
    Do(WorkerStreamLost{WorkerName(worker->id)});
    Reap();
  }

  void Kill(SimWorker* worker) {
    worker->ranks.clear();
    worker->stopping.clear();
    worker->alive = false;
    Disconnect(worker);
  }

  void Restart(SimWorker* worker) {
    if (worker->alive) Kill(worker);
    worker->alive = true;
    worker->leaving = false;
    ++worker->incarnation;
    Connect(worker);
  }

  void Leave(SimWorker* worker) {
    if (!worker->connected) return;
    worker->leaving = true;
    Do(WorkerLeaving{WorkerName(worker->id), "SIGTERM"});
    Reap();
  }

  // What was not durable is lost: the state as the store has it, and all streams.
  void RestartCoordinator() {
    for (SimWorker& worker : workers_) worker.connected = false;
    cluster_.now += absl::Seconds(Pick(0, 20));
    Do(CoordinatorRestarted{});
    if (Pick(0, 3) != 0) return;
    for (SimWorker& worker : workers_) Kill(&worker);
    Do(WorkersGone{});
    for (const auto& [name, record] : cluster_.state.workers()) {
      const bool idle = record.worker().state() == v1::WORKER_STATE_DOWN &&
                        cluster_.state.WithRanksOn(name).empty();
      if (!idle) cluster_.violation = name + " has not ended";
    }
  }

  std::mt19937_64 random_;
  FakeCluster cluster_;
  std::vector<SimWorker> workers_;
  std::vector<std::string> lost_streams_;
  bool faults_ = true;
};

TEST(RandomTest, InvariantsHoldAndEveryJobEnds) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    ASSERT_EQ(Simulation(seed).Run(300), "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace milepost::coordinator
