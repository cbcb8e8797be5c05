// A folder for one run of a script, which goes away with it.
//
//   RemoveAbandoned(folder_of_temporary_files, now);
//   MP_ASSIGN_OR_RETURN(ScratchFolder scratch, ScratchFolder::Make(folder_of_temporary_files));
//   Use(scratch.path());
//
// Blocks on the disk. Not thread-safe.
#ifndef MILEPOST_WORKER_SCRIPT_SCRATCH_FOLDER_H_
#define MILEPOST_WORKER_SCRIPT_SCRATCH_FOLDER_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace milepost::worker {

class ScratchFolder {
 public:
  // In `parent`, open to this user alone. Errors name the path.
  static absl::StatusOr<ScratchFolder> Make(const std::string& parent);
  ScratchFolder(ScratchFolder&& other) noexcept
      : path_(std::exchange(other.path_, "")), lock_(std::move(other.lock_)) {}
  ScratchFolder& operator=(ScratchFolder&&) = delete;
  ~ScratchFolder();  // removes it with all that is in it

  const std::string& path() const { return path_; }

 private:
  ScratchFolder(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;
  UniqueFd lock_;
};

// Removes folders of this user that a killed process has left in `parent`: nobody has their lock,
// and they were last changed a minute before `now`. Returns how many.
int RemoveAbandoned(const std::string& parent, absl::Time now);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_SCRATCH_FOLDER_H_
