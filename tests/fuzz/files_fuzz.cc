// Archives of files that were sent along with a job, as a worker unpacks them.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "common/check.h"
#include "common/files/unpack.h"
#include "common/unique_fd.h"
#include "tests/fuzz/scratch_dir.h"

namespace milepost {
namespace {

namespace fs = std::filesystem;

// Nothing lies outside `inside`, and no link leads out of it.
void CheckInside(const std::string& outer, const fs::path& inside) {
  int beside = 0;
  for (const auto& entry : fs::directory_iterator(outer)) beside += entry.path() != inside;
  MP_CHECK(beside == 0) << "something was written outside";
  int64_t bytes = 0;
  int64_t entries = 0;
  for (const auto& entry : fs::recursive_directory_iterator(inside)) {
    ++entries;
    std::error_code error;
    const fs::path real = fs::weakly_canonical(entry.path(), error);
    if (!error) {
      MP_CHECK(real.string().rfind(inside.string(), 0) == 0)
          << entry.path() << " leads to " << real;
    }
    if (entry.is_symlink() || !entry.is_directory()) {
      if (!entry.is_symlink()) bytes += static_cast<int64_t>(entry.file_size());
      continue;
    }
    fs::permissions(entry.path(), fs::perms::owner_all);
  }
  MP_CHECK(bytes <= 4096 && entries <= 20) << bytes << " bytes in " << entries;
}

void Try(const uint8_t* data, size_t size) {
  static const ScratchDir* const dir = new ScratchDir;
  const fs::path inside = fs::canonical(dir->path()) / "in";
  fs::create_directory(inside);
  const UniqueFd file(memfd_create("archive", MFD_CLOEXEC));
  MP_CHECK(write(file.get(), data, size) == static_cast<ssize_t>(size));
  UnpackFiles(file.get(), inside.string(), {.bytes = 4096, .entries = 20}).IgnoreError();
  fs::permissions(inside, fs::perms::owner_all);
  CheckInside(dir->path(), inside);
  fs::remove_all(inside);
}

}  // namespace
}  // namespace milepost

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  milepost::Try(data, size);
  return 0;
}
