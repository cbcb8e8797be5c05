#include "coordinator/store/files_store.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/disk_space.h"
#include "common/error_details.h"
#include "common/spec/script.h"
#include "common/status_macros.h"
#include "coordinator/store/sync_path.h"

namespace milepost::coordinator {
namespace {

namespace fs = std::filesystem;

constexpr char kFilesFolder[] = "/files";
constexpr char kIncomingFolder[] = "/incoming";
constexpr mode_t kOwnerFolder = 0700;

absl::Status MakeFolder(const std::string& path) {
  if (mkdir(path.c_str(), kOwnerFolder) == 0 || errno == EEXIST) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", path));
}

// By the names and sizes of a folder.
absl::StatusOr<std::map<std::string, int64_t>> ArchivesIn(const std::string& folder) {
  std::map<std::string, int64_t> archives;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    std::error_code gone;
    const uintmax_t size = fs::file_size(entry->path(), gone);
    if (IsSha256Hex(name) && !gone) archives.emplace(std::move(name), static_cast<int64_t>(size));
  }
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot read ", folder));
  return archives;
}

}  // namespace

std::vector<std::string> UnneededFiles(const std::map<std::string, StoredFiles>& stored,
                                       const std::set<std::string>& wanted, absl::Time now) {
  std::vector<std::string> unneeded;
  for (const auto& [sha256, files] : stored) {
    if (wanted.count(sha256) == 0 && now >= files.used + kFilesGrace) unneeded.push_back(sha256);
  }
  return unneeded;
}

FilesStore::FilesStore(FilesStoreOptions options)
    : options_(std::move(options)),
      folder_(options_.dir + kFilesFolder),
      incoming_(folder_ + kIncomingFolder) {}

absl::StatusOr<std::unique_ptr<FilesStore>> FilesStore::Open(FilesStoreOptions options,
                                                             absl::Time now) {
  std::unique_ptr<FilesStore> store(new FilesStore(std::move(options)));
  MP_RETURN_IF_ERROR(store->Load(now));
  return store;
}

