// The lines of every job's log, bounded per job and in total. Lines survive the death of the
// process, not of the machine (not synced). Thread-safe; blocks on the disk.
#ifndef MILEPOST_COORDINATOR_STORE_LOG_STORE_H_
#define MILEPOST_COORDINATOR_STORE_LOG_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "milepost/v1/job.pb.h"
#include "milepost/v1/store.pb.h"

namespace rocksdb {
class Iterator;
class WriteBatch;
}  // namespace rocksdb

namespace milepost::coordinator {

class Database;

// Bytes are those of the lines as they are stored, before RocksDB compresses them; up to a
// twentieth more is kept, so that lines are dropped in larger steps.
struct LogLimits {
  int64_t lines_per_job = 20'000;
  int64_t bytes_per_job = int64_t{64} << 20;
  int64_t total_bytes = int64_t{8} << 30;
  // What a job that has not ended keeps of its newest lines whatever the total is.
  int64_t lines_of_running = 1000;
};

class LogStore {
 public:
  static constexpr int kMaxLineBytes = 8 << 10;  // longer lines are cut

  LogStore(Database* database, const LogLimits& limits) : database_(database), limits_(limits) {}

  // Reads how much there is. Before anything else.
  absl::Status Load();

  // Gives the lines their sequence numbers (from 1 on) and stores them; drops the job's oldest when
  // it has more than a job may.
  absl::Status Append(int64_t job, std::vector<v1::LogLine> lines);

  // All jobs together have more than they may.
  bool IsOverTotal() const;
  // Drops until they have not: whole logs and oldest lines of jobs that have ended, those first
  // that ended first; then the oldest lines of the others. `end_of`: when a job ended,
  // InfiniteFuture when it has not, InfinitePast when there is none; called without a lock.
  absl::Status TrimTotal(const std::function<absl::Time(int64_t job)>& end_of);

  // All of these jobs' lines go with what `write` writes: they are added to `batch` before, and
  // forgotten when it has succeeded.
  absl::Status Delete(const std::set<int64_t>& jobs, rocksdb::WriteBatch* batch,
                      const std::function<absl::Status()>& write);
  // What came after that.
  absl::Status DeleteLate(int64_t job);

  // Up to `limit` lines from `sequence` on, oldest first; empty at the end. Lines that were dropped
  // are passed over.
  absl::StatusOr<std::vector<v1::LogLine>> Read(int64_t job, uint64_t sequence, int limit);

  // The sequence numbers of a job's lines are [first, next), all of which are kept. Equal: none.
  struct Range {
    uint64_t first = 1;
    uint64_t next = 1;
    int64_t bytes = 0;
    int64_t dropped = 0;  // lines that are not kept any more; the last one is of
    absl::Time dropped_until = absl::InfinitePast();
  };
  absl::StatusOr<Range> GetRange(int64_t job);
  int64_t total_bytes() const;

 private:
  // How reading has ended; damage is noted.
  absl::Status Checked(const rocksdb::Iterator& it, const char* what) const;
  absl::StatusOr<Range*> FindRange(int64_t job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Range> LoadRange(int64_t job, const v1::LogSummary* summary) const;
  // Moves the range's begin on, to `stored_end` at most, until at least so many lines and bytes are
  // gone.
  absl::Status Drop(int64_t job, int64_t lines, int64_t bytes, uint64_t stored_end, Range* range,
                    rocksdb::WriteBatch* batch) const;
  absl::Status DropStored(int64_t job, int64_t lines, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutSummary(int64_t job, const Range& range, rocksdb::WriteBatch* batch) const;

  Database* const database_;
  const LogLimits limits_;
  mutable absl::Mutex mutex_;
  std::map<int64_t, Range> ranges_ ABSL_GUARDED_BY(mutex_);
  int64_t total_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_LOG_STORE_H_
