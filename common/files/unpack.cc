#include "common/files/unpack.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <set>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace milepost {
namespace {

constexpr size_t kBlock = size_t{256} << 10;
constexpr size_t kShownBytes = 200;
constexpr mode_t kOwnOnly = 0700;  // until all is there
constexpr mode_t kReadOnlyProgram = 0555;
constexpr mode_t kReadOnlyFile = 0444;

struct ReadFree {
  void operator()(archive* a) const { archive_read_free(a); }
};

absl::Status Bad(absl::string_view path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("the archive's entry '",
                                                 absl::CHexEscape(path.substr(0, kShownBytes)),
                                                 "' is refused: ", why));
}

class Unpacker {
 public:
  Unpacker(std::string folder, const ArchiveLimits& limits)
      : folder_(std::move(folder)), limits_(limits) {}

  absl::Status Run(int file) {
    if (lseek(file, 0, SEEK_SET) != 0) return absl::ErrnoToStatus(errno, "the archive");
    const bool open = archive_read_support_format_tar(archive_.get()) == ARCHIVE_OK &&
                      archive_read_support_filter_none(archive_.get()) == ARCHIVE_OK &&
                      archive_read_open_fd(archive_.get(), file, kBlock) == ARCHIVE_OK;
    if (!open) return Broken();
    while (true) {
      archive_entry* entry = nullptr;
      const int found = archive_read_next_header(archive_.get(), &entry);
      if (found == ARCHIVE_EOF) break;
      if (found != ARCHIVE_OK) return Broken();
      MP_RETURN_IF_ERROR(Take(entry));
    }
    return MakeReadOnly();
  }

 private:
  absl::Status Broken() const {
    const char* why = archive_error_string(archive_.get());
    return absl::InvalidArgumentError(
        absl::StrCat("the archive cannot be read: ",
                     why == nullptr ? "no reason given" : absl::CHexEscape(why)));
  }

  absl::Status Take(archive_entry* entry) {
    const char* name = archive_entry_pathname(entry);
    if (name == nullptr) return Bad("", "it has no name that can be read");
    const mode_t kind = archive_entry_filetype(entry);
    absl::string_view path = name;
    if (kind == AE_IFDIR) absl::ConsumeSuffix(&path, "/");
    if (++entries_ > limits_.entries) {
      return Bad(path, absl::StrCat("there are more than ", limits_.entries, " entries"));
    }
    if (const absl::Status good = CheckArchivePath(path); !good.ok()) {
      return Bad(path, good.message());
    }
    const size_t slash = path.rfind('/');
    if (slash != absl::string_view::npos &&
        folders_.count(std::string(path.substr(0, slash))) == 0) {
      return Bad(path, "it is in a folder that the archive does not have before it");
    }
    if (!names_.insert(std::string(path)).second) return Bad(path, "there is another of that name");
    if (archive_entry_hardlink(entry) != nullptr) return Bad(path, "it is a hard link");
    if (kind == AE_IFDIR) return MakeFolder(std::string(path));
    if (kind == AE_IFLNK) return MakeLink(std::string(path), archive_entry_symlink(entry));
    if (kind == AE_IFREG) return MakeFile(std::string(path), entry);
    return Bad(path, "it is no file, folder or link");
  }

  absl::Status MakeFolder(const std::string& path) {
    if (mkdir(Full(path).c_str(), kOwnOnly) != 0) return absl::ErrnoToStatus(errno, Full(path));
    folders_.insert(path);
    return absl::OkStatus();
  }

  absl::Status MakeLink(const std::string& path, const char* target) const {
    if (target == nullptr) return Bad(path, "it is a link to nothing");
    const absl::Status good = CheckArchiveLink(path, target);
    if (!good.ok()) return Bad(path, good.message());
    return symlink(target, Full(path).c_str()) == 0 ? absl::OkStatus()
                                                    : absl::ErrnoToStatus(errno, Full(path));
  }

  absl::Status MakeFile(const std::string& path, archive_entry* entry) {
    if (archive_entry_sparse_count(entry) > 0) return Bad(path, "it is a sparse file");
    if (archive_entry_size_is_set(entry) == 0) return Bad(path, "it says no size");
    const int64_t size = archive_entry_size(entry);
    if (size < 0 || size > limits_.bytes - bytes_) {
      return Bad(path, absl::StrCat("all files together have more than ", limits_.bytes, " bytes"));
    }
    bytes_ += size;
    const bool program = (archive_entry_perm(entry) & S_IXUSR) != 0;
    const UniqueFd file(open(Full(path).c_str(),
                             O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                             program ? kReadOnlyProgram : kReadOnlyFile));
    if (!file.ok()) return absl::ErrnoToStatus(errno, Full(path));
    MP_RETURN_IF_ERROR(Copy(path, size, file.get()));
    return absl::OkStatus();
  }

  absl::Status Copy(const std::string& path, int64_t size, int to) {
    int64_t copied = 0;
    while (true) {
      const la_ssize_t got = archive_read_data(archive_.get(), piece_.data(), piece_.size());
      if (got < 0) return Broken();
      if (got == 0) break;
      copied += got;
      if (copied > size) return Bad(path, "it is longer than it says");
      for (la_ssize_t done = 0; done < got;) {
        const ssize_t now = write(to, piece_.data() + done, static_cast<size_t>(got - done));
        if (now < 0 && errno == EINTR) continue;
        if (now < 0) return absl::ErrnoToStatus(errno, Full(path));
        done += now;
      }
    }
    return copied == size ? absl::OkStatus() : Bad(path, "it is shorter than it says");
  }

  absl::Status MakeReadOnly() const {
    for (auto path = folders_.rbegin(); path != folders_.rend(); ++path) {
      if (chmod(Full(*path).c_str(), kReadOnlyProgram) != 0) {
        return absl::ErrnoToStatus(errno, Full(*path));
      }
    }
    return chmod(folder_.c_str(), kReadOnlyProgram) == 0 ? absl::OkStatus()
                                                         : absl::ErrnoToStatus(errno, folder_);
  }

  std::string Full(const std::string& path) const { return absl::StrCat(folder_, "/", path); }

  const std::string folder_;
  const ArchiveLimits limits_;
  const std::unique_ptr<archive, ReadFree> archive_{archive_read_new()};
  std::set<std::string> names_;
  std::set<std::string> folders_;  // never a link: what is made within stays within
  int64_t entries_ = 0;
  int64_t bytes_ = 0;
  std::vector<char> piece_ = std::vector<char>(kBlock);
};

}  // namespace

absl::Status UnpackFiles(int archive, const std::string& folder, const ArchiveLimits& limits) {
  return Unpacker(folder, limits).Run(archive);
}

}  // namespace milepost
