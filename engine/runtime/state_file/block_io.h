// Internal to state_file: reads and writes of a file, several under way side by side.
//
//   MP_ASSIGN_OR_RETURN(auto io, UringIo(fd, /*depth=*/16));     // or ThreadIo
//   MP_RETURN_IF_ERROR(io->Submit({.write = true, .data = data, .bytes = n, .offset = 0}));
//   MP_ASSIGN_OR_RETURN(const BlockResult result, io->Next());   // blocks until one is done
//
// One thread at a time. The destructor waits for what is under way: until then its memory is used.
#ifndef MILEPOST_ENGINE_RUNTIME_STATE_FILE_BLOCK_IO_H_
#define MILEPOST_ENGINE_RUNTIME_STATE_FILE_BLOCK_IO_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace milepost::runtime {

struct BlockRequest {
  bool write = false;
  char* data = nullptr;  // only read where `write`
  int64_t bytes = 0;
  int64_t offset = 0;  // in the file
  uint64_t tag = 0;    // comes back with the result
};

struct BlockResult {
  uint64_t tag = 0;
  int64_t bytes = 0;  // moved, which may be fewer; below 0: an errno, negated
};

class BlockIo {
 public:
  virtual ~BlockIo() = default;
  // At most `depth` may be under way. An error is the engine's, not the request's.
  virtual absl::Status Submit(const BlockRequest& request) = 0;
  // Of any request that is under way; there must be one.
  virtual absl::StatusOr<BlockResult> Next() = 0;
};

// io_uring. UNAVAILABLE where the kernel refuses it, with its reason.
absl::StatusOr<std::unique_ptr<BlockIo>> UringIo(int fd, int depth);

// Threads that call pread and pwrite.
std::unique_ptr<BlockIo> ThreadIo(int fd, int threads);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_STATE_FILE_BLOCK_IO_H_
