// The worker: runs the ranks that the coordinator tells it to, and reports on them, until told to
// leave.
//
//   MP_ASSIGN_OR_RETURN(auto agent, Agent::Create(options));
//   // from a signal-handling thread: agent->RequestStop();
//   agent->Run();
#ifndef MILEPOST_WORKER_AGENT_AGENT_H_
#define MILEPOST_WORKER_AGENT_AGENT_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/spec/path_roots.h"
#include "milepost/v1/worker.pb.h"
#include "worker/agent/health_check.h"
#include "worker/agent/slots.h"
#include "worker/agent/spot_watch.h"
#include "worker/gpu/nvml.h"

namespace milepost::worker {

// What may change while an agent runs.
struct AgentSettings {
  absl::Duration stop_time = absl::Seconds(60);  // for ranks to checkpoint and leave
  // From a notice that the host goes away on, for the jobs to go on as they are; then they save a
  // checkpoint and leave.
  absl::Duration spot_time = absl::ZeroDuration();
  // A rank whose micro-step or wait for data takes longer hangs, and is ended; so is one whose
  // process gives no sign of life for AgentOptions::silence. Zero: neither. Of ranks that start
  // afterwards.
  absl::Duration hang_time = absl::Minutes(10);
  PathRoots path_roots;  // where jobs that start afterwards may write and read
};

struct AgentOptions {
  AgentSettings settings;
  std::string coordinator;  // host:port
  // Folder with this worker's certificate (common/rpc/endpoint.h); empty: plain text.
  std::string tls_dir;
  std::string data_dir;  // made if it is not there
  // On a file system in memory: where ranks keep state that outlives them; empty: nowhere.
  std::string memory_dir;
  // Empty: that of the certificate, or stored, or made up at the first start.
  std::string id;
  std::map<std::string, std::string> labels;  // "pool" and "rack" are used in placement
  SlotOptions slots;                          // what it offers (worker/agent/slots.h)
  std::string trainer_binary;                 // milepost-trainer
  std::string cuda_trainer_binary;            // milepost-trainer-cuda, for ranks on GPUs
  // How often the GPUs are measured.
  absl::Duration measure_interval = absl::Seconds(10);
  // The driver's library; tests replace it.
  std::function<absl::StatusOr<std::unique_ptr<Nvml>>()> open_nvml = [] { return Nvml::Open(); };
  SpotOptions spot;      // how it learns that its host goes away
  HealthOptions health;  // how its host is checked after failures
  absl::Duration silence = absl::Minutes(1);
  // After the last rank ended: for the coordinator to acknowledge the reports.
  absl::Duration acknowledge_time = absl::Seconds(3);
  // Called by the loop as long as it gets on, at least once in `longest_turn` but for the last
  // seconds of Run, with how the worker is: "3 ranks run; registered with head:7070". Must not
  // block. May be empty.
  std::function<void(const std::string& status)> on_turn;
  absl::Duration longest_turn = absl::InfiniteDuration();
};

// How a worker is, for whoever watches it.
struct AgentStanding {
  v1::Hello hello;          // as the next stream would begin: slots, ranks, GPUs
  bool registered = false;  // the coordinator has it
  absl::Time last_turn;     // of the loop, by SteadyNow; InfinitePast: it has not begun
};

class Agent {
 public:
  // Takes the data directory, makes the identity. Errors name the flag or the path.
  static absl::StatusOr<std::unique_ptr<Agent>> Create(AgentOptions options);
  virtual ~Agent() = default;

  // Blocks until RequestStop and the end of every rank: SIGTERM to each, and SIGKILL after
  // stop_time. Trainers never outlive it.
  virtual void Run() = 0;

  // From any thread, also before Run. Does not block.
  virtual void RequestStop() = 0;

  // From any thread. What has begun goes on with the settings before.
  virtual void Change(const AgentSettings& settings) = 0;
  virtual AgentSettings settings() const = 0;

  // The host is about to be taken away, as spot_watch.h tells it: the coordinator is to drain this
  // worker. Each call is a notice of its own. From any thread, also before Run. Does not block.
  virtual void NoteSpot(const std::string& why) = 0;

  // From any thread, also before Run. Does not block.
  virtual AgentStanding Describe() const = 0;

  virtual const std::string& id() const = 0;
  // "2 cpu slots", "8 cuda slots (NVIDIA H200)"
  virtual std::string offer() const = 0;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_AGENT_H_
