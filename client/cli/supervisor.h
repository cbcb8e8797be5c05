// Keeps the processes of a `milepost run` alive: starts them, restarts those that die, stops them.
//
//   Supervisor supervisor(lock.fd());
//   MP_RETURN_IF_ERROR(supervisor.Start({.name = "coordinator", .argv = {...}, .log = path}));
//   while (...) {
//     poll(supervisor.pidfds() ..., supervisor.NextTime());
//     supervisor.Tick(now, &events);
//   }
//
// Not thread-safe. Blocks only for the length of a fork.
#ifndef MILEPOST_CLIENT_CLI_SUPERVISOR_H_
#define MILEPOST_CLIENT_CLI_SUPERVISOR_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/subprocess.h"

namespace milepost::client {

// Decides when a process that ended is started again. Pure.
//
// A process that exits before it has ever lived 2 s reports a real error, and is not restarted. A
// process that died by a signal, or that has once lived longer, is restarted after 20 ms. The delay
// doubles up to 2 s while lives are shorter than 2 s. After 8 such short lives in a row it is not
// restarted.
class RestartPolicy {
 public:
  // The delay. Nullopt: give up.
  std::optional<absl::Duration> OnExit(absl::Duration lived, const ExitResult& end);

 private:
  bool proven_ = false;  // it has once lived long enough
  int short_lives_ = 0;
};

struct ProcessSpec {
  std::string name;  // "coordinator", "worker-0"
  std::vector<std::string> argv;
  std::string log;  // stdout and stderr are appended here
  int death_signal = SIGKILL;
  std::vector<std::string> first = {};  // further arguments, only for the first start
};

struct ProcessEvent {
  std::string name;
  ExitResult end;
  absl::Duration restart_in;
};

class Supervisor {
 public:
  // Every child gets `lock_fd` as descriptor 3.
  explicit Supervisor(int lock_fd) : lock_fd_(lock_fd) {}

  absl::Status Start(ProcessSpec spec, absl::Time now);

  // Reaps processes that ended and starts those that are due. An error is final: the restarts are
  // used up, or a process does not start. It names the process and quotes the end of its log.
  absl::Status Tick(absl::Time now, std::vector<ProcessEvent>* events);
  // When Tick next has work even if no process ends.
  absl::Time NextTime() const;
  // These become readable when a process has ended.
  std::vector<int> pidfds() const;

  // Processes whose name begins with `prefix` are no longer restarted, and living ones get
  // `signal`.
  void Stop(const std::string& prefix, int signal);
  bool AnyAlive(const std::string& prefix) const;
  // Empties logs that have grown beyond 8 MiB, and keeps one older part.
  void BoundLogs() const;

 private:
  struct Process {
    ProcessSpec spec;
    RestartPolicy policy;
    std::optional<Subprocess> child;
    absl::Time started;
    absl::Time restart_at = absl::InfiniteFuture();
    bool stopping = false;
  };
  absl::Status Spawn(Process* process, absl::Time now);
  absl::Status Reap(Process* process, absl::Time now, std::vector<ProcessEvent>* events);
  absl::Status GaveUp(const Process& process, const ExitResult& end) const;

  int lock_fd_;
  std::vector<Process> processes_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_SUPERVISOR_H_
