// Child processes. Starts one with chosen arguments, environment, descriptors and CPU cores,
// signals it, waits for it with a deadline, and reports how it ended.
//
//   SpawnOptions options;
//   options.argv = {SiblingBinary("milepost-worker"), "--coordinator", address};
//   options.out = Redirect::File(log_path);
//   MP_ASSIGN_OR_RETURN(Subprocess child, Subprocess::Spawn(std::move(options)));
//   MP_RETURN_IF_ERROR(child.Signal(SIGTERM));
//   absl::StatusOr<ExitResult> end = child.Wait(absl::Now() + absl::Seconds(5));
//
// The child gets only descriptors 0, 1, 2 and those of `SpawnOptions::fds`, an empty signal mask
// and default signal handlers. It dies with this process (`death_signal`), whichever thread spawned
// it. For this, one thread that lives as long as the process makes all forks.
#ifndef MILEPOST_COMMON_SUBPROCESS_H_
#define MILEPOST_COMMON_SUBPROCESS_H_

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace milepost {

// The target of one of the child's standard streams.
struct Redirect {
  enum Kind { kInherit, kNull, kPipe, kFile, kFd };

  static Redirect Inherit() { return {kInherit, "", -1}; }
  static Redirect Null() { return {kNull, "", -1}; }
  // Take the other end with Subprocess::TakeIn, TakeOut or TakeErr.
  static Redirect Pipe() { return {kPipe, "", -1}; }
  // Output is appended to the file, which is created with mode 0644. Stdin is read from it.
  static Redirect File(std::string path) { return {kFile, std::move(path), -1}; }
  // The caller keeps ownership. The descriptor is needed only until Spawn returns.
  static Redirect Fd(int fd) { return {kFd, "", fd}; }

  Kind kind = kInherit;
  std::string path;
  int fd = -1;
};

struct SpawnOptions {
  std::vector<std::string> argv;  // argv[0] is the executable's path; PATH is not searched
  std::string program;            // the executable's path where argv[0] is not; empty: it is
  // Added to this process's environment. Variables of the same name are replaced.
  std::vector<std::pair<std::string, std::string>> env;
  Redirect in = Redirect::Null();
  Redirect out = Redirect::Inherit();
  Redirect err = Redirect::Inherit();
  // Pairs (descriptor in the child, descriptor here): at most 16, the child's in [3, 64).
  std::vector<std::pair<int, int>> fds;
  int death_signal = SIGKILL;  // sent to the child however this process ends; 0: none
  // Gives the child a process group of its own, so that a terminal's Ctrl-C does not reach it.
  bool own_process_group = true;
  std::vector<int> cores;  // CPU affinity; empty: that of this process
  // NUMA node, below 1024, whose memory the child takes first. -1: as this process. If the kernel
  // refuses this, the child runs without it.
  int memory_node = -1;
  std::string folder;  // its current folder; empty: that of this process
  // Files "cgroup.procs" of control groups, which the child joins before it runs the
  // program. If the kernel refuses one, the child runs without it.
  std::vector<std::string> cgroup_files;
  // When the child has ended, what is left of its process group is killed (SIGKILL). It needs
  // own_process_group.
  bool end_group = false;
};

struct ExitResult {
  int exit_code = 0;  // valid when signal is 0
  int signal = 0;     // the signal that killed it; 0: it exited

  bool success() const { return signal == 0 && exit_code == 0; }
  std::string ToString() const;  // "exit code 3", "killed by signal 9 (Killed)"
};

// Movable. Only one thread at a time may call Wait. Others may call Signal meanwhile.
class Subprocess {
 public:
  // Blocks until exec has happened. Errors name the executable or the file: it cannot be run
  // (NOT_FOUND, PERMISSION_DENIED, ...), or no descriptors or processes are left.
  static absl::StatusOr<Subprocess> Spawn(SpawnOptions options);

  Subprocess(Subprocess&&) noexcept = default;
  Subprocess& operator=(Subprocess&& other) noexcept;
  // Kills (SIGKILL) and reaps a child that still runs.
  ~Subprocess();

  pid_t pid() const { return pid_; }
  // Readable (POLLIN) once the child has ended; for poll. This object owns it.
  int pidfd() const { return pidfd_.get(); }

  // Also OK when the child has already ended. The signal never reaches another process.
  absl::Status Signal(int signal);

  // Blocks until the child has ended and reaps it. DEADLINE_EXCEEDED: `deadline` came first. After
  // the end every call returns the same result.
  absl::StatusOr<ExitResult> Wait(absl::Time deadline = absl::InfiniteFuture());

  // Kills the child and its whole process group, and does not wait. A separate thread reaps the
  // child whenever the kernel releases it.
  static void LeaveBehind(Subprocess child);

  // This process's ends of Redirect::Pipe(). Empty: there is no pipe, or it was already taken.
  UniqueFd TakeIn() { return std::move(in_); }
  UniqueFd TakeOut() { return std::move(out_); }
  UniqueFd TakeErr() { return std::move(err_); }

 private:
  Subprocess() = default;
  void KillAndReap();

  pid_t pid_ = -1;
  UniqueFd pidfd_;
  UniqueFd in_, out_, err_;
  bool ended_ = false;
  bool end_group_ = false;
  ExitResult result_;
};

// The path of `name` in the folder of this process's executable.
std::string SiblingBinary(const std::string& name);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SUBPROCESS_H_
