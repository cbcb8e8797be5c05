#include "worker/script/stop_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/unique_fd.h"

namespace milepost::worker {
namespace {

constexpr size_t kPageBytes = 4096;
// Longer than a store of the script's may wait in its core's buffer.
constexpr absl::Duration kSettling = absl::Milliseconds(2);

}  // namespace

absl::StatusOr<StopPage> StopPage::Make(const std::string& folder) {
  std::string path = absl::StrCat(folder, "/stop");
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.ok() || posix_fallocate(fd.get(), 0, kPageBytes) != 0) {
    return absl::UnavailableError("cannot write " + path);
  }
  void* data = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, "cannot map " + path);
  StopPage page(std::move(path), static_cast<int64_t*>(data));
  page.Store(kLimit, std::numeric_limits<int64_t>::max());
  return page;
}

StopPage::~StopPage() {
  if (words_ != nullptr) munmap(words_, kPageBytes);
}

// A call that passed before it could see the limit shows in the count afterwards: then the limit
// goes behind it. One that saw the limit waits.
int64_t StopPage::Freeze() {
  while (true) {
    const int64_t limit = Load(kCalls) + 1;
    Store(kLimit, limit);
    absl::SleepFor(kSettling);
    if (Load(kCalls) < limit) return limit;
    // It may have seen the limit and wait, which is as good; but it may have passed.
  }
}

}  // namespace milepost::worker