absl::Status FilesStore::Load(absl::Time now) {
  MP_RETURN_IF_ERROR(MakeFolder(folder_));
  MP_RETURN_IF_ERROR(MakeFolder(incoming_));
  // Uploads that a killed coordinator has left.
  std::error_code error;
  for (fs::directory_iterator entry(incoming_, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    fs::remove_all(entry->path(), ignored);
  }
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot empty ", incoming_));
  MP_RETURN_IF_ERROR(SyncPath(options_.dir));
  MP_ASSIGN_OR_RETURN(const auto archives, ArchivesIn(folder_));
  const absl::MutexLock lock(&mutex_);
  for (const auto& [sha256, bytes] : archives) {
    stored_[sha256] = {bytes, now};
    bytes_ += bytes;
  }
  return absl::OkStatus();
}

std::string FilesStore::PathOf(const std::string& sha256) const {
  return absl::StrCat(folder_, "/", sha256);
}

bool FilesStore::Has(const std::string& sha256, absl::Time now) {
  const absl::MutexLock lock(&mutex_);
  const auto found = stored_.find(sha256);
  if (found == stored_.end()) return false;
  found->second.used = now;
  return true;
}

absl::Status FilesStore::CheckRoomLocked(int64_t bytes) const {
  if (bytes_ + reserved_ + bytes > options_.most_bytes) {
    return Refusal(
        v1::ERROR_REASON_DISK_FULL, "files",
        absl::StrCat("script.files: the files of all jobs have ", bytes_ + reserved_,
                     " of at most ", options_.most_bytes, " bytes, and these have ", bytes,
                     ": delete jobs that are not needed any more (milepost job delete), or have "
                     "the operator ",
                     "raise --max-files-bytes"));
  }
  MP_ASSIGN_OR_RETURN(const uint64_t free, options_.free_bytes(folder_));
  const int64_t others = options_.reserved_bytes();
  const uint64_t needed = static_cast<uint64_t>(reserved_ + others + bytes) + options_.margin_bytes;
  return free >= needed ? absl::OkStatus() : DiskFull(folder_, free, needed);
}

absl::StatusOr<std::unique_ptr<FilesUpload>> FilesStore::Begin(const std::string& sha256,
                                                               int64_t bytes) {
  if (!IsSha256Hex(sha256)) {
    return absl::InvalidArgumentError("sha256: expected 64 hexadecimal digits in lower case");
  }
  if (bytes < 1 || bytes > kMostSentBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes: must be 1 to ", kMostSentBytes, ", not ", bytes));
  }
  {
    const absl::MutexLock lock(&mutex_);
    MP_RETURN_IF_ERROR(CheckRoomLocked(bytes));
    reserved_ += bytes;
  }
  std::string path = absl::StrCat(incoming_, "/XXXXXX");
  UniqueFd file(mkostemp(path.data(), O_CLOEXEC));
  if (!file.ok()) {
    const int error = errno;
    Release(bytes);
    return absl::ErrnoToStatus(error, absl::StrCat("cannot make a file in ", incoming_));
  }
  return std::unique_ptr<FilesUpload>(
      new FilesUpload(this, std::move(path), std::move(file), sha256, bytes));
}

void FilesStore::Release(int64_t bytes) {
  const absl::MutexLock lock(&mutex_);
  reserved_ -= bytes;
}

absl::Status FilesStore::Publish(const std::string& from, const std::string& sha256, int64_t bytes,
                                 absl::Time now) {
  const absl::MutexLock lock(&mutex_);  // or it could be removed before it is known
  if (rename(from.c_str(), PathOf(sha256).c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", PathOf(sha256)));
  }
  const auto [known, added] = stored_.try_emplace(sha256);
  if (added) bytes_ += bytes;
  known->second = {bytes, now};
  return SyncPath(folder_);
}

absl::StatusOr<std::unique_ptr<FilesReader>> FilesStore::Read(const std::string& sha256) {
  if (!IsSha256Hex(sha256)) return absl::NotFoundError("no digest of files");
  UniqueFd file(open(PathOf(sha256).c_str(), O_RDONLY | O_CLOEXEC));
  if (file.ok()) {
    return std::unique_ptr<FilesReader>(new FilesReader(this, std::move(file), sha256));
  }
  if (errno != ENOENT) return absl::ErrnoToStatus(errno, PathOf(sha256));
  return absl::NotFoundError(
      absl::StrCat("script.files: the coordinator has no files of the digest ",
                   sha256.substr(0, 12), "... (any more): submit the job again from its folder"));
}

int FilesStore::Collect(const std::set<std::string>& wanted, absl::Time now) {
  const absl::MutexLock lock(&mutex_);
  int removed = 0;
  for (const std::string& sha256 : UnneededFiles(stored_, wanted, now)) {
    if (unlink(PathOf(sha256).c_str()) != 0 && errno != ENOENT) {
      spdlog::warn("files that no job needs cannot be removed: {}: {}", PathOf(sha256),
                   std::string(absl::ErrnoToStatus(errno, "").message()));
      continue;
    }
    const auto found = stored_.find(sha256);
    bytes_ -= found->second.bytes;
    stored_.erase(found);
    ++removed;
  }
  return removed;
}

FilesStore::Usage FilesStore::CountBytes() const {
  const absl::MutexLock lock(&mutex_);
  return {static_cast<int64_t>(stored_.size()), bytes_};
}

bool FilesStore::IsStill(const std::string& sha256, int file) const {
  struct stat read = {}, there = {};
  return fstat(file, &read) == 0 && stat(PathOf(sha256).c_str(), &there) == 0 &&
         read.st_dev == there.st_dev && read.st_ino == there.st_ino;
}

absl::Status FilesStore::Damaged(const std::string& sha256, int file) {
  const auto again = Sha256OfFile(file);
  if (!again.ok() || *again == sha256) {
    return absl::UnavailableError("script.files: the archive was not read as it is: try again");
  }
  const absl::MutexLock lock(&mutex_);
  const auto found = stored_.find(sha256);
  if (found != stored_.end() && IsStill(sha256, file)) {
    unlink(PathOf(sha256).c_str());
    bytes_ -= found->second.bytes;
    stored_.erase(found);
  }
  spdlog::error("{} was damaged on the disk, and is removed", PathOf(sha256));
  return absl::DataLossError(absl::StrCat(
      "script.files: the files of the digest ", sha256.substr(0, 12),
      "... are damaged on the coordinator's disk: submit the job again from its folder"));
}

FilesUpload::~FilesUpload() {
  unlink(path_.c_str());  // gone from there once it is published
  store_->Release(bytes_);
}

absl::Status FilesUpload::Append(absl::string_view piece) {
  if (static_cast<int64_t>(piece.size()) > bytes_ - got_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the archive has more than the ", bytes_, " bytes that were announced"));
  }
  got_ += static_cast<int64_t>(piece.size());
  digest_.Add(piece);
  while (!piece.empty()) {
    const ssize_t put = write(file_.get(), piece.data(), piece.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path_));
    piece.remove_prefix(static_cast<size_t>(put));
  }
  return absl::OkStatus();
}

absl::Status FilesUpload::Finish(absl::Time now) {
  if (got_ != bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the archive has ", got_, " bytes, and ", bytes_, " were announced"));
  }
  if (digest_.Hex() != sha256_) {
    return absl::InvalidArgumentError(
        "the archive does not have the digest that was announced: it was changed on the way");
  }
  if (fsync(file_.get()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot sync ", path_));
  }
  return store_->Publish(path_, sha256_, bytes_, now);
}

absl::StatusOr<std::string> FilesReader::Next() {
  if (ended_) return std::string();
  std::string piece(kPieceBytes, '\0');
  ssize_t got = -1;
  do {
    got = pread(file_.get(), piece.data(), piece.size(), offset_);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return absl::UnavailableError(absl::StrCat("script.files: cannot read ", sha256_));
  piece.resize(static_cast<size_t>(got));
  offset_ += got;
  digest_.Add(piece);
  if (got > 0) return piece;
  ended_ = true;
  if (digest_.Hex() != sha256_) return store_->Damaged(sha256_, file_.get());
  return piece;
}

namespace {

// Another disk, or one without hard links.
bool MustCopy(int error) {
  return error == EXDEV || error == EPERM || error == EOPNOTSUPP || error == EMLINK;
}

absl::Status LinkOrCopy(const std::string& source, const std::string& target) {
  if (link(source.c_str(), target.c_str()) == 0 || errno == EEXIST || errno == ENOENT) {
    return absl::OkStatus();
  }
  if (!MustCopy(errno)) return absl::ErrnoToStatus(errno, absl::StrCat("cannot link ", source));
  std::error_code error;
  fs::copy_file(source, target, error);
  if (!error) return SyncPath(target);
  unlink(target.c_str());  // half of it
  return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot copy ", source));
}

}  // namespace

std::vector<std::string> LinkFiles(const std::string& from_dir, const std::string& to_dir) {
  const std::string from = from_dir + kFilesFolder, to = to_dir + kFilesFolder;
  std::vector<std::string> problems;
  const auto note = [&](const absl::Status& status) {
    if (!status.ok()) problems.emplace_back(status.message());
    return status.ok();
  };
  std::error_code error;
  if (!fs::is_directory(from, error)) return problems;
  const auto archives = ArchivesIn(from);
  if (!note(archives.status()) || !note(MakeFolder(to))) return problems;
  for (const auto& [sha256, bytes] : *archives) {
    note(LinkOrCopy(absl::StrCat(from, "/", sha256), absl::StrCat(to, "/", sha256)));
  }
  note(SyncPath(to));
  return problems;
}

}  // namespace milepost::coordinator
