#include "coordinator/store/epochs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace milepost::coordinator {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "epoch-";
constexpr char kUnfinished[] = ".unfinished-";
constexpr char kTrash[] = "trash-";
constexpr int kMostLooks = 250;
constexpr absl::Duration kPause = absl::Milliseconds(20);
constexpr size_t kCopyBytes = 1 << 20;

absl::Status ErrorOf(const std::error_code& error, const std::string& what) {
  return absl::ErrnoToStatus(error.value(), what);
}

// 0 when it is not the name of a complete epoch.
int64_t NumberOf(absl::string_view name) {
  int64_t number = 0;
  if (!absl::ConsumePrefix(&name, kPrefix) || !absl::SimpleAtoi(name, &number)) return 0;
  return number > 0 && absl::StrCat(number) == name ? number : 0;
}

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& dir) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return ErrorOf(error, absl::StrCat("cannot read ", dir));
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status Sync(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.ok() && fsync(fd.get()) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot sync ", path));
}

// NOT_FOUND when `from` is gone.
absl::Status Copy(const std::string& from, const std::string& to) {
  const UniqueFd source(open(from.c_str(), O_RDONLY | O_CLOEXEC));
  if (!source.ok()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", from));
  const UniqueFd target(open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!target.ok()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", to));
  std::vector<char> buffer(kCopyBytes);
  while (true) {
    const ssize_t got = read(source.get(), buffer.data(), buffer.size());
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", from));
    if (got == 0) break;
    for (ssize_t done = 0; done < got;) {
      const ssize_t put =
          write(target.get(), buffer.data() + done, static_cast<size_t>(got - done));
      if (put < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", to));
      done += put;
    }
  }
  if (fsync(target.get()) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot sync ", to));
}

absl::Status Link(const std::string& from, const std::string& to) {
  if (link(from.c_str(), to.c_str()) == 0 || errno == EEXIST) return absl::OkStatus();
  if (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS) {
    return absl::FailedPreconditionError(
        absl::StrCat("the file system of ", to, " has no hard links, which a standby coordinator ",
                     "needs to take over: put --data-dir on one that has"));
  }
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot link ", from));
}

// What changes whenever files of the database come or go: their names, and the size of the file
// that lists them (nothing is taken off it).
struct Look {
  std::vector<std::string> tables;  // never change
  std::vector<std::string> logs;    // grow
  std::string manifest;
  uintmax_t manifest_bytes = 0;

  bool operator==(const Look& other) const {
    return tables == other.tables && logs == other.logs && manifest == other.manifest &&
           manifest_bytes == other.manifest_bytes;
  }
};

absl::StatusOr<Look> LookAt(const std::string& db) {
  Look look;
  MP_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(db));
  for (const std::string& name : names) {
    if (absl::EndsWith(name, ".sst")) look.tables.push_back(name);
    if (absl::EndsWith(name, ".log")) look.logs.push_back(name);
  }
  std::ifstream current(db + "/CURRENT");
  std::getline(current, look.manifest);
  if (!absl::StartsWith(look.manifest, "MANIFEST-")) {
    return absl::DataLossError(absl::StrCat(db, "/CURRENT names no manifest"));
  }
  std::error_code error;
  look.manifest_bytes = fs::file_size(absl::StrCat(db, "/", look.manifest), error);
  if (error) return ErrorOf(error, absl::StrCat("cannot read ", db, "/", look.manifest));
  return look;
}

absl::Status CopyOnce(const std::string& from, const std::string& to, const Look& look,
                      const BeforeStep& before) {
  const auto file = [](const std::string& dir, const std::string& name) {
    return absl::StrCat(dir, "/", name);
  };
  // What an earlier look copied is of no use.
  MP_ASSIGN_OR_RETURN(const std::vector<std::string> stale, NamesIn(to));
  for (const std::string& name : stale) {
    if (!absl::EndsWith(name, ".sst")) unlink(file(to, name).c_str());
  }
  MP_RETURN_IF_ERROR(before("link"));
  for (const std::string& name : look.tables) {
    MP_RETURN_IF_ERROR(Link(file(from, name), file(to, name)));
  }
  MP_RETURN_IF_ERROR(before("copy logs"));
  for (const std::string& name : look.logs) {
    MP_RETURN_IF_ERROR(Copy(file(from, name), file(to, name)));
  }
  MP_RETURN_IF_ERROR(before("copy manifest"));
  MP_RETURN_IF_ERROR(Copy(file(from, look.manifest), file(to, look.manifest)));
  const absl::Status identity = Copy(file(from, "IDENTITY"), file(to, "IDENTITY"));
  if (!identity.ok() && !absl::IsNotFound(identity)) return identity;
  MP_RETURN_IF_ERROR(before("copy current"));
  return Copy(file(from, "CURRENT"), file(to, "CURRENT"));
}

// The coordinator that it is of may still be at work on it: what was taken counts only when nothing
// came or went meanwhile. It may have grown: of that nothing was acknowledged.
absl::Status CopyDatabase(const std::string& from, const std::string& to,
                          const BeforeStep& before) {
  absl::Status changed;
  for (int i = 0; i < kMostLooks; ++i) {
    if (i > 0) absl::SleepFor(kPause);
    const absl::StatusOr<Look> look = LookAt(from);
    if (absl::IsNotFound(look.status())) continue;
    if (!look.ok()) return look.status();
    changed = CopyOnce(from, to, *look, before);
    if (absl::IsNotFound(changed)) continue;
    MP_RETURN_IF_ERROR(changed);
    MP_RETURN_IF_ERROR(before("look again"));
    const absl::StatusOr<Look> after = LookAt(from);
    if (after.ok() && *after == *look) return Sync(to);
  }
  return absl::UnavailableError(absl::StrCat(
      from, " keeps changing: a coordinator is at work on it; try again, or stop that one"));
}

absl::Status MakeDir(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  return error ? ErrorOf(error, absl::StrCat("cannot make ", path)) : absl::OkStatus();
}

// Held, a coordinator that knows of no epochs does not open the store. RocksDB locks this file so.
absl::StatusOr<UniqueFd> LockWholeStore(const std::string& db) {
  UniqueFd fd(open((db + "/LOCK").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  struct flock whole = {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (fd.ok() && fcntl(fd.get(), F_SETLK, &whole) == 0) return fd;
  if (fd.ok() && (errno == EACCES || errno == EAGAIN)) {
    return absl::FailedPreconditionError(
        absl::StrCat(db, " is in use by a milepost-coordinator without --etcd: stop that one"));
  }
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot lock ", db, "/LOCK"));
}

// Out of everybody's sight first: what is half deleted would look complete.
absl::Status Remove(const std::string& dir, const std::string& name) {
  const std::string trash = absl::StrCat(dir, "/", kTrash, name);
  if (!absl::StartsWith(name, kTrash)) {
    if (rename(absl::StrCat(dir, "/", name).c_str(), trash.c_str()) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot remove ", dir, "/", name));
    }
  }
  std::error_code error;
  fs::remove_all(absl::StartsWith(name, kTrash) ? absl::StrCat(dir, "/", name) : trash, error);
  return error ? ErrorOf(error, absl::StrCat("cannot remove ", trash)) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> NewestEpoch(const std::string& dir) {
  std::error_code error;
  if (!fs::exists(dir, error)) return 0;
  MP_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(dir));
  int64_t newest = 0;
  for (const std::string& name : names) newest = std::max(newest, NumberOf(name));
  return newest;
}

namespace {

// An epoch without it was begun with nothing, and its coordinator died before it had written
// anything; one that was copied has had it from the beginning.
absl::StatusOr<bool> HasDatabase(const std::string& db) {
  std::error_code error;
  const bool there = fs::exists(db + "/CURRENT", error);
  if (error) return ErrorOf(error, absl::StrCat("cannot read ", db));
  return there;
}

// With what the newest epoch holds, or the store in `dir` itself; synced.
absl::Status FillEpoch(const std::string& dir, int64_t newest, const std::string& epoch,
                       const BeforeStep& before) {
  const std::string from =
      newest > 0 ? absl::StrCat(dir, "/", kPrefix, newest, "/db") : absl::StrCat(dir, "/db");
  MP_ASSIGN_OR_RETURN(const bool there, HasDatabase(from));
  UniqueFd lock;
  if (there) {
    if (newest == 0) {
      MP_ASSIGN_OR_RETURN(lock, LockWholeStore(from));
    }
    MP_RETURN_IF_ERROR(CopyDatabase(from, epoch + "/db", before));
  }
  MP_RETURN_IF_ERROR(Sync(epoch));
  return before("rename");
}

}  // namespace

absl::StatusOr<Epoch> TakeOver(const std::string& dir, int64_t revision, const BeforeStep& hook) {
  const BeforeStep before = hook ? hook : [](absl::string_view) { return absl::OkStatus(); };
  MP_RETURN_IF_ERROR(MakeDir(dir));
  MP_ASSIGN_OR_RETURN(const int64_t newest, NewestEpoch(dir));
  Epoch epoch;
  // An etcd that was set up anew counts from the beginning.
  epoch.number = std::max(revision, newest + 1);
  epoch.dir = absl::StrCat(dir, "/", kPrefix, epoch.number);
  std::string unfinished = absl::StrCat(epoch.dir, kUnfinished, "XXXXXX");
  if (mkdtemp(unfinished.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make a directory in ", dir));
  }
  chmod(unfinished.c_str(), 0755);
  MP_RETURN_IF_ERROR(MakeDir(unfinished + "/db"));
  const absl::Status filled = FillEpoch(dir, newest, unfinished, before);
  if (!filled.ok()) {
    std::error_code error;
    fs::remove_all(unfinished, error);  // it may be what has filled the disk
    return filled;
  }
  if (rename(unfinished.c_str(), epoch.dir.c_str()) != 0) {
    return absl::UnavailableError(
        absl::StrCat("another coordinator has made ", epoch.dir, ": ", std::strerror(errno)));
  }
  MP_RETURN_IF_ERROR(Sync(dir));
  return epoch;
}

absl::Status BackUp(const std::string& dir, const std::string& target) {
  const std::string to(absl::StripSuffix(target, "/"));
  MP_ASSIGN_OR_RETURN(const int64_t newest, NewestEpoch(dir));
  const std::string from =
      newest > 0 ? absl::StrCat(dir, "/", kPrefix, newest, "/db") : absl::StrCat(dir, "/db");
  MP_ASSIGN_OR_RETURN(const bool there, HasDatabase(from));
  if (!there) return absl::NotFoundError(absl::StrCat("there is no store in ", dir));
  std::error_code error;
  if (fs::exists(to, error)) {
    return absl::AlreadyExistsError(absl::StrCat(to, " is there already: name a new directory"));
  }
  std::string unfinished = absl::StrCat(to, kUnfinished, "XXXXXX");
  if (mkdtemp(unfinished.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make a directory beside ", to));
  }
  absl::Status status = MakeDir(unfinished + "/db");
  if (status.ok()) {
    status =
        CopyDatabase(from, unfinished + "/db", [](absl::string_view) { return absl::OkStatus(); });
  }
  status.Update(Sync(unfinished));
  if (status.ok() && rename(unfinished.c_str(), to.c_str()) != 0) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", to));
  }
  if (status.ok()) return Sync(fs::path(fs::absolute(to)).parent_path());
  fs::remove_all(unfinished, error);
  return status;
}

absl::StatusOr<std::string> MakeStoreId(const std::string& dir) {
  MP_RETURN_IF_ERROR(MakeDir(dir));
  std::random_device random;
  const std::string id =
      absl::StrCat(absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8));
  const std::string path = dir + "/store-id", temporary = absl::StrCat(path, ".tmp.", id);
  std::ofstream file(temporary);
  file << id << "\n";
  file.close();
  if (!file.good()) return absl::PermissionDeniedError(path + " cannot be written");
  MP_RETURN_IF_ERROR(Sync(temporary));
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  }
  MP_RETURN_IF_ERROR(Sync(dir));
  return id;
}

absl::Status RemoveOlderEpochs(const std::string& dir, int64_t number) {
  MP_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(dir));
  absl::Status status;
  for (const std::string& name : names) {
    const int64_t its = NumberOf(name);
    // One with a higher number is a later coordinator's, which is at it.
    const size_t mark = name.find(kUnfinished);
    const bool unfinished = mark != std::string::npos && NumberOf(name.substr(0, mark)) < number;
    // The store from before there were epochs is in the newest one, as well.
    const bool before = name == "db" || name == "staging" || (its > 0 && its < number);
    if (!before && !unfinished && !absl::StartsWith(name, kTrash)) continue;
    status.Update(Remove(dir, name));
  }
  return status;
}

}  // namespace milepost::coordinator
