#include "common/subprocess.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/mempolicy.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/poll.h"
#include "common/status_macros.h"

extern char** environ;

namespace milepost {

namespace {

constexpr int kMaxExtraFds = 16;
constexpr int kMostNodes = 1024;
constexpr int kBitsPerWord = 8 * sizeof(unsigned long);
constexpr int kFirstFreeFd = 64;  // in the child, while descriptors are moved to their places

// All forks happen here: PR_SET_PDEATHSIG fires when the forking *thread* ends.
class SpawnThread {
 public:
  // Never destroyed: the thread ends with the process.
  static SpawnThread& Get() {
    static SpawnThread* spawner = new SpawnThread;
    return *spawner;
  }

  pid_t Run(const std::function<pid_t()>& fork_child) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return task_ == nullptr; });
    task_ = &fork_child;
    result_.reset();
    changed_.notify_all();
    changed_.wait(lock, [&] { return task_ == &fork_child && result_.has_value(); });
    pid_t pid = *result_;
    task_ = nullptr;
    changed_.notify_all();
    return pid;
  }

 private:
  SpawnThread() { std::thread(&SpawnThread::Loop, this).detach(); }

  [[noreturn]] void Loop() {
    sigset_t all;  // the process's signals are for its other threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return task_ != nullptr && !result_.has_value(); });
      pid_t pid = (*task_)();
      result_ = pid >= 0 ? pid : -errno;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<pid_t()>* task_ = nullptr;
  std::optional<pid_t> result_;
};

// Everything the child needs between fork and exec, made before the fork: only async-signal-safe
// calls are allowed there.
struct ChildPlan {
  std::vector<char*> argv;
  std::vector<char*> env;
  std::vector<std::string> env_storage;
  std::vector<std::pair<int, int>> fds;  // (child, ours)
  int death_signal = 0;
  pid_t parent = 0;
  bool own_process_group = false;
  bool set_cores = false;
  cpu_set_t cores;
  bool prefer_node = false;
  unsigned long nodes[kMostNodes / kBitsPerWord] = {};
  const char* program = nullptr;
  const char* folder = nullptr;  // or null
  std::vector<const char*> cgroup_files;
  int error_fd = -1;  // close-on-exec: closes when exec succeeds, else carries errno
};

[[noreturn]] void FailInChild(int error_fd) {
  int error = errno;
  ssize_t ignored = write(error_fd, &error, sizeof error);
  (void)ignored;
  _exit(127);
}

void PlaceDescriptors(const ChildPlan& plan) {
  int moved[kMaxExtraFds + 3];
  for (size_t i = 0; i < plan.fds.size(); ++i) {
    moved[i] = fcntl(plan.fds[i].second, F_DUPFD_CLOEXEC, kFirstFreeFd);
    if (moved[i] < 0) FailInChild(plan.error_fd);
  }
  if (close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) != 0) FailInChild(plan.error_fd);
  for (size_t i = 0; i < plan.fds.size(); ++i) {
    if (dup2(moved[i], plan.fds[i].first) < 0) FailInChild(plan.error_fd);
  }
}

// What cannot be joined does not keep the program from running.
void JoinCgroups(const ChildPlan& plan) {
  for (const char* path : plan.cgroup_files) {
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) continue;
    ssize_t ignored = write(fd, "0", 1);  // whoever writes it
    (void)ignored;
    close(fd);
  }
}

[[noreturn]] void ExecChild(const ChildPlan& plan) {
  if (plan.own_process_group) setpgid(0, 0);
  if (plan.death_signal != 0) {
    prctl(PR_SET_PDEATHSIG, plan.death_signal);
    if (getppid() != plan.parent) _exit(127);  // it died before prctl took effect
  }
  struct sigaction default_action = {};
  default_action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &default_action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  JoinCgroups(plan);
  PlaceDescriptors(plan);
  if (plan.set_cores && sched_setaffinity(0, sizeof plan.cores, &plan.cores) != 0) {
    FailInChild(plan.error_fd);
  }
  // A wish: containers often may not, and memory of another node works too.
  if (plan.prefer_node) {
    syscall(SYS_set_mempolicy, MPOL_PREFERRED, plan.nodes, static_cast<unsigned long>(kMostNodes));
  }
  if (plan.folder != nullptr && chdir(plan.folder) != 0) FailInChild(plan.error_fd);
  execve(plan.program, plan.argv.data(), plan.env.data());
  FailInChild(plan.error_fd);
}

