#include "coordinator/store/epochs.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/regular_file.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "coordinator/store/database_check.h"
#include "coordinator/store/files_store.h"
#include "coordinator/store/sync_path.h"

namespace milepost::coordinator {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "epoch-";
constexpr char kUnfinished[] = ".unfinished";
constexpr char kTrash[] = "trash-";
constexpr char kBackupPrefix[] = "backup";
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
  MP_ASSIGN_OR_RETURN(const std::string current,
                      ReadRegularFile(db + "/CURRENT", kMaxCurrentBytes));
  look.manifest = current.substr(0, current.find('\n'));
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
  // In front of the logs: it may be behind them, never ahead.
  const absl::Status mark = Copy(file(from, kLogMarkFile), file(to, kLogMarkFile));
  if (!mark.ok() && !absl::IsNotFound(mark)) return mark;
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
    if (absl::IsNotFound(changed)) {
      std::error_code error;
      if (fs::exists(to, error)) continue;
      return absl::UnavailableError(absl::StrCat("a later coordinator has removed ", to));
    }
    MP_RETURN_IF_ERROR(changed);
    MP_RETURN_IF_ERROR(before("look again"));
    const absl::StatusOr<Look> after = LookAt(from);
    if (after.ok() && *after == *look) return SyncPath(to);
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

// With what lies in it, until `stopping`.
absl::Status RemoveTree(const std::string& path, const std::function<bool()>& stopping) {
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (stopping()) return absl::OkStatus();
    if (it->is_directory(error) && !it->is_symlink(error)) {
      MP_RETURN_IF_ERROR(RemoveTree(it->path(), stopping));
    } else {
      fs::remove(it->path(), error);
    }
  }
  if (stopping()) return absl::OkStatus();
  if (!error) fs::remove(path, error);
  return error ? ErrorOf(error, absl::StrCat("cannot remove ", path)) : absl::OkStatus();
}

// Out of everybody's sight first: what is half deleted would look complete.
absl::Status Remove(const std::string& dir, const std::string& name,
                    const std::function<bool()>& stopping) {
  const std::string path = absl::StrCat(dir, "/", name);
  if (absl::StartsWith(name, kTrash)) return RemoveTree(path, stopping);
  const std::string trash = absl::StrCat(dir, "/", kTrash, name);
  std::error_code error;
  fs::remove_all(trash, error);  // of one with the same name whose removal was cut short
  if (rename(path.c_str(), trash.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot remove ", path));
  }
  return RemoveTree(trash, stopping);
}

// Of what it is begun as, or is.
int64_t NumberOfEither(absl::string_view name) {
  return NumberOf(name.substr(0, std::min(name.size(), name.find(kUnfinished))));
}

absl::StatusOr<int64_t> HighestNumber(const std::string& dir, const std::string& but = "") {
  MP_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(dir));
  int64_t highest = 0;
  for (const std::string& name : names) {
    if (name != but) highest = std::max(highest, NumberOfEither(name));
  }
  return highest;
}

// A number that nobody had, higher than all that whoever acted before has had. Makes the directory
// `unfinished` of it.
absl::StatusOr<int64_t> TakeNumber(const std::string& dir, const BeforeStep& before) {
  for (int i = 0; i < kMostLooks; ++i) {
    MP_ASSIGN_OR_RETURN(const int64_t highest, HighestNumber(dir));
    MP_RETURN_IF_ERROR(before("take a number"));
    const std::string name = absl::StrCat(kPrefix, highest + 1, kUnfinished);
    const std::string path = absl::StrCat(dir, "/", name);
    if (mkdir(path.c_str(), 0755) != 0) {
      if (errno == EEXIST) continue;
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot make a directory in ", dir));
    }
    // Another one may have had it, and be ready.
    MP_ASSIGN_OR_RETURN(const int64_t others, HighestNumber(dir, name));
    if (others <= highest) return highest + 1;
    rmdir(path.c_str());
  }
  return absl::UnavailableError(absl::StrCat("others keep making epochs in ", dir));
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
  // Each has the folder from the beginning: one that has gone was not begun with nothing.
  std::error_code error;
  if (newest > 0 && !there && !fs::is_directory(from, error)) {
    return absl::UnavailableError(absl::StrCat(from, " has gone meanwhile: look again"));
  }
  UniqueFd lock;
  if (there) {
    if (newest == 0) {
      MP_ASSIGN_OR_RETURN(lock, LockWholeStore(from));
    }
    MP_RETURN_IF_ERROR(CopyDatabase(from, epoch + "/db", before));
    // After the records: they may name none that are not there.
    for (const std::string& problem : LinkFiles(fs::path(from).parent_path(), epoch)) {
      spdlog::error("{}: its jobs have to be submitted again", problem);
    }
  }
  MP_RETURN_IF_ERROR(SyncPath(epoch));
  return before("rename");
}

}  // namespace

