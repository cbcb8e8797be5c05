#include "client/cli/local_coordinator.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/poll.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kLookAtServer = absl::Milliseconds(2);
constexpr absl::Duration kStartBudget = absl::Seconds(20);
constexpr absl::Duration kStopBudget = absl::Seconds(10);

bool ProcessLives(pid_t pid) { return pid > 0 && (kill(pid, 0) == 0 || errno == EPERM); }

constexpr absl::string_view kReads = " reads";

struct Holder {
  pid_t pid = 0;
  RunLock::Use use = RunLock::Use::kRun;
};

Holder HolderOf(int fd) {
  char bytes[32] = {};
  const ssize_t size = pread(fd, bytes, sizeof bytes - 1, 0);
  absl::string_view text(bytes, static_cast<size_t>(std::max<ssize_t>(0, size)));
  Holder holder;
  if (absl::ConsumeSuffix(&text, kReads)) holder.use = RunLock::Use::kRead;
  if (!absl::SimpleAtoi(text, &holder.pid)) holder.pid = 0;
  return holder;
}

// Of who cannot wait any more; OK: it may be waited for until then.
absl::Status InUse(const DataDir& dir, const Holder& holder, bool waited) {
  if (ProcessLives(holder.pid) && holder.use == RunLock::Use::kRun) {
    return absl::FailedPreconditionError(
        absl::StrCat(dir.path, " is in use by another milepost (process ", holder.pid,
                     "): stop that one, or choose another --data-dir"));
  }
  if (!waited) return absl::OkStatus();
  if (ProcessLives(holder.pid)) {
    return absl::FailedPreconditionError(
        absl::StrCat(dir.path, " is being read by another milepost (process ", holder.pid,
                     "): try again when that one has ended"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("processes of an earlier run still use ", dir.path,
                   ": wait for them to stop (see `fuser ", dir.lock(), "`)"));
}

absl::Status ReplaceText(int fd, const std::string& text, const std::string& path) {
  if (ftruncate(fd, 0) == 0 && pwrite(fd, text.data(), text.size(), 0) == ssize_t(text.size())) {
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
}

bool ConnectsTo(const addrinfo& info) {
  const UniqueFd fd(socket(info.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.ok()) return false;
  if (connect(fd.get(), info.ai_addr, info.ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS) return false;
  if (!PollFd(fd.get(), POLLOUT, absl::Now() + absl::Seconds(1))) return false;
  int error = 0;
  socklen_t size = sizeof error;
  return getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

}  // namespace

DataDir::DataDir(const std::string& given) {
  std::error_code error;
  path = fs::absolute(given, error).lexically_normal().string();
  while (path.size() > 1 && path.back() == '/') path.pop_back();
}

absl::Status MakeDir(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot create the directory ", path));
}

absl::Status CheckOwner(const std::string& dir, const std::string& file) {
  struct stat whole = {}, own = {};
  if (stat(dir.c_str(), &whole) != 0 || stat(file.c_str(), &own) != 0) return absl::OkStatus();
  if (whole.st_uid == own.st_uid) return absl::OkStatus();
  const auto name = [](uid_t user) {
    passwd entry = {};
    passwd* known = nullptr;
    char text[4096];
    getpwuid_r(user, &entry, text, sizeof text, &known);
    return known == nullptr ? absl::StrCat("user ", user) : std::string(known->pw_name);
  };
  const std::string owner = name(whole.st_uid);
  return absl::FailedPreconditionError(
      absl::StrCat(dir, " belongs to ", owner, ", and what this command makes there to ",
                   name(own.st_uid), ": run it as ", owner, ", or name another --data-dir"));
}

namespace {

// By a file of a moment: of those that are there already, others may have made some.
absl::Status CheckWhoWrites(const DataDir& dir) {
  std::string file = dir.path + "/owner-XXXXXX";
  const UniqueFd fd(mkostemp(file.data(), O_CLOEXEC));
  if (!fd.ok()) return absl::OkStatus();  // opening the lock says why
  absl::Status status = CheckOwner(dir.coordinator(), file);
  std::remove(file.c_str());
  return status;
}

}  // namespace

absl::StatusOr<RunLock> RunLock::Acquire(const DataDir& dir, Use use, absl::Time deadline) {
  MP_RETURN_IF_ERROR(CheckWhoWrites(dir));
  RunLock lock;
  lock.fd_.Reset(open(dir.lock().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.fd_.ok()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", dir.lock()));
  (void)fchmod(lock.fd(), 0600);  // who can open it can lock it
  while (flock(lock.fd(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot lock ", dir.lock()));
    }
    MP_RETURN_IF_ERROR(InUse(dir, HolderOf(lock.fd()), /*waited=*/absl::Now() >= deadline));
    absl::SleepFor(kLookAtServer);
  }
  const std::string text = absl::StrCat(getpid(), use == Use::kRead ? kReads : "");
  MP_RETURN_IF_ERROR(ReplaceText(lock.fd(), text, dir.lock()));
  return lock;
}

bool RunIsOn(const DataDir& dir) {
  const UniqueFd fd(open(dir.lock().c_str(), O_RDONLY | O_CLOEXEC));
  return fd.ok() && flock(fd.get(), LOCK_SH | LOCK_NB) != 0 &&
         HolderOf(fd.get()).use == RunLock::Use::kRun;
}

absl::StatusOr<HeldPort> HeldPort::Take() {
  HeldPort held;
  held.fd_.Reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof name;
  auto* generic = reinterpret_cast<sockaddr*>(&name);
  // Without SO_REUSEADDR here the kernel chooses a port that nobody has; with it (set afterwards) a
  // server that sets it too may share the port, because this socket never listens.
  if (!held.fd_.ok() || bind(held.fd_.get(), generic, size) != 0 ||
      setsockopt(held.fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      getsockname(held.fd_.get(), generic, &size) != 0) {
    return absl::ErrnoToStatus(errno, "cannot take a free port of 127.0.0.1");
  }
  held.port_ = ntohs(name.sin_port);
  return held;
}

std::string HeldPort::address() const { return absl::StrCat("127.0.0.1:", port_); }

bool Accepts(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return false;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string host = address.substr(0, colon);
  if (getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found) != 0) return false;
  bool accepts = false;
  for (addrinfo* info = found; info != nullptr && !accepts; info = info->ai_next) {
    accepts = ConnectsTo(*info);
  }
  freeaddrinfo(found);
  return accepts;
}

std::vector<std::string> LastLines(const std::string& path, size_t count) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  constexpr std::streamoff kTail = 64 << 10;
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kTail));
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(std::move(line));
    if (lines.size() > count) lines.pop_front();
  }
  return {lines.begin(), lines.end()};
}

std::vector<std::string> LastWords(const std::string& path, size_t count) {
  constexpr size_t kLookedAt = 200;
  std::vector<std::string> lines = LastLines(path, kLookedAt);
  const auto raw = [](const std::string& line) { return absl::StrContains(line, ": rocksdb: "); };
  if (!std::all_of(lines.begin(), lines.end(), raw)) {
    lines.erase(std::remove_if(lines.begin(), lines.end(), raw), lines.end());
  }
  if (lines.size() > count) lines.erase(lines.begin(), lines.end() - static_cast<ptrdiff_t>(count));
  return lines;
}

void BoundLog(const std::string& path, int64_t limit) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error || static_cast<int64_t>(size) <= limit) return;
  fs::copy_file(path, path + ".1", fs::copy_options::overwrite_existing, error);
  fs::resize_file(path, 0, error);
}

std::vector<std::string> CoordinatorArgv(const DataDir& dir, const std::string& address,
                                         bool write_address_file) {
  std::vector<std::string> argv = {SiblingBinary("milepost-coordinator"), "--data-dir",
                                   dir.coordinator(), "--listen", address,
                                   // The only host is better than none.
                                   "--exclude-after", "0"};
  if (write_address_file) {
    argv.push_back("--address-file");
    argv.push_back(dir.address_file());
  }
  return argv;
}

absl::StatusOr<std::unique_ptr<TemporaryCoordinator>> TemporaryCoordinator::Start(
    const DataDir& dir) {
  MP_RETURN_IF_ERROR(MakeDir(dir.logs()));
  MP_ASSIGN_OR_RETURN(RunLock lock,
                      RunLock::Acquire(dir, RunLock::Use::kRead, absl::Now() + kStartBudget));
  const absl::Time deadline = absl::Now() + kStartBudget;  // not that of who was waited for
  MP_ASSIGN_OR_RETURN(HeldPort port, HeldPort::Take());
  SpawnOptions options;
  options.argv = CoordinatorArgv(dir, port.address(), /*write_address_file=*/false);
  options.argv.push_back(kEarlierRunIsOver);
  options.out = Redirect::File(dir.log("coordinator"));
  options.err = options.out;
  options.fds = {{3, lock.fd()}};
  options.death_signal = SIGTERM;
  MP_ASSIGN_OR_RETURN(Subprocess process, Subprocess::Spawn(std::move(options)));
  while (!Accepts(port.address())) {
    const auto end = process.Wait(absl::Now() + kLookAtServer);
    if (end.ok() || absl::Now() > deadline) {
      const auto lines = LastWords(dir.log("coordinator"), 1);
      return absl::UnavailableError(
          absl::StrCat("cannot start a coordinator on ", dir.coordinator(), " (",
                       end.ok() ? end->ToString() : "it does not answer",
                       "): ", lines.empty() ? "see " + dir.log("coordinator") : lines.back()));
    }
  }
  return std::unique_ptr<TemporaryCoordinator>(
      new TemporaryCoordinator(std::move(lock), std::move(port), std::move(process)));
}

TemporaryCoordinator::TemporaryCoordinator(RunLock lock, HeldPort port, Subprocess process)
    : lock_(std::move(lock)), port_(std::move(port)), process_(std::move(process)) {}

TemporaryCoordinator::~TemporaryCoordinator() {
  // Subprocess's destructor kills what does not stop in time.
  if (process_.Signal(SIGTERM).ok()) process_.Wait(absl::Now() + kStopBudget).IgnoreError();
}

}  // namespace milepost::client
