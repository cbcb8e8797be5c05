// Trainer processes that outlived the worker process that started them. Normally SIGKILL follows
// the worker's end. A process that waits in the kernel, for a disk or a driver, ends only when that
// answers. Until then it may hold its GPU. So the worker keeps a list of its ranks' processes in
// its data folder. After a start it checks which of them still exist.
//
//   Leftovers leftovers(data_dir);
//   for (v1::RankReport& report : leftovers.Load({})) outbox.SetReport(std::move(report));
//   MP_ASSIGN_OR_RETURN(UniqueFd held, leftovers.Hold(start));  // the child inherits it
//   leftovers.Started(start, gpu_uuid, pid);   // a rank of this worker process
//   leftovers.Ended(key);
//
// A process is identified by its id, its start time and the host's boot, so no other process is
// mistaken for it. In a container the worker cannot see or end the processes of the container
// before it. Locks help there: each rank's process holds a lock on a file of its own for as long as
// it has open descriptors. Not thread-safe.
#ifndef MILEPOST_WORKER_AGENT_LEFTOVERS_H_
#define MILEPOST_WORKER_AGENT_LEFTOVERS_H_

#include <poll.h>
#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "milepost/v1/worker.pb.h"
#include "worker/agent/outbox.h"

namespace milepost::worker {

class Leftovers {
 public:
  explicit Leftovers(const std::string& data_dir)
      : data_dir_(data_dir), path_(data_dir + "/rank-processes") {}

  // Sends SIGKILL to every listed process that still exists, and returns for each a report that its
  // rank is STARTING. `slots` maps a GPU's UUID to its slot. A process whose GPU has no slot is not
  // reported. Call it once, first. A list that cannot be read is logged and counts as empty.
  std::vector<v1::RankReport> Load(const std::map<std::string, int>& slots);

  // Takes the lock that the rank's process is to inherit. Errors name the path and what failed.
  absl::StatusOr<UniqueFd> Hold(const v1::StartRank& start) const;

  // Both write the list anew and log errors. `gpu` is the GPU's UUID; empty: none.
  void Started(const v1::StartRank& start, const std::string& gpu, pid_t pid);
  void Ended(const RankKey& key);

  // These speak of loaded processes that have not ended.
  bool Has(const RankKey& key) const { return left_.contains(key); }
  std::vector<int> Slots() const;
  void AddPollEntries(std::vector<pollfd>& entries) const;
  // True when no descriptor shows the end of some process. Then call TakeEnded now and then.
  bool HasUnseen() const;
  // Returns the last reports of processes that have ended since the last call.
  std::vector<v1::RankReport> TakeEnded();

 private:
  struct Process {
    RankKey key;
    int slot = 0;
    std::string gpu;
    pid_t pid = 0;
    uint64_t start_ticks = 0;  // since the boot
  };
  struct Left {
    Process process;
    UniqueFd pidfd;  // empty: it is in another pid namespace
    v1::RankReport report;
  };

  void Write() const;
  std::string LockPath(const RankKey& key) const;
  // True while a process holds the rank's lock.
  bool IsHeld(const RankKey& key) const;

  const std::string data_dir_;
  const std::string path_;
  std::map<RankKey, Process> running_;  // of this worker process
  std::map<RankKey, Left> left_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_LEFTOVERS_H_
