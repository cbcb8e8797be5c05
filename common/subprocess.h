// Child processes: start one with chosen arguments, environment, descriptors and CPU cores; signal
// it; wait for it with a deadline; know how it ended.
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
// it: all forks happen on one thread that lives as long as the process.
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

// What one of the child's standard streams is connected to.
struct Redirect {
  enum Kind { kInherit, kNull, kPipe, kFile, kFd };

  static Redirect Inherit() { return {kInherit, "", -1}; }
  static Redirect Null() { return {kNull, "", -1}; }
  // The other end is taken with Subprocess::TakeIn, TakeOut or TakeErr.
  static Redirect Pipe() { return {kPipe, "", -1}; }
  // Appended to (created with mode 0644), or read from for stdin.
  static Redirect File(std::string path) { return {kFile, std::move(path), -1}; }
  // Stays open and owned by the caller; needed only until Spawn returns.
  static Redirect Fd(int fd) { return {kFd, "", fd}; }

  Kind kind = kInherit;
  std::string path;
  int fd = -1;
};

struct SpawnOptions {
  std::vector<std::string> argv;  // argv[0] is the executable's path; PATH is not searched
  // On top of this process's environment; the same name replaces.
  std::vector<std::pair<std::string, std::string>> env;
  Redirect in = Redirect::Null();
  Redirect out = Redirect::Inherit();
  Redirect err = Redirect::Inherit();
  // (descriptor in the child, descriptor here): at most 16, the child's in [3, 64).
  std::vector<std::pair<int, int>> fds;
  int death_signal = SIGKILL;  // sent to the child when this process ends, however; 0: none
  // A process group of its own, so that a terminal's Ctrl-C does not reach it.
  bool own_process_group = true;
  std::vector<int> cores;  // CPU affinity; empty: this process's
  // NUMA node, below 1024, whose memory it takes first; -1: as this process. Where the kernel
  // refuses that, it runs without.
  int memory_node = -1;
};

struct ExitResult {
  int exit_code = 0;  // when signal is 0
  int signal = 0;     // that killed it; 0: it exited

  bool success() const { return signal == 0 && exit_code == 0; }
  std::string ToString() const;  // "exit code 3", "killed by signal 9 (Killed)"
};

// Movable. Wait is for one thread at a time; Signal may be called by others meanwhile.
class Subprocess {
 public:
  // Errors: the executable cannot be run (NOT_FOUND, PERMISSION_DENIED, ...), no descriptors or
  // processes left; the message names the executable or the file. Blocks until exec has happened.
  static absl::StatusOr<Subprocess> Spawn(SpawnOptions options);

  Subprocess(Subprocess&&) noexcept = default;
  Subprocess& operator=(Subprocess&& other) noexcept;
  // Kills (SIGKILL) and reaps a child that still runs.
  ~Subprocess();

  pid_t pid() const { return pid_; }
  // Readable (POLLIN) once the child has ended; for poll. Owned by this object.
  int pidfd() const { return pidfd_.get(); }

  // OK too when the child has already ended: never reaches another process.
  absl::Status Signal(int signal);

  // Blocks until the child ended (and reaps it), or DEADLINE_EXCEEDED. Once ended, answers the same
  // result every time.
  absl::StatusOr<ExitResult> Wait(absl::Time deadline = absl::InfiniteFuture());

  // Kills the child and all of its process group, and does not wait: the child is reaped by a
  // thread of its own, whenever the kernel lets go of it.
  static void LeaveBehind(Subprocess child);

  // This process's ends of Redirect::Pipe(); empty otherwise or when already taken.
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
  ExitResult result_;
};

// The path of `name` in the folder of this process's executable.
std::string SiblingBinary(const std::string& name);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SUBPROCESS_H_
