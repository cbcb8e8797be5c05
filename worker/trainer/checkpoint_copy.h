// The copy from which a checkpoint is uploaded while training goes on. It lies in host memory. When
// the state itself is on disk because memory cannot hold it, the copy is a mapped file on that
// disk. The kernel then keeps as much of the file in memory as there is room for.
//
//   MP_ASSIGN_OR_RETURN(CheckpointCopy copy, CheckpointCopy::Make(bytes, /*folder=*/""));
//   memcpy(copy.data(), ...);
//   copy.Written(0, n);   // optional: a file's bytes are on their way to the disk
//
// The file has no name, so the disk space is freed however the process ends. Movable. Not
// thread-safe.
#ifndef MILEPOST_WORKER_TRAINER_CHECKPOINT_COPY_H_
#define MILEPOST_WORKER_TRAINER_CHECKPOINT_COPY_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace milepost::worker {

class CheckpointCopy {
 public:
  // With an empty `folder` the copy is in memory, and all its pages are faulted in. Otherwise its
  // whole disk space is reserved in `folder`. RESOURCE_EXHAUSTED states the bytes needed and the
  // bytes free. Other system errors name the folder. Blocks.
  static absl::StatusOr<CheckpointCopy> Make(int64_t bytes, const std::string& folder);
  CheckpointCopy() = default;
  CheckpointCopy(CheckpointCopy&& other) noexcept;
  CheckpointCopy& operator=(CheckpointCopy&& other) noexcept;
  ~CheckpointCopy();

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  void Written(int64_t begin, int64_t end) const;

 private:
  CheckpointCopy(char* data, int64_t bytes, UniqueFd file)
      : data_(data), bytes_(bytes), file_(std::move(file)) {}

  char* data_ = nullptr;
  int64_t bytes_ = 0;
  UniqueFd file_;  // none: memory
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_CHECKPOINT_COPY_H_
