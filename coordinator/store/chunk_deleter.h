// Deletes the chunks of checkpoints that are gone, on a thread of its own: unlinking gigabytes
// takes tenths of a second per gigabyte, which neither a commit nor anything else waits for.
//
//   ChunkDeleter deleter(database);
//   deleter.Add(number);                      // its manifest is deleted already
//   deleter.Await(absl::Now() + absl::Seconds(30));
//
// What is not deleted when the process ends, or cannot be, still has its record kDeletedPrefix and
// is deleted after the next start. Thread-safe. Only Await blocks.
#ifndef MILEPOST_COORDINATOR_STORE_CHUNK_DELETER_H_
#define MILEPOST_COORDINATOR_STORE_CHUNK_DELETER_H_

#include <cstdint>
#include <deque>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace milepost::coordinator {

class Database;

class ChunkDeleter {
 public:
  explicit ChunkDeleter(Database* database);
  // Goes on deleting for a few seconds at most.
  ~ChunkDeleter();

  void Add(int64_t number);
  // Until nothing is left to delete; false when there still is at `deadline`.
  bool Await(absl::Time deadline);

 private:
  void Run();
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return numbers_.empty(); }
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_ || !numbers_.empty();
  }

  Database* const database_;
  absl::Mutex mutex_;
  std::deque<int64_t> numbers_ ABSL_GUARDED_BY(mutex_);  // the first is being deleted
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_CHUNK_DELETER_H_
