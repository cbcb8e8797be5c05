#include "worker/agent/identity.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <random>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/atomic_file.h"
#include "common/incarnation.h"
#include "common/regular_file.h"
#include "common/status_macros.h"
#include "common/worker_id.h"

namespace milepost::worker {

namespace {

constexpr size_t kMaxSmallFileBytes = 1 << 16;

absl::Status ErrnoAt(const std::string& what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(what, " ", path));
}

// Empty when the file is not there.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  const auto text = ReadRegularFile(path, kMaxSmallFileBytes);
  if (absl::IsNotFound(text.status())) return "";
  if (!text.ok()) return text.status();
  return std::string(absl::StripAsciiWhitespace(*text));
}

std::string NewId() {
  std::random_device random;
  return absl::StrFormat("%s-%06x", HostName().substr(0, 56), random() & 0xffffff);
}

absl::StatusOr<UniqueFd> LockFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::ErrnoToStatus(error.value(),
                               absl::StrCat("cannot make the data directory ", folder));
  }
  const std::string path = folder + "/lock";
  UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.ok()) return ErrnoAt("cannot open", path);
  (void)fchmod(lock.get(), 0600);  // who can open it can lock it
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoAt("cannot lock", path);
    return absl::FailedPreconditionError(
        absl::StrCat("another milepost-worker uses the data directory ", folder,
                     "; stop it, or give --data-dir another directory"));
  }
  return lock;
}

}  // namespace

absl::StatusOr<std::string> StoredWorkerId(const std::string& data_dir) {
  return ReadSmallFile(data_dir + "/worker-id");
}

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0 || !CheckWorkerId(name).ok()) return "host";
  return name;
}

absl::StatusOr<Identity> Identity::Load(const std::string& data_dir, const std::string& wanted_id,
                                        absl::Time now) {
  if (!wanted_id.empty()) MP_RETURN_IF_ERROR(CheckWorkerId(wanted_id));
  Identity identity;
  MP_ASSIGN_OR_RETURN(identity.lock_, LockFolder(data_dir));
  MP_ASSIGN_OR_RETURN(std::string stored_id, StoredWorkerId(data_dir));
  if (!stored_id.empty() && !wanted_id.empty() && stored_id != wanted_id) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the data directory ", data_dir, " belongs to worker \"", stored_id, "\", not to \"",
        wanted_id,
        "\", as --id or the certificate says: give --data-dir another directory, or, if ",
        stored_id, " is not to come back, remove ", data_dir, "/worker-id"));
  }
  identity.id_ = !stored_id.empty() ? stored_id : !wanted_id.empty() ? wanted_id : NewId();
  MP_RETURN_IF_ERROR(Annotate(CheckWorkerId(identity.id_), data_dir + "/worker-id"));
  if (stored_id.empty()) {
    MP_RETURN_IF_ERROR(WriteFileAtOnce(data_dir + "/worker-id", identity.id_ + "\n", kPublicMode));
  }
  MP_ASSIGN_OR_RETURN(std::string stored, ReadSmallFile(data_dir + "/incarnation"));
  if (!stored.empty() && !absl::SimpleAtoi(stored, &identity.incarnation_)) {
    return absl::DataLossError(absl::StrCat(data_dir, "/incarnation: \"", stored,
                                            "\" is not a number; remove the directory to start "
                                            "as a new worker"));
  }
  // A coordinator that was restored from a backup may not know numbers that are out of the
  // ordinary.
  if (identity.incarnation_ > kMostIncarnation) identity.incarnation_ = 0;
  identity.data_dir_ = data_dir;
  const int64_t start = absl::ToUnixSeconds(now);
  MP_RETURN_IF_ERROR(identity.Exceed(std::max(identity.incarnation_, start - 1)));
  return identity;
}

absl::Status Identity::Exceed(int64_t known) {
  if (known < 0 || known >= kNoIncarnation) {
    return absl::InvalidArgumentError(absl::StrCat("incarnation ", known, " cannot be exceeded"));
  }
  MP_RETURN_IF_ERROR(
      WriteFileAtOnce(data_dir_ + "/incarnation", absl::StrCat(known + 1, "\n"), kPublicMode));
  incarnation_ = known + 1;
  return absl::OkStatus();
}

}  // namespace milepost::worker
