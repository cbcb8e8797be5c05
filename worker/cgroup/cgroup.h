// The control group of one rank of a script: what its processes may use together, what they have
// used, and their end.
//
//   Cgroup group({"/sys/fs/cgroup/milepost.slice/milepost-3-7-jobs-1-1-0"});
//   MP_RETURN_IF_ERROR(group.Limit({.memory_bytes = int64_t{8} << 30, .processes = 4096}));
//   spawn.cgroup_files = group.JoinFiles();
//   ...
//   if (group.Read().oom_kills > 0) ...
//   group.End(absl::Seconds(10));
//   group.Remove();
//
// A group is one folder of the unified hierarchy (v2), or one in each v1 hierarchy that it needs.
// Which of them a folder is, its files tell. Processes that are to be bounded join before they run
// a program; what they start is in the group from its beginning. A process with the same user's
// rights may leave the group: it holds accidents, not attacks. Thread-safe. Every call blocks on
// small files that are in the kernel's memory.
#ifndef MILEPOST_WORKER_CGROUP_CGROUP_H_
#define MILEPOST_WORKER_CGROUP_CGROUP_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace milepost::worker {

struct CgroupLimits {
  int64_t memory_bytes = 0;  // swap included, where the kernel accounts for it; 0: no limit
  int64_t processes = 0;     // threads count as processes do; 0: no limit
};

struct CgroupRecord {
  int64_t memory_limit = 0;       // bytes; 0: there is none
  int64_t memory_peak = 0;        // bytes; 0: the kernel does not tell
  int64_t oom_kills = 0;          // processes that an out-of-memory killer has ended
  bool memory_limit_hit = false;  // it was this group's limit that left no memory
  int64_t process_limit = 0;      // 0: there is none
  int64_t processes_refused = 0;  // how often no process or thread could be started
};

class Cgroup {
 public:
  // No folders: no group. Then nothing is bounded, and every call does nothing.
  Cgroup() = default;
  explicit Cgroup(std::vector<std::string> folders) : folders_(std::move(folders)) {}

  const std::vector<std::string>& folders() const { return folders_; }
  // For SpawnOptions::cgroup_files.
  std::vector<std::string> JoinFiles() const;

  // A limit whose controller none of the folders has is left out. Errors name the file. With v2,
  // the kernel's out-of-memory killer ends the whole group or nothing of it.
  absl::Status Limit(const CgroupLimits& limits) const;

  // Before Kill, which refuses processes too. What cannot be read is 0.
  CgroupRecord Read() const;

  // Those in the group and in groups that they have made below it.
  std::vector<pid_t> Processes() const;

  // Sends SIGKILL to all of them. None of them can start another one from then on. Does not wait
  // for their end.
  void Kill() const;
  // Kills until none is left, or `most` has passed. True: none is left.
  bool End(absl::Duration most) const;

  // False: there are still processes in it.
  bool Remove() const;

 private:
  std::vector<std::string> folders_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_CGROUP_CGROUP_H_
