// Folders in memory in which the ranks of a job keep their state, one for each job: they outlive
// the ranks, not the host. Removed when the job has had no rank here for a while; sooner when
// another job comes, which may need the memory: the next attempt takes what it needs within
// seconds.
//
//   JobMemory memory("/dev/shm/milepost-1000", "worker-a");
//   trainer.memory_folder = memory.FolderOf("jobs/7", uid);
//   next = memory.Sweep(folders_of_ranks, now);
//
// Of the agent's loop; not thread-safe. File system errors, and a folder that others may write to,
// mean that nothing is kept, with a warning.
#ifndef MILEPOST_WORKER_AGENT_JOB_MEMORY_H_
#define MILEPOST_WORKER_AGENT_JOB_MEMORY_H_

#include <map>
#include <set>
#include <string>

#include "absl/time/time.h"

namespace milepost::worker {

// "/dev/shm/milepost-UID", or empty where the host has no such file system.
std::string DefaultMemoryDir();

class JobMemory {
 public:
  static constexpr absl::Duration kKeep = absl::Minutes(10);
  static constexpr absl::Duration kKeepFromOthers = absl::Minutes(1);

  // What ranks of an older process of the worker have left there counts too. Empty: nothing is
  // kept.
  JobMemory(const std::string& dir, const std::string& worker_id);
  ~JobMemory();  // removes it
  JobMemory(const JobMemory&) = delete;
  JobMemory& operator=(const JobMemory&) = delete;

  // Made if it is not there; empty: nothing is kept. By name and uid: another coordinator uses the
  // same names.
  std::string FolderOf(const std::string& job, const std::string& uid);
  // Removes the folders that have had no rank, as calls saw it, for `keep`. `used`: those that
  // have. Returns when it has to be called next.
  absl::Time Sweep(const std::set<std::string>& used, absl::Time now, absl::Duration keep = kKeep);

 private:
  std::string root_;
  std::map<std::string, absl::Time> last_seen_;  // by folder
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_JOB_MEMORY_H_
