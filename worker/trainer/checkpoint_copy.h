// What a checkpoint is uploaded from while training goes on: host memory or, where the state itself
// is on disk because memory does not hold it, a file there, mapped. The kernel then keeps of it in
// memory what there is room for.
//
//   MP_ASSIGN_OR_RETURN(CheckpointCopy copy, CheckpointCopy::Make(bytes, /*folder=*/""));
//   memcpy(copy.data(), ...);
//   copy.Written(0, n);   // optional: a file's bytes are on their way to the disk
//
// The file has no name: its disk is given back with it, however the process ends. Movable. Not
// synchronised.
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
  // In memory, faulted in, with an empty `folder`; otherwise all of its disk space is reserved
  // there. RESOURCE_EXHAUSTED with the bytes needed and free; the system's errors with the folder.
  // Blocks.
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
