// Trainer processes that outlive the worker process that had started them. They should not: SIGKILL
// follows the worker's end. But one that waits in the kernel, for a disk or a driver, ends only
// when that answers, and until then it may hold its GPU. So the worker keeps a list of its ranks'
// processes in its data folder, and looks after a start which of them are still there.
//
//   Leftovers leftovers(data_dir);
//   for (v1::RankReport& report : leftovers.Load({})) outbox.SetReport(std::move(report));
//   MP_ASSIGN_OR_RETURN(UniqueFd held, leftovers.Hold(start));  // the child inherits it
//   leftovers.Started(start, gpu_uuid, pid);   // a rank of this worker process
//   leftovers.Ended(key);
//
// A process is known by its id, its start time and the host's boot, so no other one is taken for
// it. In a container of its own the worker sees no process of the one before, and cannot end it.
// What tells then is a lock on a file of its own that each rank's process holds for as long as it
// has descriptors. For one thread.
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

  // Sends SIGKILL to those of the list that are there, and tells of each as of a rank that has
  // started. `slots`: the slot of each GPU, by UUID; of a GPU that has none nothing is told. Once,
  // first. A list that cannot be read is logged, and counts as empty.
  std::vector<v1::RankReport> Load(const std::map<std::string, int>& slots);

  // The lock that the process of a rank is to inherit. Errors: the path and what failed.
  absl::StatusOr<UniqueFd> Hold(const v1::StartRank& start) const;

  // The list is written anew; what hinders that is logged. `gpu`: its UUID; empty: none.
  void Started(const v1::StartRank& start, const std::string& gpu, pid_t pid);
  void Ended(const RankKey& key);

  // Of those that were loaded and have not ended:
  bool Has(const RankKey& key) const { return left_.contains(key); }
  std::vector<int> Slots() const;
  void AddPollEntries(std::vector<pollfd>& entries) const;
  // Whether there are some whose end no descriptor tells: TakeEnded has to be called now and then.
  bool HasUnseen() const;
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
    UniqueFd pidfd;  // empty: it is in another pid namespace
    v1::RankReport report;
  };

  void Write() const;
  std::string LockPath(const RankKey& key) const;
  // Whether a process has the rank's lock.
  bool IsHeld(const RankKey& key) const;

  const std::string data_dir_;
  const std::string path_;
  std::map<RankKey, Process> running_;  // of this worker process
  std::map<RankKey, Left> left_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_LEFTOVERS_H_
