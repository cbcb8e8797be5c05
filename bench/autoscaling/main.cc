// A day of jobs on a fleet that grows and shrinks: what it costs and how long jobs wait.
//
//   build/release/bench/autoscaling --nodes 200 --seed 1 [--json]
//
// The coordinator's own decisions and its own metrics, on simulated time. Three ways to say how
// many nodes there should be:
//
//   fixed         all of them, all day
//   utilisation   what a HorizontalPodAutoscaler makes of the share of slots that are held, with a
//                 target of 80 % (nodes * share / 0.8, nothing within a tenth of it)
//   slots_wanted  milepost_slots_held + milepost_slots_wanted, over a node's slots
//
// The last two look every 30 s and shrink to the most that was asked for within 5 minutes
// (--calm-minutes), as the autoscaler does by default. A new node takes 3 minutes. Nodes go in the
// order of a StatefulSet, the highest number first: their worker leaves, its jobs save a checkpoint
// within 30 s and are queued again, and lose a minute each.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/proto_time.h"
#include "coordinator/core/decide.h"
#include "coordinator/metrics/cluster_series.h"

namespace milepost::coordinator {
namespace {

constexpr absl::Duration kStep = absl::Seconds(5);
constexpr absl::Duration kLook = absl::Seconds(30);
constexpr absl::Duration kBoot = absl::Minutes(3);
constexpr absl::Duration kSave = absl::Seconds(30);
constexpr absl::Duration kLostByMoving = absl::Minutes(1);
constexpr absl::Duration kDay = absl::Hours(24);
constexpr absl::Duration kLongest = absl::Hours(48);  // for what came in the day to end
constexpr int kSlots = 8;                             // of a node
constexpr int kFewestNodes = 2;
constexpr double kTarget = 0.8;

struct Arrival {
  absl::Duration at;
  int ranks = 0;
  absl::Duration length;
};

// More by day than by night; sizes and lengths as clusters for research have them: many small jobs,
// few that take most of the time.
std::vector<Arrival> MakeArrivals(int nodes, uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::vector<int> sizes = {1, 2, 4, 8, 16, 32, 64};
  std::discrete_distribution<size_t> size({35, 15, 15, 20, 8, 5, 2});
  std::lognormal_distribution<double> minutes(std::log(35), 1.0);
  std::uniform_real_distribution<double> unit(0, 1);
  const double mean_ranks = 7.09, mean_hours = 35.0 * std::exp(0.5) / 60;
  const double most = 0.9 * nodes * kSlots / (mean_ranks * mean_hours);  // an hour
  std::vector<Arrival> arrivals;
  for (double hour = 0; hour < 24;) {
    hour += std::exponential_distribution<double>(most)(random);
    const double now = 0.5 - 0.45 * std::cos((hour - 3) / 24 * 2 * M_PI);
    if (unit(random) > now) continue;
    const int ranks = std::min(sizes[size(random)], nodes * kSlots);
    arrivals.push_back({.at = absl::Hours(hour),
                        .ranks = ranks,
                        .length = absl::Minutes(std::clamp(minutes(random), 1.0, 360.0))});
  }
  return arrivals;
}

struct Job {
  absl::Duration left;
  absl::Time submitted, first_start = absl::InfiniteFuture();
  std::optional<absl::Time> end;  // of its attempt
  int64_t generation = 0;
};

struct Node {
  absl::Time asked, ready;
  std::optional<absl::Time> leaves;  // its worker has gone by then
  bool connected = false;
};

struct Demand {
  double held = 0, wanted = 0, usable = 0;
};

struct Result {
  double node_hours = 0;
  std::vector<double> waits;  // minutes, of jobs that started
  int jobs = 0, ended = 0, moved = 0;
};

class Fleet {
 public:
  Fleet(const std::string& policy, int nodes, absl::Duration calm)
      : policy_(policy), most_(nodes), calm_(calm) {
    config_.lease = absl::Hours(10'000);
    config_.graceful_stop = kSave * 2;
    Resize(policy == "fixed" ? nodes : kFewestNodes);
    for (Node& node : nodes_) node.ready = now_;
  }

  Result Run(const std::vector<Arrival>& arrivals) {
    size_t next = 0;
    const absl::Time begin = now_;
    absl::Time look = now_;
    while (now_ < begin + kLongest) {
      ConnectReady();
      RemoveEnded();
      for (; next < arrivals.size() && begin + arrivals[next].at <= now_; ++next) {
        Submit(arrivals[next]);
      }
      if (NextDeadline(state_) <= now_) Do(Tick{});
      Advance();
      if (policy_ != "fixed" && look <= now_) {
        look = now_ + kLook;
        Resize(Wanted());
      }
      result_.node_hours += static_cast<double>(nodes_.size()) * absl::ToDoubleHours(kStep);
      if (next == arrivals.size() && state_.active().empty() && now_ >= begin + kDay) break;
      now_ += kStep;
    }
    result_.jobs = static_cast<int>(arrivals.size());
    return std::move(result_);
  }

 private:
  void Do(const Event& event) {
    const Outcome outcome = Decide(state_, event, now_, config_);
    if (!outcome.status.ok()) {
      std::fprintf(stderr, "%s\n", std::string(outcome.status.message()).c_str());
      std::exit(1);
    }
    state_.Apply(outcome);
    job_ = outcome.job;
    if (outcome.schedule) state_.Apply(DecideSchedule(state_, now_, config_));
  }

  static std::string Id(size_t node) { return absl::StrCat("w", 1000 + node); }

  void Submit(const Arrival& arrival) {
    v1::JobSpec spec;
    spec.mutable_train()->set_steps(100);
    spec.mutable_resources()->set_ranks(arrival.ranks);
    spec.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
    spec.mutable_restart()->set_max_failures(3);
    Do(JobSubmitted{.spec = std::move(spec)});
    jobs_[JobNumber(job_)] = {.left = arrival.length, .submitted = now_};
  }

  v1::Hello HelloOf(size_t node) {
    v1::Hello hello;
    hello.set_worker_id(Id(node));
    hello.set_incarnation(++incarnation_);
    for (int slot = 0; slot < kSlots; ++slot) {
      v1::Slot* added = hello.add_slots();
      added->set_index(slot);
      added->set_device(v1::DEVICE_KIND_CUDA);
      added->set_model("NVIDIA H100");
    }
    return hello;
  }

  void ConnectReady() {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      if (node.connected || node.leaves || node.ready > now_) continue;
      Do(WorkerHello{HelloOf(i)});
      node.connected = true;
    }
  }

