// container-init: the first process of a script's container, which runs the script's command.
//
//   container-init FOLDER COMMAND ARGUMENTS...
//
// In FOLDER, which the trainer has made (worker/container/container_control.h):
//   orders   a FIFO. Each byte is the number of a signal for the command. At its end, which comes
//            when the trainer has gone however it ended, everything in the container is killed.
//   report   lines: "started", or "cannot start ERRNO"; then "exit CODE" or "signal NUMBER".
//
// As the first process of its PID namespace it reaps what others leave, and what is left when it
// ends is killed by the kernel. A command that were the first process itself would not die of
// SIGTERM. It runs in any image, so it is linked statically and uses nothing but system calls.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

constexpr int kNoProgram = 127;
constexpr int kSignalled = 128;
constexpr size_t kMostPathBytes = 4096;

class Report {
 public:
  explicit Report(const char* path)
      : fd_(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) {}
  bool ok() const { return fd_ >= 0; }
  void Say(const char* text) const { dprintf(fd_, "%s\n", text); }
  void Say(const char* text, int number) const { dprintf(fd_, "%s %d\n", text, number); }

 private:
  const int fd_;
};

[[noreturn]] void RunCommand(char** command, const sigset_t& mask, int failed) {
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  execvp(command[0], command);
  const int error = errno;
  (void)!write(failed, &error, sizeof error);
  _exit(kNoProgram);
}

// The process of the command; negative: there is none, and the report says why.
pid_t Start(char** command, const sigset_t& mask, const Report& report) {
  int failed[2];
  if (pipe2(failed, O_CLOEXEC) != 0) {
    report.Say("cannot start", errno);
    return -1;
  }
  const pid_t pid = fork();
  if (pid == 0) RunCommand(command, mask, failed[1]);
  close(failed[1]);
  int error = pid < 0 ? errno : 0;
  // Nothing comes once the program runs.
  if (pid > 0 && read(failed[0], &error, sizeof error) != sizeof error) error = 0;
  close(failed[0]);
  if (error == 0) {
    report.Say("started");
    return pid;
  }
  report.Say("cannot start", error);
  return -1;
}

// Negative: the command still runs. Otherwise what this program is to end with.
int Reap(pid_t command, const Report& report) {
  int status = 0;
  for (pid_t pid = waitpid(-1, &status, WNOHANG); pid > 0; pid = waitpid(-1, &status, WNOHANG)) {
    if (pid != command) continue;
    if (WIFEXITED(status)) {
      report.Say("exit", WEXITSTATUS(status));
      return WEXITSTATUS(status);
    }
    report.Say("signal", WTERMSIG(status));
    return kSignalled + WTERMSIG(status);
  }
  return -1;
}

// False: the trainer has gone.
bool Obey(int orders, pid_t command) {
  unsigned char numbers[64];
  while (true) {
    const ssize_t got = read(orders, numbers, sizeof numbers);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN;
    if (got == 0) return false;
    for (ssize_t i = 0; i < got; ++i) kill(command, numbers[i]);
  }
}

int Await(pid_t command, int orders, int signals, const Report& report) {
  while (true) {
    if (!Obey(orders, command)) {
      kill(command, SIGKILL);
      return kSignalled + SIGKILL;
    }
    const int end = Reap(command, report);
    if (end >= 0) return end;
    pollfd entries[] = {{orders, POLLIN, 0}, {signals, POLLIN, 0}};
    poll(entries, 2, -1);
    signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == sizeof info) {
      // Podman passes on what it gets.
      if (info.ssi_signo != SIGCHLD) kill(command, static_cast<int>(info.ssi_signo));
    }
  }
}

int Run(const char* folder, char** command) {
  char path[kMostPathBytes];
  snprintf(path, sizeof path, "%s/report", folder);
  const Report report(path);
  snprintf(path, sizeof path, "%s/orders", folder);
  const int orders = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (!report.ok() || orders < 0) {
    dprintf(STDERR_FILENO, "container-init: cannot open what is in %s: %s\n", folder,
            strerror(errno));
    return kNoProgram;
  }
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  const int signals = signalfd(-1, &all, SFD_NONBLOCK | SFD_CLOEXEC);
  const pid_t pid = Start(command, before, report);
  return pid < 0 ? kNoProgram : Await(pid, orders, signals, report);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    dprintf(STDERR_FILENO, "usage: container-init FOLDER COMMAND ARGUMENTS...\n");
    return 2;
  }
  return Run(argv[1], argv + 2);
}
