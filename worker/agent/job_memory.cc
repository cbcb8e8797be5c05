#include "worker/agent/job_memory.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace milepost::worker {

namespace fs = std::filesystem;

namespace {

constexpr char kSharedMemory[] = "/dev/shm";
constexpr absl::Duration kSweepInterval = absl::Minutes(1);

// What is there may have been put there by somebody else.
absl::Status MakePrivate(const std::string& folder) {
  std::error_code error;
  fs::create_directories(fs::path(folder).parent_path(), error);
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", folder));
  }
  struct stat is = {};
  if (lstat(folder.c_str(), &is) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot look at ", folder));
  }
  if (S_ISDIR(is.st_mode) && is.st_uid == geteuid() && (is.st_mode & 077) == 0) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat(
      folder, " is not this user's alone (0700): remove it, or give another --memory-dir"));
}

}  // namespace

std::string DefaultMemoryDir() {
  if (access(kSharedMemory, W_OK) != 0) return "";
  return absl::StrCat(kSharedMemory, "/milepost-", getuid());
}

JobMemory::JobMemory(const std::string& dir, const std::string& worker_id) {
  if (dir.empty()) return;
  const std::string root = absl::StrCat(dir, "/", worker_id);
  absl::Status made = MakePrivate(dir);
  if (made.ok()) made = MakePrivate(root);
  if (!made.ok()) {
    spdlog::warn("ranks can keep no state in memory: {}", std::string(made.message()));
    return;
  }
  root_ = root;
  std::error_code error;
  for (fs::directory_iterator entry(root, error), end; !error && entry != end;
       entry.increment(error)) {
    last_seen_[entry->path().string()] = absl::InfiniteFuture();
  }
}

JobMemory::~JobMemory() {
  if (root_.empty()) return;
  std::error_code ignored;
  fs::remove_all(root_, ignored);
}

std::string JobMemory::FolderOf(const std::string& job, const std::string& uid) {
  if (root_.empty()) return "";
  const std::string name = absl::StrReplaceAll(absl::StrCat(job, "-", uid), {{"/", "-"}});
  std::string folder = absl::StrCat(root_, "/", name);
  std::error_code error;
  fs::create_directory(folder, error);
  if (error) return "";
  last_seen_.try_emplace(folder, absl::InfiniteFuture());
  return folder;
}

absl::Time JobMemory::Sweep(const std::set<std::string>& used, absl::Time now,
                            absl::Duration keep) {
  for (auto entry = last_seen_.begin(); entry != last_seen_.end();) {
    auto& [folder, seen] = *entry;
    seen = used.contains(folder) ? absl::InfiniteFuture() : std::min(seen, now);
    if (now - seen < keep) {
      ++entry;
      continue;
    }
    std::error_code ignored;
    fs::remove_all(folder, ignored);
    entry = last_seen_.erase(entry);
  }
  return last_seen_.empty() ? absl::InfiniteFuture() : now + kSweepInterval;
}

}  // namespace milepost::worker
