// A worker's host and its agent, modelled after worker/agent: the outbox that says everything again
// on every new stream, ranks as processes on slots, leaving, crashing, hosts that die. What the
// ranks of an attempt do together is in gang.h.
#ifndef MILEPOST_TESTS_SIM_AGENT_H_
#define MILEPOST_TESTS_SIM_AGENT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/time/time.h"
#include "milepost/v1/worker.pb.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace milepost::sim {

struct Gang;

struct RankKey {
  int64_t job = 0;
  int64_t generation = 0;
  int rank = 0;
  auto operator<=>(const RankKey&) const = default;
};

// A rank's process. Alive while it is in its agent's map.
struct Process {
  RankKey key;
  int worker = 0;
  int slot = 0;
  uint64_t id = 0;  // of all processes that ever were
  std::shared_ptr<Gang> gang;
  bool ready = false;          // it has met the others' addresses, or waits for them
  bool asked_to_stop = false;  // SIGTERM
  bool hung = false;           // only SIGKILL ends it
  bool unkillable = false;     // in the kernel, for minutes
  bool ending = false;         // its end is decided on
};

// State of a job that outlives its ranks, in a host's memory.
struct MemoryState {
  int64_t generation = 0;
  int64_t step = 0;
  int world = 0;
  std::vector<int> ranks;
  absl::Time time;
};

class Agent {
 public:
  Agent(World& world, int index);

  // ---- the host ----
  void Start();                      // the agent's process; a new incarnation
  void Crash(absl::Duration until);  // it is killed, its ranks with it; back after that time
  void Die(absl::Duration until);    // the host is off: memory is gone too
  void Leave(absl::Duration until);  // told to stop; back that long after it has left
  bool alive() const { return alive_; }
  bool leaving() const { return leaving_; }
  int index() const { return index_; }
  int slots() const { return static_cast<int>(hello_.slots_size()); }
  bool cuda() const { return cuda_; }
  double slowness = 1;  // of its ranks' steps
  bool sick = false;    // its ranks fail, and its health checks

  // ---- messages ----
  const StreamPtr& stream() const { return stream_; }
  void Handle(const v1::CoordinatorMessage& message);
  void StreamEnded(const StreamPtr& stream);
  void Beat();                                     // a heartbeat is due
  void SetProblem(int slot, std::string problem);  // of a GPU

  // ---- ranks ----
  std::map<RankKey, std::unique_ptr<Process>>& processes() { return processes_; }
  void SetReport(v1::RankReport report);
  void SetProgress(const RankKey& key, v1::Progress progress);
  // The process has ended.
  void Ended(Process& process, v1::RankReport report);
  v1::RankReport NewReport(const Process& process, v1::RankState state) const;
  std::map<int64_t, MemoryState>& memory() { return memory_; }

 private:
  void Connect();
  void Send(v1::WorkerMessage message);
  void HandleStart(const v1::StartRank& start);
  void HandleStop(const v1::StopRank& stop);
  void HandleForget(const v1::ForgetRank& forget);
  void HandleCheck(const v1::CheckHealth& check);
  void StartProcess(const v1::StartRank& start, const RankKey& key);
  void LoseProcesses(bool host_died);
  void MayFinishLeaving();
  void FinishLeaving();

  World& world_;
  const int index_;
  bool cuda_ = false;
  v1::Hello hello_;  // all of it but its ranks and devices
  bool alive_ = false;
  bool leaving_ = false;
  absl::Duration away_;  // after it has left
  uint64_t life_ = 0;    // changes with every end of the agent's process
  absl::Duration backoff_;
  StreamPtr stream_;
  std::map<RankKey, v1::RankReport> outbox_;
  std::map<int, v1::DeviceFacts> facts_;
  std::map<RankKey, std::unique_ptr<Process>> processes_;
  std::map<int64_t, MemoryState> memory_;  // by job
};

}  // namespace milepost::sim

#endif  // MILEPOST_TESTS_SIM_AGENT_H_
