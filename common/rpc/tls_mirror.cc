#include "common/rpc/tls_mirror.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace milepost {
namespace {

constexpr absl::Duration kEvery = absl::Seconds(1);

absl::StatusOr<UniqueFd> InMemory(const std::string& text) {
  UniqueFd fd(memfd_create("milepost-tls", MFD_CLOEXEC));
  if (!fd.ok()) return absl::ErrnoToStatus(errno, "a file in memory for TLS");
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(fd.get(), text.data() + done, text.size() - done);
    if (written < 0 && errno != EINTR)
      return absl::ErrnoToStatus(errno, "a file in memory for TLS");
    done += static_cast<size_t>(std::max<ssize_t>(written, 0));
  }
  return fd;
}

// One file. Its name stays, and what is behind it changes at once.
class Copy {
 public:
  absl::Status Set(const std::string& text) {
    if (text == text_) return absl::OkStatus();
    MP_ASSIGN_OR_RETURN(UniqueFd next, InMemory(text));
    if (!fd_.ok()) {
      fd_ = std::move(next);
    } else if (dup3(next.get(), fd_.get(), O_CLOEXEC) < 0) {
      return absl::ErrnoToStatus(errno, "TLS files");
    }
    text_ = text;
    return absl::OkStatus();
  }
  std::string path() const { return absl::StrCat("/proc/self/fd/", fd_.get()); }

 private:
  UniqueFd fd_;
  std::string text_;
};

class Mirror {
 public:
  explicit Mirror(TlsFolder folder) : folder_(std::move(folder)) {}

  absl::Status Refresh() {
    MP_ASSIGN_OR_RETURN(const TlsFiles files, ReadTlsFolder(folder_));
    MP_RETURN_IF_ERROR(authority_.Set(files.authority));
    MP_RETURN_IF_ERROR(certificate_.Set(files.certificate));
    return key_.Set(files.key);
  }
  TlsPaths paths() const {
    return {.key = key_.path(), .certificate = certificate_.path(), .authority = authority_.path()};
  }

 private:
  const TlsFolder folder_;
  Copy authority_, certificate_, key_;
};

// Never destroyed: gRPC's threads read the copies until the process ends.
class Mirrors {
 public:
  static Mirrors& Get() {
    static auto* const mirrors = new Mirrors;
    return *mirrors;
  }

  absl::StatusOr<TlsPaths> Add(const TlsFolder& folder) {
    absl::MutexLock lock(&mutex_);
    Mirror& mirror = mirrors_.try_emplace(folder.path, folder).first->second;
    MP_RETURN_IF_ERROR(mirror.Refresh());
    const TlsPaths paths = mirror.paths();
    const UniqueFd seen(open(paths.key.c_str(), O_RDONLY | O_CLOEXEC));
    if (seen.ok()) return paths;
    return absl::ErrnoToStatus(
        errno, absl::StrCat(paths.key, " cannot be opened: is /proc mounted? TLS needs it"));
  }

 private:
  Mirrors() {
    std::thread([this] {
      while (true) {
        absl::SleepFor(kEvery);
        absl::MutexLock lock(&mutex_);
        // What cannot be used is not copied; TlsWatch tells of it.
        for (auto& [path, mirror] : mirrors_) mirror.Refresh().IgnoreError();
      }
    }).detach();
  }

  absl::Mutex mutex_;
  std::map<std::string, Mirror> mirrors_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<TlsPaths> MirrorTlsFolder(const TlsFolder& folder) {
  return Mirrors::Get().Add(folder);
}

}  // namespace milepost
