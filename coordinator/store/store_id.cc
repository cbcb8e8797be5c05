#include "coordinator/store/store_id.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "coordinator/store/sync_path.h"

namespace milepost::coordinator {
namespace {

namespace fs = std::filesystem;

std::string RandomId() {
  std::random_device random;
  return absl::StrCat(absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8));
}

}  // namespace

absl::StatusOr<std::string> ReadStoreId(const std::string& dir) {
  std::error_code error;
  const std::string path = dir + "/store-id";
  if (!fs::exists(path, error)) {
    if (!error) return std::string();
    return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot read ", path));
  }
  std::string id;
  std::ifstream(path) >> id;
  if (!id.empty()) return id;
  return absl::DataLossError(absl::StrCat(path, " cannot be read, or is empty"));
}

absl::StatusOr<std::string> MakeStoreId(const std::string& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot make ", dir));
  const std::string id = RandomId();
  const std::string path = dir + "/store-id", temporary = absl::StrCat(path, ".tmp.", id);
  std::ofstream file(temporary);
  file << id << "\n";
  file.close();
  if (!file.good()) return absl::PermissionDeniedError(path + " cannot be written");
  MP_RETURN_IF_ERROR(SyncPath(temporary));
  // Unlike a rename it replaces nothing: of two at once one fails.
  const int linked = link(temporary.c_str(), path.c_str());
  const int why = errno;
  unlink(temporary.c_str());
  if (linked != 0) return absl::ErrnoToStatus(why, absl::StrCat("cannot write ", path));
  MP_RETURN_IF_ERROR(SyncPath(dir));
  return id;
}

}  // namespace milepost::coordinator
