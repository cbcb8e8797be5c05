// The desk for files that are sent along with jobs: which are there, which jobs have them, and when
// they go.
#ifndef MILEPOST_COORDINATOR_DESKS_FILES_DESK_H_
#define MILEPOST_COORDINATOR_DESKS_FILES_DESK_H_

#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/desks/desk.h"

namespace milepost::coordinator {

class FilesReader;
class FilesUpload;

class FilesDesk : private Desk {
 public:
  explicit FilesDesk(const DeskTools& tools) : Desk(tools) {}

  // If so they stay for an hour (kFilesGrace). INVALID_ARGUMENT: not a digest.
  absl::StatusOr<bool> Has(const std::string& sha256);
  // INVALID_ARGUMENT naming the field: the job is to run with files that are not there. If they
  // are, they stay until the job is known to need them.
  absl::Status CheckThere(const v1::JobSpec& spec);
  // As FilesStore::Begin. Makes room before it refuses for lack of it.
  absl::StatusOr<std::unique_ptr<FilesUpload>> Begin(const std::string& sha256, int64_t bytes);
  // Of a job. FAILED_PRECONDITION: it has none.
  absl::StatusOr<std::unique_ptr<FilesReader>> Read(const std::string& job);
  absl::Time Now() const { return clock_->Now(); }

  // Removes what no job has, every ten minutes. By the loop's thread.
  void CollectNowAndThen();
  // Removes what at `time` no job has, and returns how many.
  int Collect(absl::Time time);

 private:
  absl::Time next_collection_ = absl::InfinitePast();  // of the loop's thread alone
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_DESKS_FILES_DESK_H_
