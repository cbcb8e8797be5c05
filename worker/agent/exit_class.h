// What a trainer's end means: the only place that turns exit codes and signals into rank reports.
#ifndef MILEPOST_WORKER_AGENT_EXIT_CLASS_H_
#define MILEPOST_WORKER_AGENT_EXIT_CLASS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/subprocess.h"
#include "milepost/v1/trainer.pb.h"

namespace milepost::worker {

struct TrainerEnd {
  ExitResult exit;
  bool asked_to_stop = false;  // we sent SIGTERM
  bool killed_by_us = false;   // SIGKILL, as the coordinator said or because stopping took too long
  bool oom_kill_seen = false;  // the OOM killer struck in our cgroup while it ran
  std::string silence;         // why we took it for hung and killed it; empty: we did not
  std::optional<v1::TrainerFailure> failure;  // what it reported itself
  std::vector<std::string> last_lines;
};

// Fills state, exit_code, signal, failure_class, message, last_lines, peer_lost and position.
void DescribeEnd(const TrainerEnd& end, v1::RankReport& report);

// The state of a process in words: "stopped (T)", "waiting for a disk or device (D)". Empty: not
// known.
std::string ProcessState(int pid);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_EXIT_CLASS_H_