  void RemoveEnded() {
    while (!nodes_.empty() && nodes_.back().leaves && *nodes_.back().leaves <= now_) {
      if (nodes_.back().connected) Do(WorkerStreamLost{WorkerName(Id(nodes_.size() - 1))});
      nodes_.pop_back();
    }
  }

  // What ranks do: they begin, end, and leave where they are told to.
  void Advance() {
    const std::vector<int64_t> running(state_.with_ranks().begin(), state_.with_ranks().end());
    for (const int64_t number : running) {
      const v1::JobRecord& record = *state_.FindJob(number);
      Job& job = jobs_[number];
      if (record.ending() != v1::ATTEMPT_ENDING_NONE) {
        if (job.generation == record.job().generation() && job.end) {
          Stop(number, &job);
        } else if (job.generation != record.job().generation()) {
          job.generation = record.job().generation();
          Report(number, v1::RANK_STATE_STOPPED);  // before they had begun
        }
        continue;
      }
      if (job.generation != record.job().generation()) {
        job.generation = record.job().generation();
        job.end = now_ + job.left;
        if (job.first_start == absl::InfiniteFuture()) {
          job.first_start = now_;
          result_.waits.push_back(absl::ToDoubleMinutes(now_ - job.submitted));
        }
        Report(number, v1::RANK_STATE_RUNNING);
      } else if (job.end && *job.end <= now_) {
        job.end.reset();
        ++result_.ended;
        Report(number, v1::RANK_STATE_SUCCEEDED);
      }
    }
  }

  // Its ranks have saved a checkpoint.
  void Stop(int64_t number, Job* job) {
    job->left = std::max(*job->end - now_, absl::ZeroDuration()) + kLostByMoving;
    job->end.reset();
    ++result_.moved;
    Report(number, v1::RANK_STATE_STOPPED);
  }

  void Report(int64_t number, v1::RankState rank_state) {
    const int64_t generation = state_.FindJob(number)->job().generation();
    const int ranks = state_.FindJob(number)->ranks_size();
    for (int i = 0; i < ranks; ++i) {
      const v1::JobRecord* record = state_.FindJob(number);
      if (record->job().generation() != generation || i >= record->ranks_size()) return;
      if (record->ranks(i).gone()) continue;
      v1::RankReport report;
      report.set_job(record->job().name());
      report.set_generation(generation);
      report.set_rank(i);
      report.set_slot(record->ranks(i).slot());
      report.set_state(rank_state);
      *report.mutable_time() = ToProto(now_);
      Do(RankReported{record->ranks(i).worker(), report});
    }
  }

