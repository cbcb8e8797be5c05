// Checks by commands whether this host is fit to run ranks. Each command is a process of its own,
// so a disk or driver that hangs holds up only that process.
//
//   HealthCheck check(options, [&](v1::HealthReport report) { ... });
//   check.Begin(request, {"GPU-7f..."});   // later, on another thread: the report
//
// Thread-safe. Nothing here blocks: a check that does not end is left behind.
#ifndef MILEPOST_WORKER_AGENT_HEALTH_CHECK_H_
#define MILEPOST_WORKER_AGENT_HEALTH_CHECK_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "milepost/v1/worker.pb.h"

namespace milepost::worker {

struct HealthOptions {
  // `milepost-worker doctor` and its arguments; empty: not run.
  std::vector<std::string> doctor;
  std::string command;      // for /bin/sh, run in addition; empty: none
  std::string gpu_trainer;  // its `check` computes on a GPU (worker/agent/gpu_check.h)
  // The time limit of each command. A command that exceeds it is killed and has failed.
  absl::Duration patience = absl::Minutes(5);
};

class HealthCheck {
 public:
  using Done = std::function<void(v1::HealthReport report)>;

  // `done` is called on a thread of the check, and never after this object's end.
  HealthCheck(HealthOptions options, Done done);
  ~HealthCheck();

  // If a check is already running, its report answers this request instead of the earlier one.
  // `gpus` are the UUIDs of the GPUs that no rank uses.
  void Begin(const v1::CheckHealth& request, std::vector<std::string> gpus);

 private:
  struct Shared;
  static void Run(const HealthOptions& options, const std::vector<std::string>& gpus,
                  const std::shared_ptr<Shared>& shared);

  const HealthOptions options_;
  const std::shared_ptr<Shared> shared_;
};

// Runs the command and returns what it found wrong. Empty: it ended with 0. Otherwise its lines
// that begin with "fail", or else its last line. Blocks for at most `patience`, unless its process
// cannot be killed.
std::string ProblemFoundBy(const std::vector<std::string>& argv, absl::Duration patience);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_HEALTH_CHECK_H_
