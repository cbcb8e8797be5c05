// The faults that chaos_test inflicts on a cluster.
//
//   Striker striker(&place, &cluster, /*coordinators=*/1, &random);
//   // "kill-worker 1"; "": nothing was struck
//   const std::string what = striker.Strike(*FindFault("kill-worker"));
//
// A strike blocks while it lasts, at most twice the lease. Afterwards everything that it took away
// is back: processes are started as systemd would start them, links are clean, and the disk has
// room. Only a clock may stay stepped. Not thread-safe.
#ifndef MILEPOST_TESTS_E2E_CHAOS_FAULTS_H_
#define MILEPOST_TESTS_E2E_CHAOS_FAULTS_H_

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/e2e/chaos_place.h"
#include "tests/e2e/cluster.h"

namespace milepost::e2e {

class Striker;

struct Fault {
  const char* name;
  enum Needs { kNothing, kNetwork, kDisk, kClocks, kEtcd } needs;
  // Trainers and workers do not notice it, so it may not restart an attempt.
  bool spares_attempts;
  std::string (Striker::*strike)();
};

const std::vector<Fault>& AllFaults();

// Why the fault is impossible with so many coordinators. Empty: it is possible.
std::string WhyNot(const Fault& fault, const Place& place, int coordinators);

class Striker {
 public:
  // All arguments must outlive this object.
  Striker(Place* place, Cluster* cluster, int coordinators, std::mt19937_64* random);

  // Returns what it struck. Empty: there was nothing to strike.
  std::string Strike(const Fault& fault) { return (this->*fault.strike)(); }

  std::string KillCoordinator();
  std::string KillWorker();
  std::string KillTrainer();
  std::string KillBoth();
  std::string KillEtcd();
  std::string PauseCoordinator();
  std::string PauseWorker();
  std::string PauseTrainer();
  std::string PauseEtcd();
  std::string FillDisk();
  std::string LosePackets();
  std::string DelayPackets();
  std::string CutLinks();
  std::string FlapLinks();
  std::string StepCoordinator();
  std::string StepWorker();
  std::string StepTrainer();

 private:
  double Uniform(double least, double most);
  int Pick(int number) { return static_cast<int>((*random_)() % static_cast<uint64_t>(number)); }
  int PickCoordinator();  // mostly the active one
  int PickTrainer();      // 0: none runs
  void Sleep(double seconds);
  std::string Pause(const std::string& whom, const std::function<void(int)>& signal);
  std::string Disturb(const LinkPlan& plan);
  std::string StepClock(const std::string& whom, int pid);

  Place* const place_;
  Cluster* const cluster_;
  const int coordinators_;
  std::mt19937_64* const random_;
};

}  // namespace milepost::e2e

#endif  // MILEPOST_TESTS_E2E_CHAOS_FAULTS_H_
