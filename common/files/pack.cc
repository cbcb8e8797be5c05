#include "common/files/pack.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/files/folder_scan.h"
#include "common/pki/digest.h"
#include "common/status_macros.h"

namespace milepost {
namespace {

constexpr size_t kPiece = size_t{1} << 20;
constexpr mode_t kProgramMode = 0555;
constexpr mode_t kFileMode = 0444;

struct WriteFree {
  void operator()(archive* a) const { archive_write_free(a); }
};
struct EntryFree {
  void operator()(archive_entry* entry) const { archive_entry_free(entry); }
};

absl::StatusOr<UniqueFd> TemporaryFile() {
  const char* given = std::getenv("TMPDIR");
  const std::string folder = given == nullptr || *given == '\0' ? "/tmp" : given;
  std::string path = absl::StrCat(folder, "/milepost-pack-XXXXXX");
  UniqueFd fd(mkostemp(path.data(), O_CLOEXEC));
  if (!fd.ok()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot make a file in ", folder));
  unlink(path.c_str());
  return fd;
}

bool SameFile(const struct stat& a, const struct stat& b) {
  return a.st_ino == b.st_ino && a.st_dev == b.st_dev && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

class Packer {
 public:
  Packer(const std::string& folder, UniqueFd to) : folder_(folder), to_(std::move(to)) {}

  absl::StatusOr<PackedFiles> Run(const std::vector<ScannedEntry>& entries) {
    MP_RETURN_IF_ERROR(Open());
    for (const ScannedEntry& entry : entries) MP_RETURN_IF_ERROR(Add(entry));
    if (archive_write_close(archive_.get()) != ARCHIVE_OK) return Failed();
    packed_.sha256 = digest_.Hex();
    packed_.archive = std::move(to_);
    return std::move(packed_);
  }

 private:
  absl::Status Open() {
    archive* a = archive_.get();
    // Names are bytes: what they are made of does not depend on the locale.
    const bool good = archive_write_set_format_pax_restricted(a) == ARCHIVE_OK &&
                      archive_write_set_options(a, "hdrcharset=BINARY") == ARCHIVE_OK &&
                      archive_write_add_filter_none(a) == ARCHIVE_OK &&
                      archive_write_set_bytes_in_last_block(a, 1) == ARCHIVE_OK &&
                      archive_write_open(a, this, nullptr, &Packer::Write, nullptr) == ARCHIVE_OK;
    return good ? absl::OkStatus() : Failed();
  }

  static la_ssize_t Write(archive*, void* self, const void* data, size_t size) {
    auto* packer = static_cast<Packer*>(self);
    const auto* bytes = static_cast<const char*>(data);
    packer->digest_.Add({bytes, size});
    packer->packed_.bytes += static_cast<int64_t>(size);
    for (size_t done = 0; done < size;) {
      const ssize_t now = write(packer->to_.get(), bytes + done, size - done);
      if (now < 0 && errno == EINTR) continue;
      if (now < 0) {
        packer->error_ = absl::ErrnoToStatus(errno, "cannot write the archive of the files");
        return -1;
      }
      done += static_cast<size_t>(now);
    }
    return static_cast<la_ssize_t>(size);
  }

  absl::Status Failed() const {
    if (!error_.ok()) return error_;
    const char* why = archive_error_string(archive_.get());
    return absl::InternalError(
        absl::StrCat(folder_, " cannot be packed: ", why == nullptr ? "no reason given" : why));
  }

  absl::Status Add(const ScannedEntry& scanned) {
    const std::unique_ptr<archive_entry, EntryFree> entry(archive_entry_new());
    const mode_t mode = scanned.facts.st_mode;
    const bool program = S_ISDIR(mode) || S_ISLNK(mode) || (mode & S_IXUSR) != 0;
    archive_entry_set_pathname(entry.get(), scanned.path.c_str());
    archive_entry_set_filetype(entry.get(), mode & S_IFMT);
    archive_entry_set_perm(entry.get(), program ? kProgramMode : kFileMode);
    archive_entry_set_mtime(entry.get(), 0, 0);
    archive_entry_set_size(entry.get(), S_ISREG(mode) ? scanned.facts.st_size : 0);
    if (S_ISLNK(mode)) archive_entry_set_symlink(entry.get(), scanned.target.c_str());
    if (archive_write_header(archive_.get(), entry.get()) != ARCHIVE_OK) return Failed();
    return S_ISREG(mode) ? AddContents(scanned) : absl::OkStatus();
  }

  absl::Status AddContents(const ScannedEntry& scanned) {
    ++packed_.files;
    const std::string path = absl::StrCat(folder_, "/", scanned.path);
    const UniqueFd file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!file.ok() && (errno == ENOENT || errno == ELOOP)) return Changed(path);
    if (!file.ok()) return absl::ErrnoToStatus(errno, path);
    struct stat facts = {};
    if (fstat(file.get(), &facts) != 0) return absl::ErrnoToStatus(errno, path);
    if (!SameFile(facts, scanned.facts)) return Changed(path);
    for (int64_t left = scanned.facts.st_size; left > 0;) {
      const size_t wanted = std::min(piece_.size(), static_cast<size_t>(left));
      const ssize_t got = read(file.get(), piece_.data(), wanted);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return absl::ErrnoToStatus(errno, path);
      if (got == 0) return Changed(path);
      const auto size = static_cast<size_t>(got);
      if (archive_write_data(archive_.get(), piece_.data(), size) != got) return Failed();
      left -= got;
    }
    if (fstat(file.get(), &facts) != 0) return absl::ErrnoToStatus(errno, path);
    return SameFile(facts, scanned.facts) ? absl::OkStatus() : Changed(path);
  }

  static absl::Status Changed(const std::string& path) {
    return absl::AbortedError(
        absl::StrCat(absl::CHexEscape(path),
                     " has changed or gone while it was packed: try again, or name it in "
                     ".milepostignore if the job does not need it"));
  }

  const std::string folder_;
  UniqueFd to_;
  Sha256Stream digest_;
  PackedFiles packed_;
  absl::Status error_;
  std::vector<char> piece_ = std::vector<char>(kPiece);
  const std::unique_ptr<archive, WriteFree> archive_{archive_write_new()};  // first to go
};

}  // namespace

absl::StatusOr<PackedFiles> PackFolder(const std::string& folder, const ArchiveLimits& limits) {
  MP_ASSIGN_OR_RETURN(const std::vector<ScannedEntry> entries, ScanFolder(folder, limits));
  if (entries.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder, " has no files to send: it is empty, or .gitignore and .milepostignore name all"));
  }
  return PackScanned(folder, entries);
}

absl::StatusOr<PackedFiles> PackScanned(const std::string& folder,
                                        const std::vector<ScannedEntry>& entries) {
  MP_ASSIGN_OR_RETURN(UniqueFd to, TemporaryFile());
  return Packer(folder, std::move(to)).Run(entries);
}

}  // namespace milepost
