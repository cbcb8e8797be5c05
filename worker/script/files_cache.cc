#include "worker/script/files_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/pki/digest.h"
#include "common/spec/script.h"
#include "common/status_macros.h"

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;

constexpr char kIncoming[] = "incoming-";
constexpr mode_t kOwnerFolder = 0700;
constexpr mode_t kByOthers = 022;
// Between its making and its locking nobody has a file's lock.
constexpr absl::Duration kYoungFile = absl::Minutes(1);
constexpr absl::Duration kBetweenTries = absl::Milliseconds(50);

}  // namespace

std::string FilesCachePath(const std::string& temporary_files) {
  return absl::StrCat(temporary_files, "/milepost-files-", geteuid());
}

std::vector<std::string> ArchivesToRemove(std::vector<CachedArchive> archives, int64_t needed,
                                          int64_t most) {
  std::sort(archives.begin(), archives.end(),
            [](const auto& a, const auto& b) { return a.used < b.used; });
  int64_t total = needed;
  for (const CachedArchive& archive : archives) total += archive.bytes;
  std::vector<std::string> removed;
  for (const CachedArchive& archive : archives) {
    if (total <= most) break;
    total -= archive.bytes;
    removed.push_back(archive.sha256);
  }
  return removed;
}

absl::StatusOr<FilesCache> FilesCache::Open(const std::string& folder, int64_t most) {
  if (mkdir(folder.c_str(), kOwnerFolder) != 0 && errno != EEXIST) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", folder));
  }
  struct stat facts = {};
  if (lstat(folder.c_str(), &facts) != 0) return absl::ErrnoToStatus(errno, folder);
  if (!S_ISDIR(facts.st_mode) || facts.st_uid != geteuid() || (facts.st_mode & kByOthers) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(folder, " is not this user's own folder: remove it"));
  }
  return FilesCache(folder, most);
}

std::string FilesCache::PathOf(const std::string& name) const {
  return absl::StrCat(folder_, "/", name);
}

UniqueFd FilesCache::OpenGood(const v1::SentFiles& sent) const {
  const std::string path = PathOf(sent.sha256());
  UniqueFd file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.ok()) return file;
  struct stat facts = {};
  const bool whole = flock(file.get(), LOCK_SH | LOCK_NB) == 0 && fstat(file.get(), &facts) == 0 &&
                     S_ISREG(facts.st_mode) && facts.st_size == sent.bytes() &&
                     Sha256OfFile(file.get()).value_or("") == sent.sha256();
  if (!whole) {
    unlink(path.c_str());
    return UniqueFd();
  }
  futimens(file.get(), nullptr);  // used now
  return file;
}

// A few locks for all archives: so they need not be removed.
absl::StatusOr<UniqueFd> FilesCache::LockFor(const std::string& sha256,
                                             const std::function<bool()>& give_up) const {
  const std::string path = PathOf(absl::StrCat("lock-", sha256.substr(0, 1)));
  UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!lock.ok()) return absl::ErrnoToStatus(errno, path);
  while (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return absl::ErrnoToStatus(errno, path);
    if (give_up()) return absl::CancelledError("told to stop while files were fetched");
    absl::SleepFor(kBetweenTries);
  }
  return lock;
}

absl::StatusOr<UniqueFd> FilesCache::Get(const v1::SentFiles& sent, const Fetch& fetch,
                                         const std::function<bool()>& give_up) {
  if (!IsSha256Hex(sent.sha256())) return absl::InvalidArgumentError("no digest of files");
  UniqueFd known = OpenGood(sent);
  if (known.ok()) return known;
  MP_ASSIGN_OR_RETURN(const UniqueFd lock, LockFor(sent.sha256(), give_up));
  known = OpenGood(sent);  // meanwhile
  if (known.ok()) return known;
  return FetchLocked(sent, fetch);
}

absl::StatusOr<UniqueFd> FilesCache::FetchLocked(const v1::SentFiles& sent,
                                                 const Fetch& fetch) const {
  MakeRoom(sent.bytes());
  std::string path = PathOf(absl::StrCat(kIncoming, "XXXXXX"));
  UniqueFd file(mkostemp(path.data(), O_CLOEXEC));
  if (!file.ok())
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make a file in ", folder_));
  // Shared: who looks for what nobody has finished wants it alone.
  absl::Status status = flock(file.get(), LOCK_SH | LOCK_NB) == 0
                            ? fetch(file.get())
                            : absl::ErrnoToStatus(errno, path);
  if (status.ok()) {
    const auto digest = Sha256OfFile(file.get());
    status = digest.status();
    if (digest.ok() && *digest != sent.sha256()) {
      status = absl::DataLossError(
          "the files that came are not those that were sent along with the job");
    }
  }
  if (status.ok() && fsync(file.get()) != 0) status = absl::ErrnoToStatus(errno, path);
  if (status.ok() && rename(path.c_str(), PathOf(sent.sha256()).c_str()) != 0) {
    status = absl::ErrnoToStatus(errno, path);
  }
  if (status.ok()) return file;
  unlink(path.c_str());
  return status;
}

// Best effort: where it fails, writing says so.
void FilesCache::MakeRoom(int64_t needed) const {
  std::vector<CachedArchive> archives;
  std::vector<std::string> unfinished;
  std::error_code error;
  for (fs::directory_iterator entry(folder_, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    struct stat facts = {};
    if (lstat(entry->path().c_str(), &facts) != 0) continue;
    if (IsSha256Hex(name)) {
      archives.push_back({name, facts.st_size, absl::TimeFromTimespec(facts.st_mtim)});
    } else if (absl::StartsWith(name, kIncoming) &&
               absl::TimeFromTimespec(facts.st_mtim) < absl::Now() - kYoungFile) {
      unfinished.push_back(name);
    }
  }
  std::vector<std::string> removed = ArchivesToRemove(std::move(archives), needed, most_);
  removed.insert(removed.end(), unfinished.begin(), unfinished.end());
  for (const std::string& name : removed) {
    const UniqueFd file(open(PathOf(name).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    // Somebody reads it, or writes it.
    if (file.ok() && flock(file.get(), LOCK_EX | LOCK_NB) != 0) continue;
    unlink(PathOf(name).c_str());
  }
}

}  // namespace milepost::worker
