// The containers of this worker's script ranks, which have to be gone after their rank. Mostly a
// container ends with its trainer, however that ended (docs/operate/workers.md has the exceptions).
// What podman keeps of it may stay: podman has been killed with the rank. So podman is told to
// remove it, here and not in the trainer, which may be killed too. A list in the worker's data
// folder tells the next worker what is left.
//
//   RankContainers containers(data_dir);
//   trainer.container = containers.Make(key);
//   ...
//   containers.Ended(key);
//   next = containers.Sweep(SteadyNow());   // not later than `next` again
//
// For the agent's loop: nothing but AwaitRemoved waits for podman. Not thread-safe.
#ifndef MILEPOST_WORKER_AGENT_RANK_CONTAINERS_H_
#define MILEPOST_WORKER_AGENT_RANK_CONTAINERS_H_

#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "common/subprocess.h"
#include "worker/agent/outbox.h"

namespace milepost::worker {

class RankContainers {
 public:
  // Reads the list. The folder has to exist, and is this worker's alone.
  explicit RankContainers(const std::string& data_dir);
  ~RankContainers();
  RankContainers(const RankContainers&) = delete;
  RankContainers& operator=(const RankContainers&) = delete;

  // The name of the container that the rank may start.
  std::string Make(const RankKey& key);

  // The rank's trainer has ended, or was not started.
  void Ended(const RankKey& key);

  // Starts podman, or looks whether it has ended. Returns when to call it next.
  absl::Time Sweep(absl::Time now);

  // Before this process ends: waits until what has ended is removed, for some seconds at most.
  void AwaitRemoved();

 private:
  void Start(absl::Time now);
  void Finish(bool removed, absl::Time now);
  void Write() const;

  const std::string path_;    // of the list
  const std::string prefix_;  // of names
  std::map<RankKey, std::string> running_;
  std::set<std::string> ended_;     // to be removed
  std::set<std::string> removing_;  // of them, those that podman was told
  std::optional<Subprocess> podman_;
  absl::Time deadline_ = absl::InfiniteFuture();  // of podman
  absl::Time next_try_ = absl::InfinitePast();
  int failures_ = 0;  // in a row
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_RANK_CONTAINERS_H_
