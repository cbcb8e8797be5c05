#include "worker/script/scratch_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace milepost::worker {
namespace {

constexpr char kPrefix[] = "milepost-script-";
// Between its making and its locking nobody has a folder's lock.
constexpr absl::Duration kYoung = absl::Minutes(1);

UniqueFd Lock(const std::string& path) {
  UniqueFd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder.ok() && flock(folder.get(), LOCK_EX | LOCK_NB) != 0) folder.Reset();
  return folder;
}

// With folders that can only be read, as files that were sent along are in. Links are not followed.
void RemoveAll(const std::string& path, std::error_code* error) {
  namespace fs = std::filesystem;
  fs::remove_all(path, *error);
  if (!*error) return;
  std::error_code ignored;
  for (fs::recursive_directory_iterator entry(path, ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    if (entry->is_symlink(ignored) || !entry->is_directory(ignored)) continue;
    fs::permissions(entry->path(), fs::perms::owner_all, fs::perm_options::add, ignored);
  }
  fs::remove_all(path, *error);
}

}  // namespace

absl::StatusOr<ScratchFolder> ScratchFolder::Make(const std::string& parent) {
  std::string path = absl::StrCat(parent, "/", kPrefix, "XXXXXX");
  if (mkdtemp(path.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make a folder in ", parent));
  }
  UniqueFd lock = Lock(path);
  if (!lock.ok()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot lock ", path));
  return ScratchFolder(std::move(path), std::move(lock));
}

ScratchFolder::~ScratchFolder() {
  std::error_code error;
  if (!path_.empty()) RemoveAll(path_, &error);
}

int RemoveAbandoned(const std::string& parent, absl::Time now) {
  namespace fs = std::filesystem;
  int removed = 0;
  std::error_code error;
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string path = entry->path().string();
    struct stat facts = {};
    if (!absl::StartsWith(entry->path().filename().string(), kPrefix) ||
        lstat(path.c_str(), &facts) != 0 || facts.st_uid != geteuid() ||
        absl::TimeFromTimespec(facts.st_mtim) > now - kYoung) {
      continue;
    }
    const UniqueFd lock = Lock(path);
    if (!lock.ok()) continue;
    std::error_code failed;
    RemoveAll(path, &failed);
    removed += failed ? 0 : 1;
  }
  return removed;
}

}  // namespace milepost::worker
