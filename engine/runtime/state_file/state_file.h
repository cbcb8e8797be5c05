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

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
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
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  // Begins to write or read a region, whole; its memory is the file's until Wait has returned.
  // Never blocks. FAILED_PRECONDITION: one of the region is under way, or it is read and was never
  // written; INVALID_ARGUMENT: no such region, memory at no multiple of kStateFileBlock.
  absl::Status Write(int region, const char* data);
  absl::Status Read(int region, char* data);

  // Until nothing of the region is under way. OK, or why it failed, with path and offset:
  // DATA_LOSS for bytes that are not those written, RESOURCE_EXHAUSTED for a full disk. A region
  // whose write failed must be written again before it is read. DEADLINE_EXCEEDED: it may be waited
  // for again, and its memory is still in use.
  absl::Status Wait(int region);

  int64_t bytes() const { return bytes_; }  // of the file
  // "io_uring, past the page cache"; for logs.
  std::string description() const { return description_; }

 private:
  explicit StateFile(const StateFileOptions& options);
  absl::Status Open(const StateFileOptions& options);
  struct Region {
    int64_t offset = 0;
    int64_t bytes = 0;
    std::vector<uint64_t> checksums;  // by piece; the thread's while the region is busy
    bool written = false;
    // ---- under way ----
    bool busy = false;
    bool write = false;
    char* data = nullptr;
    int64_t next = 0;  // piece that has not begun
    int64_t left = 0;  // pieces that are not done
    absl::Status status;
  };
  // A piece that is under way.
  struct Slot {
    int region = 0;
    int64_t piece = 0;
    int64_t done = 0;  // bytes
    bool active = false;
  };

  absl::Status LayOut(const StateFileOptions& options);
  absl::Status OpenFile(const StateFileOptions& options);
  bool OpenNameless(bool direct);
  absl::Status Reserve() const;
  void MakeIo(const StateFileOptions& options);
  absl::Status CheckRegion(int region) const;
  absl::Status Begin(int region, char* data, bool write);

  // ---- of the thread ----
  void Loop();
  bool NextPiece(Slot* slot);
  void SubmitPieces();
  void SubmitRest(size_t tag);
  void TakeResult();
  void Break(const absl::Status& status);
  absl::Status Check(const Slot& slot, int64_t moved);
  void Finish(size_t tag, const absl::Status& status);
  int64_t PieceBytes(const Slot& slot) const;
  std::string Where(const Slot& slot) const;

  const std::string path_;
  const absl::Duration timeout_;
  int64_t bytes_ = 0;
  std::string description_;
  UniqueFd fd_;
  bool named_ = true;
  std::unique_ptr<BlockIo> io_;

  std::mutex mutex_;
  std::condition_variable wanted_;
  std::condition_variable finished_;
  std::vector<Region> regions_;
  std::deque<int> queue_;  // regions with pieces that have not begun
  bool stop_ = false;

  std::vector<Slot> slots_;     // the thread's
  std::vector<size_t> unused_;  // of the slots
  absl::Status broken_;         // why there is no io_ any more
  std::thread thread_;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_STATE_FILE_STATE_FILE_H_