void FillEnvironment(const std::vector<std::pair<std::string, std::string>>& changes,
                     ChildPlan& plan) {
  std::unordered_set<std::string> changed;
  for (const auto& [name, value] : changes) {
    changed.insert(name);
    plan.env_storage.push_back(absl::StrCat(name, "=", value));
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string name(*entry, strcspn(*entry, "="));
    if (changed.count(name) == 0) plan.env.push_back(*entry);
  }
  for (std::string& entry : plan.env_storage) plan.env.push_back(entry.data());
  plan.env.push_back(nullptr);
}

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "cannot make a pipe");
  return std::pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

// Descriptors that are needed only until the fork, and our ends of pipes.
struct OpenedStreams {
  std::vector<UniqueFd> child_ends;
  UniqueFd ours[3];
};

absl::Status OpenStream(const Redirect& redirect, int stream, OpenedStreams& opened,
                        ChildPlan& plan) {
  const bool reads = stream == 0;
  int fd = redirect.fd;
  if (redirect.kind == Redirect::kInherit) {
    fd = stream;
  } else if (redirect.kind == Redirect::kPipe) {
    MP_ASSIGN_OR_RETURN(auto ends, MakePipe());
    UniqueFd& child_end = reads ? ends.first : ends.second;
    fd = child_end.get();
    opened.ours[stream] = std::move(reads ? ends.second : ends.first);
    opened.child_ends.push_back(std::move(child_end));
  } else if (redirect.kind != Redirect::kFd) {
    const std::string path = redirect.kind == Redirect::kNull ? "/dev/null" : redirect.path;
    const int flags = reads ? O_RDONLY : O_WRONLY | O_CREAT | O_APPEND;
    UniqueFd file(open(path.c_str(), flags | O_CLOEXEC, 0644));
    if (!file.ok()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
    fd = file.get();
    opened.child_ends.push_back(std::move(file));
  }
  plan.fds.emplace_back(stream, fd);
  return absl::OkStatus();
}

void FillCores(const std::vector<int>& cores, ChildPlan& plan) {
  CPU_ZERO(&plan.cores);
  plan.set_cores = !cores.empty();
  for (int core : cores) CPU_SET(core, &plan.cores);
}

void FillNode(int node, ChildPlan& plan) {
  plan.prefer_node = node >= 0 && node < kMostNodes;
  if (plan.prefer_node) plan.nodes[node / kBitsPerWord] |= 1UL << (node % kBitsPerWord);
}

absl::Status CheckOptions(const SpawnOptions& options) {
  if (options.argv.empty()) return absl::InvalidArgumentError("argv is empty");
  if (options.fds.size() > kMaxExtraFds) {
    return absl::InvalidArgumentError("more descriptors than a child can be given");
  }
  for (const auto& [child_fd, fd] : options.fds) {
    if (child_fd < 3 || child_fd >= kFirstFreeFd) {
      return absl::InvalidArgumentError(absl::StrCat("descriptor ", child_fd, " for a child"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string ExitResult::ToString() const {
  if (signal == 0) return absl::StrCat("exit code ", exit_code);
  return absl::StrCat("killed by signal ", signal, " (", strsignal(signal), ")");
}

absl::StatusOr<Subprocess> Subprocess::Spawn(SpawnOptions options) {
  MP_RETURN_IF_ERROR(CheckOptions(options));
  ChildPlan plan;
  OpenedStreams opened;
  MP_RETURN_IF_ERROR(OpenStream(options.in, 0, opened, plan));
  MP_RETURN_IF_ERROR(OpenStream(options.out, 1, opened, plan));
  MP_RETURN_IF_ERROR(OpenStream(options.err, 2, opened, plan));
  plan.fds.insert(plan.fds.end(), options.fds.begin(), options.fds.end());
  for (std::string& argument : options.argv) plan.argv.push_back(argument.data());
  plan.argv.push_back(nullptr);
  plan.program = options.program.empty() ? plan.argv[0] : options.program.c_str();
  FillEnvironment(options.env, plan);
  FillCores(options.cores, plan);
  FillNode(options.memory_node, plan);
  plan.death_signal = options.death_signal;
  plan.own_process_group = options.own_process_group;
  plan.folder = options.folder.empty() ? nullptr : options.folder.c_str();
  for (const std::string& file : options.cgroup_files) plan.cgroup_files.push_back(file.c_str());
  plan.parent = getpid();
  MP_ASSIGN_OR_RETURN(auto error_pipe, MakePipe());
  // Above the places the child's descriptors take.
  UniqueFd error_fd(fcntl(error_pipe.second.get(), F_DUPFD_CLOEXEC, kFirstFreeFd));
  if (!error_fd.ok()) return absl::ErrnoToStatus(errno, "no descriptors left");
  error_pipe.second.Reset();
  plan.error_fd = error_fd.get();

  pid_t pid = SpawnThread::Get().Run([&plan] {
    pid_t child = fork();
    if (child == 0) ExecChild(plan);
    return child;
  });
  if (pid < 0) return absl::ErrnoToStatus(-pid, "cannot start a process");
  error_fd.Reset();
  Subprocess child;
  child.pid_ = pid;
  child.end_group_ = options.end_group && options.own_process_group;
  child.pidfd_.Reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  MP_CHECK(child.pidfd_.ok()) << "pidfd_open: " << strerror(errno);
  child.in_ = std::move(opened.ours[0]);
  child.out_ = std::move(opened.ours[1]);
  child.err_ = std::move(opened.ours[2]);
  int error = 0;
  ssize_t bytes;
  do {
    bytes = read(error_pipe.first.get(), &error, sizeof error);
  } while (bytes < 0 && errno == EINTR);
  if (bytes == sizeof error) {
    return absl::ErrnoToStatus(error, absl::StrCat("cannot run ", plan.program));
  }
  return child;
}

Subprocess& Subprocess::operator=(Subprocess&& other) noexcept {
  if (this == &other) return *this;
  KillAndReap();
  pid_ = other.pid_;
  pidfd_ = std::move(other.pidfd_);
  in_ = std::move(other.in_);
  out_ = std::move(other.out_);
  err_ = std::move(other.err_);
  ended_ = other.ended_;
  end_group_ = other.end_group_;
  result_ = other.result_;
  return *this;
}

Subprocess::~Subprocess() { KillAndReap(); }

void Subprocess::KillAndReap() {
  if (!pidfd_.ok() || ended_) return;
  (void)Signal(SIGKILL);
  (void)Wait();
}

void Subprocess::LeaveBehind(Subprocess child) {
  if (!child.ended_) kill(-child.pid_, SIGKILL);  // has no effect where it has no group of its own
  std::thread([child = std::move(child)]() mutable { child.KillAndReap(); }).detach();
}

absl::Status Subprocess::Signal(int signal) {
  if (syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, nullptr, 0) != 0 && errno != ESRCH) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot signal process ", pid_));
  }
  return absl::OkStatus();
}

absl::StatusOr<ExitResult> Subprocess::Wait(absl::Time deadline) {
  if (ended_) return result_;
  if (!PollFd(pidfd_.get(), POLLIN, deadline)) {
    return absl::DeadlineExceededError(absl::StrCat("process ", pid_, " still runs"));
  }
  // Until it is reaped no other group can have its number.
  if (end_group_) kill(-pid_, SIGKILL);
  siginfo_t info = {};
  if (waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, WEXITED) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot wait for process ", pid_));
  }
  ended_ = true;
  if (info.si_code == CLD_EXITED) {
    result_.exit_code = info.si_status;
  } else {
    result_.signal = info.si_status;
  }
  return result_;
}

std::string SiblingBinary(const std::string& name) {
  char path[4096];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return name;
  std::string self(path, static_cast<size_t>(length));
  return self.substr(0, self.rfind('/') + 1) + name;
}

}  // namespace milepost
