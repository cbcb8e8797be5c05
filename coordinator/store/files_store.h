// Files that are sent along with jobs: archives, each stored once under its SHA-256, as a file of
// its own beside the database.
//
//   MP_ASSIGN_OR_RETURN(auto upload, files->Begin(sha256, bytes));
//   MP_RETURN_IF_ERROR(upload->Append(piece));     // any number
//   MP_RETURN_IF_ERROR(upload->Finish(now));       // verified, synced, visible
//   MP_ASSIGN_OR_RETURN(auto reader, files->Read(sha256));
//
// A half upload is never visible, and is gone after the next start. An archive is removed when no
// job has it and nobody has asked for it or sent it for kFilesGrace: so what was sent right before
// a job is there when the job comes. All that is found at a start counts as sent just then.
//
// Thread-safe; uploads and readers are not. Everything blocks on the disk, but for Has and Collect
// as far as nothing is to be removed.
#ifndef MILEPOST_COORDINATOR_STORE_FILES_STORE_H_
#define MILEPOST_COORDINATOR_STORE_FILES_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/pki/digest.h"
#include "common/unique_fd.h"

namespace milepost::coordinator {

inline constexpr absl::Duration kFilesGrace = absl::Hours(1);

struct FilesStoreOptions {
  std::string dir;            // of a coordinator's data; archives are in dir/files
  int64_t most_bytes = 0;     // of all archives together
  uint64_t margin_bytes = 0;  // left free on the disk
  std::function<absl::StatusOr<uint64_t>(const std::string& path)> free_bytes;
  std::function<int64_t()> reserved_bytes;  // of that, for others
};

struct StoredFiles {
  int64_t bytes = 0;
  absl::Time used;  // sent, or asked for
};

// Which archives nobody needs. `wanted`: of jobs, and of who is about to read one. Pure.
std::vector<std::string> UnneededFiles(const std::map<std::string, StoredFiles>& stored,
                                       const std::set<std::string>& wanted, absl::Time now);

class FilesReader;
class FilesUpload;

class FilesStore {
 public:
  static absl::StatusOr<std::unique_ptr<FilesStore>> Open(FilesStoreOptions options,
                                                          absl::Time now);

  // If so it stays for kFilesGrace from now on.
  bool Has(const std::string& sha256, absl::Time now);
  // INVALID_ARGUMENT: not a digest, or no possible size. RESOURCE_EXHAUSTED: too little room, by
  // the disk or by the limit.
  absl::StatusOr<std::unique_ptr<FilesUpload>> Begin(const std::string& sha256, int64_t bytes);
  // NOT_FOUND: it is not there.
  absl::StatusOr<std::unique_ptr<FilesReader>> Read(const std::string& sha256);
  // Removes what nobody needs. Returns how many.
  int Collect(const std::set<std::string>& wanted, absl::Time now);

  struct Usage {
    int64_t archives = 0;
    int64_t bytes = 0;
  };
  Usage CountBytes() const;

 private:
  friend class FilesReader;
  friend class FilesUpload;
  explicit FilesStore(FilesStoreOptions options);
  absl::Status Load(absl::Time now);
  absl::Status CheckRoomLocked(int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string PathOf(const std::string& sha256) const;
  absl::Status Publish(const std::string& from, const std::string& sha256, int64_t bytes,
                       absl::Time now);
  void Release(int64_t bytes);
  // What was sent again since a reader opened its file is another file.
  bool IsStill(const std::string& sha256, int file) const;
  // It is not what its name says: unless another look finds it whole, it is gone.
  absl::Status Damaged(const std::string& sha256, int file);

  const FilesStoreOptions options_;
  const std::string folder_;
  const std::string incoming_;
  mutable absl::Mutex mutex_;
  std::map<std::string, StoredFiles> stored_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;     // of all that is stored
  int64_t reserved_ ABSL_GUARDED_BY(mutex_) = 0;  // by uploads under way
};

// One that is destroyed without Finish leaves nothing behind. The store outlives it.
class FilesUpload {
 public:
  ~FilesUpload();
  // INVALID_ARGUMENT: it is more than was announced.
  absl::Status Append(absl::string_view piece);
  // INVALID_ARGUMENT: it is not what was announced. Once.
  absl::Status Finish(absl::Time now);

 private:
  friend class FilesStore;
  FilesUpload(FilesStore* store, std::string path, UniqueFd file, std::string sha256, int64_t bytes)
      : store_(store),
        path_(std::move(path)),
        file_(std::move(file)),
        sha256_(std::move(sha256)),
        bytes_(bytes) {}

  FilesStore* const store_;
  const std::string path_;
  UniqueFd file_;
  const std::string sha256_;
  const int64_t bytes_;
  int64_t got_ = 0;
  Sha256Stream digest_;
};

// Reads what was there when it was made, also when that is removed meanwhile. The store outlives
// it.
class FilesReader {
 public:
  static constexpr size_t kPieceBytes = size_t{1} << 20;
  // Empty at the end. DATA_LOSS: it is damaged. It is then gone, so that it can be sent again; what
  // came before is not to be used.
  absl::StatusOr<std::string> Next();

 private:
  friend class FilesStore;
  FilesReader(FilesStore* store, UniqueFd file, std::string sha256)
      : store_(store), file_(std::move(file)), sha256_(std::move(sha256)) {}

  FilesStore* const store_;
  const UniqueFd file_;
  const std::string sha256_;
  Sha256Stream digest_;
  int64_t offset_ = 0;
  bool ended_ = false;
};

// The archives of one coordinator's data directory, in another one too: as links, or copies where
// that is on another disk. Synced. Nothing happens where there are none. Returns what could not be
// done, a line for each archive; the others are there.
std::vector<std::string> LinkFiles(const std::string& from_dir, const std::string& to_dir);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_FILES_STORE_H_