absl::StatusOr<Epoch> TakeOver(const std::string& dir, const std::function<absl::Status()>& may_act,
                               const BeforeStep& hook) {
  const BeforeStep before = hook ? hook : [](absl::string_view) { return absl::OkStatus(); };
  MP_RETURN_IF_ERROR(MakeDir(dir));
  Epoch epoch;
  MP_ASSIGN_OR_RETURN(epoch.number, TakeNumber(dir, before));
  epoch.dir = absl::StrCat(dir, "/", kPrefix, epoch.number);
  const std::string unfinished = absl::StrCat(epoch.dir, kUnfinished);
  // Whoever is elected after this moment sees the number, and takes a higher one.
  absl::Status filled = may_act();
  int64_t newest = 0;
  if (filled.ok()) {
    const absl::StatusOr<int64_t> found = NewestEpoch(dir);
    newest = found.value_or(0);
    filled = found.status();
  }
  if (filled.ok()) filled = MakeDir(unfinished + "/db");
  if (filled.ok()) filled = FillEpoch(dir, newest, unfinished, before);
  if (!filled.ok()) {
    std::error_code error;
    fs::remove_all(unfinished, error);  // it may be what has filled the disk
    return filled;
  }
  if (rename(unfinished.c_str(), epoch.dir.c_str()) != 0) {
    return absl::UnavailableError(
        absl::StrCat("a later coordinator has removed ", unfinished, ": ", std::strerror(errno)));
  }
  MP_RETURN_IF_ERROR(SyncPath(dir));
  return epoch;
}

absl::Status Abandon(const std::string& dir, const Epoch& epoch) {
  return Remove(dir, absl::StrCat(kPrefix, epoch.number), [] { return false; });
}

absl::StatusOr<std::string> NewestDatabase(const std::string& dir) {
  MP_ASSIGN_OR_RETURN(const int64_t newest, NewestEpoch(dir));
  return newest > 0 ? absl::StrCat(dir, "/", kPrefix, newest, "/db") : absl::StrCat(dir, "/db");
}

absl::Status CheckOutside(const std::string& dir, const std::string& to) {
  std::error_code error;
  const fs::path whole = fs::canonical(dir, error);
  const fs::path inside = error ? fs::path() : fs::weakly_canonical(fs::absolute(to, error), error);
  if (error) return absl::OkStatus();  // reading and making them says why
  const auto differ = std::mismatch(whole.begin(), whole.end(), inside.begin(), inside.end());
  if (differ.first != whole.end()) return absl::OkStatus();
  const bool child = differ.second != inside.end() && std::next(differ.second) == inside.end();
  if (child && absl::StartsWith(differ.second->string(), kBackupPrefix)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(to, " is in the data directory, where other names have meanings: name ", dir,
                   "/backup-..., or a place elsewhere on the same file system"));
}

absl::Status BackUp(const std::string& dir, const std::string& target) {
  const std::string to(absl::StripSuffix(target, "/"));
  MP_ASSIGN_OR_RETURN(const std::string from, NewestDatabase(dir));
  MP_ASSIGN_OR_RETURN(const bool there, HasDatabase(from));
  if (!there) return absl::NotFoundError(absl::StrCat("there is no store in ", dir));
  MP_RETURN_IF_ERROR(CheckOutside(dir, to));
  std::error_code error;
  if (fs::exists(to, error)) {
    return absl::AlreadyExistsError(absl::StrCat(to, " is there already: name a new directory"));
  }
  std::string unfinished = absl::StrCat(to, kUnfinished, "-XXXXXX");
  if (mkdtemp(unfinished.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make a directory beside ", to));
  }
  absl::Status status = MakeDir(unfinished + "/db");
  if (status.ok()) {
    status =
        CopyDatabase(from, unfinished + "/db", [](absl::string_view) { return absl::OkStatus(); });
  }
  if (status.ok()) {
    const auto problems = LinkFiles(fs::path(from).parent_path(), unfinished);
    if (!problems.empty()) status = absl::DataLossError(problems.front());
  }
  status.Update(SyncPath(unfinished));
  if (status.ok() && rename(unfinished.c_str(), to.c_str()) != 0) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", to));
  }
  if (status.ok()) return SyncPath(fs::path(fs::absolute(to)).parent_path());
  fs::remove_all(unfinished, error);
  return status;
}

absl::StatusOr<bool> HasStore(const std::string& dir) {
  MP_ASSIGN_OR_RETURN(const int64_t newest, NewestEpoch(dir));
  if (newest > 0) return true;
  return HasDatabase(dir + "/db");
}

absl::Status RemoveOlderEpochs(const std::string& dir, int64_t number,
                               const std::function<bool()>& stopping) {
  MP_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(dir));
  absl::Status status;
  for (const std::string& name : names) {
    if (stopping()) break;
    // One with a higher number is a later coordinator's, which is at it.
    const int64_t its = NumberOfEither(name);
    // The store from before there were epochs is in the newest one, as well.
    const bool before =
        name == "db" || name == "staging" || name == "files" || (its > 0 && its < number);
    if (!before && !absl::StartsWith(name, kTrash)) continue;
    status.Update(Remove(dir, name, stopping));
  }
  return status;
}

}  // namespace milepost::coordinator
