// Optimizer state on a local disk: a file of regions that are read and written in the background,
// beside the computation, past the page cache where the file system lets them.
//
//   MP_ASSIGN_OR_RETURN(auto file, StateFile::Create({.path = "/nvme/job.rank0",
//                                                     .regions = {64 << 20, 32 << 20}}));
//   MP_RETURN_IF_ERROR(file->Write(0, state));   // returns at once
//   MP_RETURN_IF_ERROR(file->Wait(0));           // `state` may be changed now
//   MP_RETURN_IF_ERROR(file->Read(0, buffer));
//   MP_RETURN_IF_ERROR(file->Wait(0));           // DATA_LOSS: not what was written
//
// It extends the memory of one process and is worth nothing without it: checksums are in memory,
// the file has no name (where file systems must give it one, it is taken away at once), and the
// disk is given back when the process ends, however it ends. What must last is in checkpoints.
//
// Memory: 8 bytes for each 4 MiB of the file. Disk space is reserved at creation, all of it. Calls
// may come from any thread; those for one region from one at a time.
#ifndef MILEPOST_ENGINE_RUNTIME_STATE_FILE_STATE_FILE_H_
#define MILEPOST_ENGINE_RUNTIME_STATE_FILE_STATE_FILE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/runtime/state_file/block_io.h"

namespace milepost::runtime {

// What sizes of regions, and addresses of memory, are multiples of.
inline constexpr int64_t kStateFileBlock = 4096;

struct StateFileOptions {
  // A name in the file's folder, for messages and where a file must have one for a moment, or is to
  // keep it: a file there already is then cut off and used.
  std::string path;
  std::vector<int64_t> regions;                // bytes of each
  int depth = 16;                              // pieces under way at once, of at most 4 MiB
  bool uring = true;                           // false: threads that read and write
  bool direct = true;                          // false: through the page cache
  bool keep = false;                           // the name stays
  absl::Duration timeout = absl::Seconds(60);  // of a Wait
  // Makes what reads and writes instead of the above; for tests.
  std::function<std::unique_ptr<BlockIo>(int fd)> io;
};

class StateFile {
 public:
  // INVALID_ARGUMENT: sizes; RESOURCE_EXHAUSTED: the disk, or the process's limit, does not hold
  // the regions, with the figures; other errors are the system's, with the path. Blocks.
  static absl::StatusOr<std::unique_ptr<StateFile>> Create(const StateFileOptions& options);
  // Waits for what is under way.
  virtual ~StateFile() = default;

  // Begins to write or read a region, whole; its memory is the file's until Wait has returned.
  // Never blocks. FAILED_PRECONDITION: one of the region is under way, or it is read and was never
  // written; INVALID_ARGUMENT: no such region, memory at no multiple of kStateFileBlock.
  virtual absl::Status Write(int region, const char* data) = 0;
  virtual absl::Status Read(int region, char* data) = 0;

  // Until nothing of the region is under way. OK, or why it failed, with path and offset:
  // DATA_LOSS for bytes that are not those written, RESOURCE_EXHAUSTED for a full disk. A region
  // whose write failed must be written again before it is read. DEADLINE_EXCEEDED: it may be waited
  // for again, and its memory is still in use.
  virtual absl::Status Wait(int region) = 0;

  virtual int64_t bytes() const = 0;  // of the file
  // "io_uring, past the page cache"; for logs.
  virtual std::string description() const = 0;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_STATE_FILE_STATE_FILE_H_
