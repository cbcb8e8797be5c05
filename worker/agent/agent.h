// The worker: runs the ranks that the coordinator assigns to it, and reports on them, until it is
// told to leave.
//
//   MP_ASSIGN_OR_RETURN(auto agent, Agent::Create(options));
//   // from a signal-handling thread: agent->RequestStop();
//   agent->Run();
#ifndef MILEPOST_WORKER_AGENT_AGENT_H_
#define MILEPOST_WORKER_AGENT_AGENT_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/rpc/endpoint.h"
#include "common/spec/path_roots.h"
#include "common/unique_fd.h"
#include "milepost/v1/worker.pb.h"
#include "worker/agent/gpu_monitor.h"
#include "worker/agent/health_check.h"
#include "worker/agent/identity.h"
#include "worker/agent/job_memory.h"
#include "worker/agent/leftovers.h"
#include "worker/agent/outbox.h"
#include "worker/agent/rank_cgroups.h"
#include "worker/agent/rank_containers.h"
#include "worker/agent/rank_process.h"
#include "worker/agent/slots.h"
#include "worker/agent/spot_watch.h"
#include "worker/gpu/nvml.h"

namespace milepost::worker {

class Session;

// The settings that may change while an agent runs.
struct AgentSettings {
  absl::Duration stop_time = absl::Seconds(60);  // for ranks to checkpoint and leave
  // How long jobs go on unchanged after a notice that the host goes away. Then they save a
  // checkpoint and leave.
  absl::Duration spot_time = absl::ZeroDuration();
  // A rank hangs when its micro-step or wait for data takes longer; it is then ended. A rank whose
  // process gives no sign of life for AgentOptions::silence is ended too. Zero: neither. Applies to
  // ranks that start later.
  absl::Duration hang_time = absl::Minutes(10);
  PathRoots path_roots;  // where jobs that start later may write and read
  // Whether jobs that start later may run programs of their own, with this process's rights.
  bool scripts_allowed = false;
  // The processes and threads that a rank of a script may have, where control groups can be made
  // (worker/agent/rank_cgroups.h). 0: any number. Applies to ranks that start later.
  int64_t script_processes = 4096;
};

struct AgentOptions {
  AgentSettings settings;
  std::string coordinator;  // host:port
  // Folder with this worker's certificate (common/rpc/endpoint.h); empty: plain text.
  std::string tls_dir;
  std::string data_dir;  // made if it does not exist
  // The folder, on a file system in memory, for state that outlives ranks. Empty: none is kept.
  std::string memory_dir;
  // Empty: the certificate's id, or the stored one, or one made up at the first start.
  std::string id;
  std::map<std::string, std::string> labels;  // "pool" and "rack" are used in placement
  SlotOptions slots;                          // what it offers (worker/agent/slots.h)
  std::string trainer_binary;                 // milepost-trainer
  std::string cuda_trainer_binary;            // milepost-trainer-cuda, for ranks on GPUs
  // The interval between measurements of the GPUs.
  absl::Duration measure_interval = absl::Seconds(10);
  // The driver's library; tests replace it.
  std::function<absl::StatusOr<std::unique_ptr<Nvml>>()> open_nvml = [] { return Nvml::Open(); };
  SpotOptions spot;      // how it learns that its host goes away
  HealthOptions health;  // how its host is checked after failures
  // A process that gives no sign of life for this long is killed.
  absl::Duration silence = absl::Minutes(1);
  // How long to wait, after the last rank ended, until the coordinator acknowledges the reports.
  absl::Duration acknowledge_time = absl::Seconds(3);
  // The loop calls it while it runs, at least once in `longest_turn`, except in the last seconds of
  // Run. The argument says how the worker is: "3 ranks run; registered with head:7070". Must not
  // block. May be empty.
  std::function<void(const std::string& status)> on_turn;
  absl::Duration longest_turn = absl::InfiniteDuration();
};

// The worker's condition, for whoever watches it.
struct AgentStanding {
  v1::Hello hello;          // what the next stream would begin with: slots, ranks, GPUs
  bool registered = false;  // the coordinator has registered this worker
  absl::Time last_turn;     // last turn of the loop, by SteadyNow; InfinitePast: none yet
};

class Agent {
 public:
  // Locks the data directory and makes the identity. Errors name the flag or the path.
  static absl::StatusOr<std::unique_ptr<Agent>> Create(AgentOptions options);
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Blocks until RequestStop was called and every rank has ended. Ranks get SIGTERM, and SIGKILL
  // after stop_time. Trainers never outlive it.
  void Run();

