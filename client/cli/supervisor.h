// Keeps the processes of a `milepost run` alive: starts them, restarts one that dies, stops them.
//
//   Supervisor supervisor(lock.fd());
//   MP_RETURN_IF_ERROR(supervisor.Start({.name = "coordinator", .argv = {...}, .log = path}));
//   while (...) {
//     poll(supervisor.pidfds() ..., supervisor.NextTime());
//     supervisor.Tick(now, &events);
//   }
//
// One thread. Blocks only for the length of a fork.
#ifndef MILEPOST_CLIENT_CLI_SUPERVISOR_H_
#define MILEPOST_CLIENT_CLI_SUPERVISOR_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/subprocess.h"

namespace milepost::client {

// When a process that ended is started again. Pure.
//
// A process that ends by itself with an error before it has lived 2 s has something to say: the
// first one is final. Deaths by signal, or after a longer life, are answered with a restart after
// 20 ms, doubling to 2 s while the lives are shorter than 2 s, at most 8 such short lives in a row.
class RestartPolicy {
 public:
  // The delay, or nothing: give up.
  std::optional<absl::Duration> OnExit(absl::Duration lived, const ExitResult& end);

 private:
  bool proven_ = false;  // it has lived long enough once
  int short_lives_ = 0;
};

struct ProcessSpec {
  std::string name;  // "coordinator", "worker-0"
  std::vector<std::string> argv;
  std::string log;  // stdout and stderr are appended here
  int death_signal = SIGKILL;
  std::vector<std::string> first = {};  // further arguments of the first start alone
};

struct ProcessEvent {
  std::string name;
  ExitResult end;
  absl::Duration restart_in;
};

class Supervisor {
 public:
  // `lock_fd` is passed to every child as descriptor 3.
  explicit Supervisor(int lock_fd) : lock_fd_(lock_fd) {}

  absl::Status Start(ProcessSpec spec, absl::Time now);

  // Reaps what ended and starts what is due. An error is final: the restarts are used up, or a
  // process does not start; it names the process and quotes the end of its log.
  absl::Status Tick(absl::Time now, std::vector<ProcessEvent>* events);
  // When Tick has something to do without a process ending.
  absl::Time NextTime() const;
  // Readable when a process has ended.
  std::vector<int> pidfds() const;

  // From now on nothing whose name begins with `prefix` is restarted; those that live get `signal`.
  void Stop(const std::string& prefix, int signal);
  bool AnyAlive(const std::string& prefix) const;
  // Empties logs that have become larger than 8 MiB (keeping one older part).
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
