// Archives of files that were sent along with jobs, on this host: each is fetched once, for all
// ranks and jobs that have it.
//
//   MP_ASSIGN_OR_RETURN(FilesCache cache, FilesCache::Open(FilesCachePath()));
//   MP_ASSIGN_OR_RETURN(UniqueFd archive, cache.Get(sent, fetch, give_up));
//   UnpackFiles(archive.get(), folder);
//
// It may be asked by many processes at once, each of which may be killed at any moment: an archive
// has its name when it is whole and synced. What lies there is not trusted: an archive's digest is
// computed whenever it is asked for, and one that is not what its name says is fetched again. What
// was not used for longest goes when there would be more than the limit; nothing goes that
// somebody reads. Blocks on the disk, and while another process fetches the same. Thread-safe.
#ifndef MILEPOST_WORKER_SCRIPT_FILES_CACHE_H_
#define MILEPOST_WORKER_SCRIPT_FILES_CACHE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::worker {

// In the folder of temporary files, this user's own.
std::string FilesCachePath(const std::string& temporary_files);

struct CachedArchive {
  std::string sha256;
  int64_t bytes = 0;
  absl::Time used;
};
// Which ones go so that `needed` bytes more are within `most`: the longest unused first. Pure.
std::vector<std::string> ArchivesToRemove(std::vector<CachedArchive> archives, int64_t needed,
                                          int64_t most);

class FilesCache {
 public:
  static constexpr int64_t kMostBytes = int64_t{2} << 30;

  // Makes the folder. PERMISSION_DENIED: it is another user's, or others can write it.
  static absl::StatusOr<FilesCache> Open(const std::string& folder, int64_t most = kMostBytes);

  // Writes the archive to a file.
  using Fetch = std::function<absl::Status(int file)>;
  // The archive, which stays as long as the descriptor is open. Errors of `fetch`; DATA_LOSS: what
  // it wrote is not what was sent; CANCELLED: `give_up`, which is asked while another process
  // fetches, returned true.
  absl::StatusOr<UniqueFd> Get(const v1::SentFiles& sent, const Fetch& fetch,
                               const std::function<bool()>& give_up);

 private:
  FilesCache(std::string folder, int64_t most) : folder_(std::move(folder)), most_(most) {}
  std::string PathOf(const std::string& name) const;
  // Not ok: it is not there, or is not what its name says; then it is removed.
  UniqueFd OpenGood(const v1::SentFiles& sent) const;
  absl::StatusOr<UniqueFd> LockFor(const std::string& sha256,
                                   const std::function<bool()>& give_up) const;
  absl::StatusOr<UniqueFd> FetchLocked(const v1::SentFiles& sent, const Fetch& fetch) const;
  void MakeRoom(int64_t needed) const;

  std::string folder_;
  int64_t most_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_FILES_CACHE_H_