  // May be called from any thread, also before Run. Does not block.
  void RequestStop();

  // May be called from any thread. What has already begun keeps the earlier settings.
  void Change(const AgentSettings& settings);
  AgentSettings settings() const;

  // Says that the host is about to be taken away (see spot_watch.h). The coordinator then drains
  // this worker. Each call counts as a new notice. May be called from any thread, also before Run.
  // Does not block.
  void NoteSpot(const std::string& why);

  // May be called from any thread, also before Run. Does not block.
  AgentStanding Describe() const;

  const std::string& id() const { return identity_.id(); }
  // "2 cpu slots", "8 cuda slots (NVIDIA H200)"
  std::string offer() const;

 private:
  // `nvml` is null where no GPU is offered.
  Agent(AgentOptions options, Endpoint coordinator, Identity identity, SlotPlan plan,
        std::shared_ptr<Nvml> nvml, UniqueFd wake);
  void Exceed(int64_t known);
  void WatchGpus();
  void TellOfLeftovers();
  void WakeUp();
  void WaitForEvents();
  void HandleInbox();
  void Handle(const v1::CoordinatorMessage& message);
  void HandleStart(const v1::StartRank& start);
  absl::Status CheckSlot(const v1::StartRank& start) const;
  absl::Status StartTrainer(const v1::StartRank& start);
  std::vector<std::string> MakeCgroup(const v1::StartRank& start, int64_t processes);
  // Of a rank whose trainer has ended, or was not started.
  void CleanUpAfter(const RankKey& key);
  void KillOlderRanks(const RankKey& key);
  void SweepMemory(absl::Duration keep, const std::string& starting = "");
  void RefuseStart(const v1::StartRank& start, v1::RankState state, const absl::Status& why);
  void HandleStop(const v1::StopRank& stop);
  void HandleCheck(const v1::CheckHealth& check);
  void BeginLeaving();
  void TellOfTurn(Session& session);

  const AgentOptions options_;
  const Endpoint coordinator_;
  Identity identity_;  // the session's thread's
  const SlotPlan plan_;
  const UniqueFd wake_;
  mutable absl::Mutex mutex_;
  AgentSettings settings_ ABSL_GUARDED_BY(mutex_);
  bool registered_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time last_turn_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // SteadyNow
  std::vector<v1::CoordinatorMessage> inbox_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> stop_requested_{false};
  Outbox outbox_;
  std::shared_ptr<Nvml> nvml_;  // the monitor's once it is there
  HealthCheck health_;
  // The loop's own. Its times are SteadyNow's.
  std::map<RankKey, std::unique_ptr<RankProcess>> ranks_;
  JobMemory memory_;
  Leftovers leftovers_;
  RankContainers containers_;
  RankCgroups cgroups_;
  absl::Time sweep_time_ = absl::InfinitePast();
  absl::Time sweep_cgroups_ = absl::InfinitePast();
  absl::Time sweep_containers_ = absl::InfinitePast();
  bool leaving_ = false;
  absl::Time abort_time_ = absl::InfiniteFuture();
  absl::Time kill_time_ = absl::InfiniteFuture();
  std::optional<GpuMonitor> monitor_;
  absl::Time check_monitor_ = absl::InfiniteFuture();
  absl::Time check_alive_ = absl::InfiniteFuture();  // the ranks
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_AGENT_H_
