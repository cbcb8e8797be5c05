// Memory of a script's process, mapped here: a sealed memfd, found by /proc/<pid>/fd/<fd>.
//
//   MP_ASSIGN_OR_RETURN(SharedMemory memory,
//                       SharedMemory::Map({pid, fd, bytes}, "/proc", /*write=*/false));
//   memory.data()[0];
//
// It stays valid when the script's process is gone. Movable. Not thread-safe.
#ifndef MILEPOST_WORKER_SCRIPT_SHARED_MEMORY_H_
#define MILEPOST_WORKER_SCRIPT_SHARED_MEMORY_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "worker/script/checkpoint_request.h"

namespace milepost::worker {

class SharedMemory {
 public:
  // INVALID_ARGUMENT: no such descriptor, or it is no memory of that size that cannot shrink: an
  // access to it could kill this process. `processes`: what has the process as /proc has it.
  // `before`, which it takes over if it is the same memory, spares unmapping and mapping: some
  // 50 ms for each GiB.
  static absl::StatusOr<SharedMemory> Map(const ScriptMemory& memory, const std::string& processes,
                                          bool write, SharedMemory* before = nullptr);
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        file_(other.file_) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  char* data() const { return data_; }

 private:
  using File = std::pair<dev_t, ino_t>;

  SharedMemory(char* data, int64_t bytes, File file) : data_(data), bytes_(bytes), file_(file) {}

  char* data_ = nullptr;
  int64_t bytes_ = 0;
  File file_;  // its number is no other file's as long as it is mapped
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_SHARED_MEMORY_H_