  // As a scrape tells it.
  Demand Scrape() const {
    Series series;
    CollectState(state_, now_, {.jobs = 0, .workers = 0, .gpus = 0}, &series);
    Demand demand;
    const std::string text = series.Text();
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      const auto add = [&](absl::string_view name, double* to) {
        double value = 0;
        if (line.substr(0, name.size()) != name) return;
        if (absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) *to += value;
      };
      add("milepost_slots_held{", &demand.held);
      add("milepost_slots_wanted{", &demand.wanted);
      add("milepost_slots_usable{", &demand.usable);
    }
    return demand;
  }

  int Wanted() {
    const Demand demand = Scrape();
    const int now = CountStaying();
    double wanted = now;
    if (policy_ == "slots_wanted") {
      wanted = std::ceil((demand.held + demand.wanted) / kSlots);
    } else if (demand.usable > 0) {
      const double ratio = demand.held / demand.usable / kTarget;
      if (std::abs(ratio - 1) > 0.1) wanted = std::ceil(now * ratio);
    }
    const int bounded = std::clamp(static_cast<int>(wanted), kFewestNodes, most_);
    asked_.push_back({now_, bounded});
    while (asked_.front().first < now_ - calm_) asked_.pop_front();
    int most = 0;
    for (const auto& [time, nodes] : asked_) most = std::max(most, nodes);
    return bounded >= now ? bounded : std::min(now, most);
  }

  int CountStaying() const {
    return static_cast<int>(
        std::count_if(nodes_.begin(), nodes_.end(), [](const Node& node) { return !node.leaves; }));
  }

  void Resize(int wanted) {
    while (CountStaying() > wanted) {
      for (size_t i = nodes_.size(); i-- > 0;) {
        if (nodes_[i].leaves) continue;
        nodes_[i].leaves = now_ + kSave;
        if (nodes_[i].connected) Do(WorkerLeaving{WorkerName(Id(i)), "scaled down"});
        break;
      }
    }
    // One that is leaving has to be gone before its number is there again.
    if (std::any_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return !!node.leaves; })) {
      return;
    }
    while (static_cast<int>(nodes_.size()) < wanted)
      nodes_.push_back({now_, now_ + kBoot, {}, false});
  }

  const std::string policy_;
  const int most_;
  const absl::Duration calm_;  // before it shrinks
  Config config_;
  State state_;
  absl::Time now_ = absl::FromUnixSeconds(1'800'000'000);
  std::string job_;
  int64_t incarnation_ = 0;
  std::vector<Node> nodes_;
  std::map<int64_t, Job> jobs_;
  std::deque<std::pair<absl::Time, int>> asked_;
  Result result_;
};

double Share(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(share * values.size()))];
}

int Main(int argc, char** argv) {
  int nodes = 200;
  uint64_t seed = 1;
  bool json = false;
  double calm = 5;
  CLI::App app("A day of jobs on a fleet that grows and shrinks");
  app.add_option("--nodes", nodes, "the most there may be, of 8 slots each")
      ->check(CLI::Range(10, 2000));
  app.add_option("--seed", seed, "of the arrivals");
  app.add_option("--calm-minutes", calm, "it shrinks to the most that was asked for in so long")
      ->check(CLI::Range(0.0, 600.0))
      ->capture_default_str();
  app.add_flag("--json", json, "for programs");
  CLI11_PARSE(app, argc, argv);
  const std::vector<Arrival> arrivals = MakeArrivals(nodes, seed);
  nlohmann::ordered_json all;
  for (const char* policy : {"fixed", "utilisation", "slots_wanted"}) {
    const Result result = Fleet(policy, nodes, absl::Minutes(calm)).Run(arrivals);
    double sum = 0;
    for (const double wait : result.waits) sum += wait;
    const double mean = result.waits.empty() ? 0 : sum / static_cast<double>(result.waits.size());
    all[policy] = {{"node_hours", result.node_hours},
                   {"jobs", result.jobs},
                   {"ended", result.ended},
                   {"moved", result.moved},
                   {"mean_wait_minutes", mean},
                   {"median_wait_minutes", Share(result.waits, 0.5)},
                   {"p95_wait_minutes", Share(result.waits, 0.95)},
                   {"longest_wait_minutes", Share(result.waits, 1)}};
    if (json) continue;
    std::printf(
        "%-13s %7.0f node hours  %d of %d jobs ended  %d moved  waits: mean %.1f min, median %.1f, "
        "95 %% within %.1f, longest %.1f\n",
        policy, result.node_hours, result.ended, result.jobs, result.moved, mean,
        Share(result.waits, 0.5), Share(result.waits, 0.95), Share(result.waits, 1));
    std::fflush(stdout);
  }
  if (json) std::printf("%s\n", all.dump(2).c_str());
  return 0;
}

}  // namespace
}  // namespace milepost::coordinator

int main(int argc, char** argv) { return milepost::coordinator::Main(argc, argv); }
