// The control groups of this worker's script ranks: made when a rank starts, and emptied and
// removed after its end, whatever it has left. Without groups ranks run unbounded; the log says so
// once, with the reason.
//
//   RankCgroups groups(data_dir);
//   groups.Prepare();
//   trainer.cgroup_folders = groups.Make(key, {.memory_bytes = bytes, .processes = 4096});
//   ...
//   groups.Ended(key);
//   next = groups.Sweep();   // not later than `next` again
//
// The trainer itself stays outside. It has to outlive what the kernel ends: it reports the end, and
// uploads the checkpoint that the script saved last. Memory that both share is charged to whoever
// touched it first. What the script saves was written by the script, so it counts as the rank's,
// also while the trainer uploads it. What a script loads is first written by the trainer, at most
// 256 MiB at a time, and counts as the worker's.
//
// For the agent's loop; not thread-safe.
#ifndef MILEPOST_WORKER_AGENT_RANK_CGROUPS_H_
#define MILEPOST_WORKER_AGENT_RANK_CGROUPS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "worker/agent/outbox.h"
#include "worker/cgroup/cgroup_tree.h"

namespace milepost::worker {

class RankCgroups {
 public:
  // Groups are named after the folder, which has to exist and is this worker's alone. So a later
  // worker of the same folder finds what a killed one has left. `root` is for tests.
  explicit RankCgroups(const std::string& data_dir, const std::string& root = "");
  // Waits up to a second for what was killed.
  ~RankCgroups();
  RankCgroups(const RankCgroups&) = delete;
  RankCgroups& operator=(const RankCgroups&) = delete;

  // Before there are child processes: this process may have to move into a group of its own. Kills
  // what is left in groups of an earlier worker. Further calls do nothing.
  void Prepare();

  // Prepares if nobody has. Empty: the rank is not bounded.
  std::vector<std::string> Make(const RankKey& key, const CgroupLimits& limits);

  // The rank's trainer has ended, or was not started. Kills what is left in its group.
  void Ended(const RankKey& key);

  // Before this process ends, when ranks may outlive it (CgroupTree::Release).
  void Release();

  // Removes the groups that are empty. Returns when to call it next.
  absl::Time Sweep(absl::Time now);

 private:
  const std::string prefix_;
  const std::string root_;
  bool prepared_ = false;
  bool failed_ = false;  // the log has said that a group cannot be made
  std::optional<CgroupTree> tree_;
  std::map<RankKey, Cgroup> running_;
  std::vector<Cgroup> ending_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_RANK_CGROUPS_H_
