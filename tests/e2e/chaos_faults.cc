#include "tests/e2e/chaos_faults.h"

#include <signal.h>

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace milepost::e2e {
namespace {

constexpr int kWorkers = 2;
constexpr double kShortest = 0.05;  // seconds
constexpr double kLongest = 4;      // twice the lease
constexpr double kLongestFull = 3;
constexpr double kSmallestStep = 1;  // of a clock, seconds
constexpr double kLargestStep = 86400;

absl::Duration Millis(double number) { return absl::Milliseconds(std::round(number)); }

}  // namespace

const std::vector<Fault>& AllFaults() {
  static const auto* const kFaults = new std::vector<Fault>{
      {"kill-coordinator", Fault::kNothing, true, &Striker::KillCoordinator},
      {"kill-worker", Fault::kNothing, false, &Striker::KillWorker},
      {"kill-trainer", Fault::kNothing, false, &Striker::KillTrainer},
      {"kill-both", Fault::kNothing, false, &Striker::KillBoth},
      {"kill-etcd", Fault::kEtcd, true, &Striker::KillEtcd},
      {"pause-coordinator", Fault::kNothing, true, &Striker::PauseCoordinator},
      {"pause-worker", Fault::kNothing, false, &Striker::PauseWorker},
      {"pause-trainer", Fault::kNothing, false, &Striker::PauseTrainer},
      {"pause-etcd", Fault::kEtcd, true, &Striker::PauseEtcd},
      {"full-disk", Fault::kDisk, true, &Striker::FillDisk},
      {"net-loss", Fault::kNetwork, false, &Striker::LosePackets},
      {"net-delay", Fault::kNetwork, false, &Striker::DelayPackets},
      {"net-cut", Fault::kNetwork, false, &Striker::CutLinks},
      {"net-flap", Fault::kNetwork, false, &Striker::FlapLinks},
      {"clock-coordinator", Fault::kClocks, true, &Striker::StepCoordinator},
      {"clock-worker", Fault::kClocks, false, &Striker::StepWorker},
      {"clock-trainer", Fault::kClocks, false, &Striker::StepTrainer}};
  return *kFaults;
}

std::string WhyNot(const Fault& fault, const Place& place, int coordinators) {
  if (fault.needs == Fault::kNetwork) return place.no_network();
  if (fault.needs == Fault::kDisk) return place.no_disk();
  if (fault.needs == Fault::kClocks) return place.no_clocks();
  if (fault.needs == Fault::kEtcd && coordinators == 1) return "one coordinator needs no etcd";
  return "";
}

Striker::Striker(Place* place, Cluster* cluster, int coordinators, std::mt19937_64* random)
    : place_(place), cluster_(cluster), coordinators_(coordinators), random_(random) {}

double Striker::Uniform(double least, double most) {
  return std::uniform_real_distribution<>(least, most)(*random_);
}

void Striker::Sleep(double seconds) { absl::SleepFor(absl::Seconds(seconds)); }

int Striker::PickCoordinator() {
  if (coordinators_ == 1) return 0;
  return Pick(4) == 0 ? Pick(coordinators_) : cluster_->ActiveCoordinator();
}

int Striker::PickTrainer() {
  const std::vector<int> pids = cluster_->TrainerPids();
  return pids.empty() ? 0 : pids[static_cast<size_t>(Pick(static_cast<int>(pids.size())))];
}

std::string Striker::KillCoordinator() {
  const int index = PickCoordinator();
  cluster_->KillCoordinator(index);
  cluster_->StartCoordinator(index);
  return absl::StrCat("kill-coordinator ", index);
}

std::string Striker::KillWorker() {
  const int index = Pick(kWorkers);
  cluster_->KillWorker(index);
  cluster_->StartWorker(index);
  return absl::StrCat("kill-worker ", index);
}

std::string Striker::KillTrainer() {
  const int pid = PickTrainer();
  return pid != 0 && kill(pid, SIGKILL) == 0 ? "kill-trainer" : "";
}

std::string Striker::KillBoth() {
  const int worker = Pick(kWorkers), coordinator = PickCoordinator();
  cluster_->KillWorker(worker);
  cluster_->KillCoordinator(coordinator);
  cluster_->StartCoordinator(coordinator);
  cluster_->StartWorker(worker);
  return absl::StrCat("kill-both ", worker, " ", coordinator);
}

std::string Striker::KillEtcd() {
  const double away = Pick(2) == 0 ? 0 : Uniform(kShortest, kLongest);
  cluster_->KillEtcd();
  Sleep(away);
  cluster_->StartEtcd();
  return absl::StrFormat("kill-etcd for %.2f s", away);
}

std::string Striker::Pause(const std::string& whom, const std::function<void(int)>& signal) {
  const double time = Uniform(kShortest, kLongest);
  signal(SIGSTOP);
  Sleep(time);
  signal(SIGCONT);
  return absl::StrFormat("%s for %.2f s", whom, time);
}

std::string Striker::PauseCoordinator() {
  const int index = PickCoordinator();
  return Pause(absl::StrCat("pause-coordinator ", index),
               [&](int signal) { cluster_->SignalCoordinator(index, signal); });
}

std::string Striker::PauseWorker() {
  const int index = Pick(kWorkers);
  return Pause(absl::StrCat("pause-worker ", index),
               [&](int signal) { cluster_->SignalWorker(index, signal); });
}

std::string Striker::PauseTrainer() {
  const int pid = PickTrainer();
  if (pid == 0) return "";
  return Pause("pause-trainer", [&](int signal) { kill(pid, signal); });
}

std::string Striker::PauseEtcd() {
  return Pause("pause-etcd", [&](int signal) { cluster_->SignalEtcd(signal); });
}

std::string Striker::FillDisk() {
  const bool full = place_->FillDisk();
  const double time = Uniform(kShortest, kLongestFull);
  if (full) Sleep(time);
  place_->EmptyDisk();
  return full ? absl::StrFormat("full-disk for %.2f s", time) : "";
}

// A pair of hosts, one way or both, or all links of one, or all there are.
std::string Striker::Disturb(const LinkPlan& plan) {
  const std::vector<int> hosts = place_->Hosts(coordinators_);
  const std::vector<std::pair<int, int>> links = place_->Links(coordinators_);
  auto [a, b] = links[static_cast<size_t>(Pick(static_cast<int>(links.size())))];
  if (Pick(2) == 0) std::swap(a, b);
  const int kind = Pick(5);
  std::string where = absl::StrCat(HostName(a), kind == 0 ? " -> " : " <-> ", HostName(b));
  if (kind == 0) place_->network()->Set(a, b, plan);
  if (kind == 1 || kind == 2) place_->network()->SetBothWays(a, b, plan);
  if (kind == 3) where = absl::StrCat("all of ", HostName(a));
  if (kind == 4) where = "all";
  for (int one : hosts) {
    for (int other : hosts) {
      if (kind == 4 || (kind == 3 && one == a)) place_->network()->SetBothWays(one, other, plan);
    }
  }
  const double time = Uniform(kShortest, kLongest);
  Sleep(time);
  for (int one : hosts) {
    for (int other : hosts) place_->network()->Set(one, other, LinkPlan());
  }
  return absl::StrFormat("%s, %s for %.2f s", where, plan.ToString(), time);
}

std::string Striker::LosePackets() {
  const LinkPlan plan = {.loss = Uniform(0.02, 0.3), .jitter = Millis(Uniform(1, 10))};
  return absl::StrCat("net-loss ", Disturb(plan));
}

std::string Striker::DelayPackets() {
  const LinkPlan plan = {.delay = Millis(Uniform(5, 150)), .jitter = Millis(Uniform(5, 200))};
  return absl::StrCat("net-delay ", Disturb(plan));
}

std::string Striker::CutLinks() { return absl::StrCat("net-cut ", Disturb(CutLink())); }

std::string Striker::FlapLinks() {
  const double period = Uniform(200, 1000);
  const LinkPlan plan = {.period = Millis(period), .down = Millis(period * Uniform(0.1, 0.6))};
  return absl::StrCat("net-flap ", Disturb(plan));
}

// Right again after a while, or left as it is for as long as the process lives.
std::string Striker::StepClock(const std::string& whom, int pid) {
  const double size = std::exp(Uniform(std::log(kSmallestStep), std::log(kLargestStep)));
  const double seconds = Pick(2) == 0 ? -size : size;
  const bool again = Pick(2) == 0;
  const double time = Uniform(kShortest, kLongest);
  if (pid == 0 || !place_->clocks().Step(pid, absl::Seconds(seconds))) return "";
  std::string what = absl::StrFormat("%s by %+.0f s", whom, seconds);
  if (!again) return what;
  Sleep(time);
  (void)place_->clocks().Step(pid, absl::ZeroDuration());
  return absl::StrFormat("%s and back after %.2f s", what, time);
}

std::string Striker::StepCoordinator() {
  const int index = PickCoordinator();
  return StepClock(absl::StrCat("clock-coordinator ", index), cluster_->CoordinatorPid(index));
}

std::string Striker::StepWorker() {
  const int index = Pick(kWorkers);
  return StepClock(absl::StrCat("clock-worker ", index), cluster_->WorkerPid(index));
}

std::string Striker::StepTrainer() { return StepClock("clock-trainer", PickTrainer()); }

}  // namespace milepost::e2e
