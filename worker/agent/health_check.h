// Whether this host is fit to run ranks, as commands find out. Each is a process of its own, so
// that a disk or a driver that hangs holds nobody but that process.
//
//   HealthCheck check(options, [&](v1::HealthReport report) { ... });
//   check.Begin(request, {"GPU-7f..."});   // later, on another thread: the report
//
// Thread-safe. Nothing here blocks: a check that does not come to an end is left behind.
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
  std::string command;      // for /bin/sh, besides; empty: none
  std::string gpu_trainer;  // whose `check` computes on a GPU (worker/agent/gpu_check.h)
  // For each of them; then it is killed, and has failed.
  absl::Duration patience = absl::Minutes(5);
};

class HealthCheck {
 public:
  using Done = std::function<void(v1::HealthReport report)>;

  // `done` is called from a thread of the check's, never after this object's end.
  HealthCheck(HealthOptions options, Done done);
  ~HealthCheck();

  // While a check runs its report answers this request instead of the one before.
  // `gpus`: the uuids of those that no rank uses.
  void Begin(const v1::CheckHealth& request, std::vector<std::string> gpus);

 private:
  struct Shared;
  static void Run(const HealthOptions& options, const std::vector<std::string>& gpus,
                  const std::shared_ptr<Shared>& shared);

  const HealthOptions options_;
  const std::shared_ptr<Shared> shared_;
};

// What the command found wrong: empty when it ends with 0. Else its lines that begin with "fail",
// or its last one. Blocks for `patience` at most, unless its process cannot be killed.
std::string ProblemFoundBy(const std::vector<std::string>& argv, absl::Duration patience);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_HEALTH_CHECK_H_
