// Folders in memory, one for each job, in which the job's ranks keep their state. A folder outlives
// the ranks, but not the host. It is removed when the job has had no rank here for a while. When
// another job comes, which may need the memory, it is removed sooner: the job's next attempt takes
// what it needs within seconds.
//
//   JobMemory memory("/dev/shm/milepost-1000", "worker-a");
//   trainer.memory_folder = memory.FolderOf("jobs/7", uid);
//   next = memory.Sweep(folders_of_ranks, now);
//
// For the agent's loop; not thread-safe. When the file system reports an error, or others may write
// to the folder, nothing is kept, and a warning is logged.
#ifndef MILEPOST_WORKER_AGENT_JOB_MEMORY_H_
#define MILEPOST_WORKER_AGENT_JOB_MEMORY_H_

#include <map>
#include <set>
#include <string>

#include "absl/time/time.h"

namespace milepost::worker {

// "/dev/shm/milepost-UID". Empty: the host has no such file system.
std::string DefaultMemoryDir();

class JobMemory {
 public:
  static constexpr absl::Duration kKeep = absl::Minutes(10);
  static constexpr absl::Duration kKeepFromOthers = absl::Minutes(1);

  // Also takes over folders that ranks of an earlier worker process left there. Empty `dir`:
  // nothing is kept.
  JobMemory(const std::string& dir, const std::string& worker_id);
  ~JobMemory();  // removes it
  JobMemory(const JobMemory&) = delete;
  JobMemory& operator=(const JobMemory&) = delete;

  // Makes the folder if it does not exist. Empty: nothing is kept. The folder is named by job and
  // uid, because another coordinator uses the same job names.
  std::string FolderOf(const std::string& job, const std::string& uid);
  // Removes the folders that have had no rank for `keep`. `used` lists the folders whose job has a
  // rank now; earlier calls are remembered. Returns when to call it next.
  absl::Time Sweep(const std::set<std::string>& used, absl::Time now, absl::Duration keep = kKeep);

 private:
  std::string root_;
  std::map<std::string, absl::Time> last_seen_;  // by folder
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_JOB_MEMORY_H_
