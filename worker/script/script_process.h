// The process of a script's rank, and all that it starts.
//
//   MP_ASSIGN_OR_RETURN(auto script, ScriptProcess::Start({.command = {"python3", "train.py"}}));
//   while (!script->Wait(now + absl::Milliseconds(100)).ok()) ...
//   script->EndDescendants(absl::Seconds(10));
//
// What the script writes goes where this process's output goes. Not thread-safe.
#ifndef MILEPOST_WORKER_SCRIPT_SCRIPT_PROCESS_H_
#define MILEPOST_WORKER_SCRIPT_SCRIPT_PROCESS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/subprocess.h"
#include "worker/cgroup/cgroup.h"

namespace milepost::worker {

// The PATH of a process whose environment is this one's and `environment`.
std::string PathWith(const std::vector<std::pair<std::string, std::string>>& environment);

struct ScriptOptions {
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> environment;  // added to this process's
  std::string folder;                                            // where it runs
  int held = -1;  // a descriptor that the script keeps open under the same number; -1: none
  Cgroup cgroup;  // that its processes are in from the beginning
};

class ScriptProcess {
 public:
  // Blocks until the program runs. A program without a slash is looked for in the PATH that the
  // script will have. INVALID_ARGUMENT: it is not there, or cannot be run, or the folder is not
  // there. Other errors: no processes or descriptors are left. From then on what the script starts
  // and leaves alone becomes a child of this process.
  static absl::StatusOr<ScriptProcess> Start(ScriptOptions options);

  // As Subprocess: of the script's own process. SIGTERM goes to it alone, as torchrun sends it.
  absl::Status Signal(int signal) { return process_.Signal(signal); }
  absl::StatusOr<ExitResult> Wait(absl::Time deadline) { return process_.Wait(deadline); }

  // Kills what the script has started and left, once it has ended, until nothing is left or `most`
  // has passed. Blocks. Returns how many there were.
  static int EndDescendants(absl::Duration most);

 private:
  explicit ScriptProcess(Subprocess process) : process_(std::move(process)) {}

  Subprocess process_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_SCRIPT_PROCESS_H_
