// One rank's state after a step, in a file in memory (tmpfs). It outlives the process.
//
//   MP_ASSIGN_OR_RETURN(auto file, SnapshotFile::Create(folder, {job, generation, rank}, tensors,
//                                                       intervals));
//   file->Begin();                                    // from here on it is no snapshot
//   std::memcpy(file->data(i), ...);                  // for every interval
//   file->Commit(session.trainer_state());            // from here on it is one, also after kill -9
//   ...
//   MP_ASSIGN_OR_RETURN(auto found, OpenSnapshot(path));   // the next attempt
//
// Create makes the file at its full size, or returns RESOURCE_EXHAUSTED. So later writes to it
// cannot fail. One writer; not thread-safe.
#ifndef MILEPOST_WORKER_MEMORY_STATE_SNAPSHOT_FILE_H_
#define MILEPOST_WORKER_MEMORY_STATE_SNAPSHOT_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/unique_fd.h"
#include "engine/state/layout.h"
#include "milepost/v1/checkpoint.pb.h"
#include "milepost/v1/trainer.pb.h"

namespace milepost::worker {

// A digest that tells this state's tensors from those of another state.
uint64_t TensorsDigest(const std::vector<v1::TensorInfo>& tensors);

// A file mapped as a whole.
class MappedFile {
 public:
  MappedFile(UniqueFd fd, char* data, size_t bytes)
      : fd_(std::move(fd)), data_(data), bytes_(bytes) {}
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  const UniqueFd fd_;  // holds the file's lock
  char* const data_;
  const size_t bytes_;
};

// Identifies a snapshot. The file's name states it: "g3-r7-left.state".
struct SnapshotId {
  std::string job;  // its uid
  int64_t generation = 0;
  int rank = 0;
  std::string which = "own";  // which of that rank's files
};
inline constexpr char kSnapshotSuffix[] = ".state";

class SnapshotFile {
 public:
  // Replaces an existing file. `intervals` index `tensors`. `tells_tensors`: the snapshot has the
  // list itself, for who does not know it.
  static absl::StatusOr<std::unique_ptr<SnapshotFile>> Create(
      const std::string& folder, const SnapshotId& id, const std::vector<v1::TensorInfo>& tensors,
      const std::vector<state::Interval>& intervals, bool tells_tensors = false);

  size_t intervals() const { return offsets_.size() - 1; }
  // Where the bytes of interval i go.
  char* data(size_t i) const { return begin_ + offsets_[i]; }
  size_t bytes(size_t i) const { return offsets_[i + 1] - offsets_[i]; }
  // All intervals, one after the other.
  absl::Span<char> all() const { return {begin_, offsets_.back()}; }
  uint64_t Checksum() const;

  // Removes the file. Existing mappings stay valid.
  void Discard();
  void Begin();
  void Commit(const v1::TrainerState& state) { Commit(state, Checksum()); }
  void Commit(const v1::TrainerState& state, uint64_t checksum);

 private:
  SnapshotFile(std::string path, std::unique_ptr<MappedFile> file, v1::MemorySnapshot snapshot,
               std::vector<size_t> offsets, char* begin)
      : path_(std::move(path)),
        file_(std::move(file)),
        snapshot_(std::move(snapshot)),
        offsets_(std::move(offsets)),
        begin_(begin) {}

  const std::string path_;
  const std::unique_ptr<MappedFile> file_;
  v1::MemorySnapshot snapshot_;
  const std::vector<size_t> offsets_;  // of the intervals' bytes, and the end of the last
  char* const begin_;
};

struct FoundSnapshot {
  v1::MemorySnapshot snapshot;
  const char* data = nullptr;
  uint64_t bytes = 0;  // of data
  std::shared_ptr<const MappedFile> file;
};

// Reads the whole file. NOT_FOUND: there is no file, it is not a committed snapshot, or another
// process has claimed it. This process's claim lasts as long as `file` lives. DATA_LOSS: the bytes
// are not what was written.
absl::StatusOr<FoundSnapshot> OpenSnapshot(const std::string& path);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_MEMORY_STATE_SNAPSHOT_FILE_H_
