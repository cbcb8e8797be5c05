// Trainer processes that outlive the worker process that had started them. They should not: SIGKILL
// follows the worker's end. But one that waits in the kernel, for a disk or a driver, ends only
// when that answers, and until then it may hold its GPU. So the worker keeps a list of its ranks'
// processes in its data folder, and looks after a start which of them are still there.
//
//   Leftovers leftovers(data_dir);
//   for (v1::RankReport& report : leftovers.Load({})) outbox.SetReport(std::move(report));
//   leftovers.Started(start, gpu_uuid, pid);   // a rank of this worker process
//   leftovers.Ended(key);
//
// A process is known by its id, its start time and the host's boot, so no other one is taken for
// it; in a container of its own the worker sees none of those of the one before. For one thread.
#ifndef MILEPOST_WORKER_AGENT_LEFTOVERS_H_
#define MILEPOST_WORKER_AGENT_LEFTOVERS_H_

#include <poll.h>
#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "milepost/v1/worker.pb.h"
#include "worker/agent/outbox.h"

namespace milepost::worker {

class Leftovers {
 public:
  explicit Leftovers(const std::string& data_dir) : path_(data_dir + "/rank-processes") {}

  // Sends SIGKILL to those of the list that are there, and tells of each as of a rank that has
  // started. `slots`: the slot of each GPU, by UUID; of a GPU that has none nothing is told. Once,
  // first. A list that cannot be read is logged, and counts as empty.
  std::vector<v1::RankReport> Load(const std::map<std::string, int>& slots);

  // The list is written anew; what hinders that is logged. `gpu`: its UUID; empty: none.
  void Started(const v1::StartRank& start, const std::string& gpu, pid_t pid);
  void Ended(const RankKey& key);

  // Of those that were loaded and have not ended:
  bool Has(const RankKey& key) const { return left_.contains(key); }
  std::vector<int> Slots() const;
  void AddPollEntries(std::vector<pollfd>& entries) const;
  // The last reports of those that have ended since.
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
    UniqueFd pidfd;
    v1::RankReport report;
  };

  void Write() const;

  const std::string path_;
  std::map<RankKey, Process> running_;  // of this worker process
  std::map<RankKey, Left> left_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_LEFTOVERS_H_
