// What the parts of one simulation share.
#ifndef MILEPOST_TESTS_SIM_WORLD_H_
#define MILEPOST_TESTS_SIM_WORLD_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/core/decide.h"
#include "tests/sim/events.h"
#include "tests/sim/probes.h"
#include "tests/sim/random.h"
#include "tests/sim/simulation.h"
#include "tests/sim/truth.h"

namespace milepost::sim {

class Agent;
class Checker;
class Clients;
class Disk;
class Faults;
class Gangs;
class Coordinator;
class Network;

std::string WorkerName(int index);        // 3 -> "workers/w3"
int WorkerIndex(absl::string_view name);  // and back

struct World {
  explicit World(const Options& given);
  ~World();

  absl::Time now() const { return events.now(); }
  void Hit(Probe probe) { probes.Hit(probe); }
  // Something that happened; to the hash, and to the lines about Options::trace. `job` and
  // `worker`: 0 and -1 for none.
  void Note(absl::string_view what, int64_t job, int worker, int64_t a = 0, int64_t b = 0);
  // The first violation stands, and ends the simulation.
  void Fail(absl::string_view checker, const std::string& subject, const std::string& what);

  const Options options;
  Random random;
  Events events;
  Probes probes;
  coordinator::Config config;
  std::unique_ptr<Core> core;
  std::unique_ptr<Disk> disk;
  std::unique_ptr<Network> network;
  std::unique_ptr<Coordinator> coordinator;
  std::vector<std::unique_ptr<Agent>> agents;
  std::unique_ptr<Gangs> gangs;
  std::unique_ptr<Clients> clients;
  std::unique_ptr<Checker> checker;
  std::unique_ptr<Faults> strikes;
  std::vector<std::unique_ptr<JobTruth>> jobs;  // by index
  std::map<int64_t, JobTruth*> by_number;
  bool faults = true;  // false: calm

  Result result;
  uint64_t hash = 14695981039346656037ULL;
  std::deque<std::string> lines;
};

}  // namespace milepost::sim

#endif  // MILEPOST_TESTS_SIM_WORLD_H_
