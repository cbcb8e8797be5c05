// The lines of every job's log, bounded per job. Lines survive the death of the process, not of the
// machine (not synced). Thread-safe; blocks on the disk.
#ifndef MILEPOST_COORDINATOR_STORE_LOG_STORE_H_
#define MILEPOST_COORDINATOR_STORE_LOG_STORE_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "milepost/v1/job.pb.h"

namespace milepost::coordinator {

class Database;

class LogStore {
 public:
  static constexpr int kMaxLineBytes = 8 << 10;  // longer lines are cut

  LogStore(Database* database, int64_t lines_per_job)
      : database_(database), lines_per_job_(lines_per_job) {}

  // Gives the lines their sequence numbers (from 1 on) and stores them; trims the oldest.
  absl::Status Append(int64_t job, std::vector<v1::LogLine> lines);

  // Up to `limit` lines from `sequence` on, oldest first; empty at the end. Lines that were trimmed
  // are passed over.
  absl::StatusOr<std::vector<v1::LogLine>> Read(int64_t job, uint64_t sequence, int limit);

  // The range of sequence numbers that are kept: [first, next). Equal: none.
  struct Range {
    uint64_t first = 1;
    uint64_t next = 1;
  };
  absl::StatusOr<Range> GetRange(int64_t job);

 private:
  absl::StatusOr<Range*> FindRange(int64_t job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Database* const database_;
  const int64_t lines_per_job_;
  absl::Mutex mutex_;
  std::map<int64_t, Range> ranges_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_LOG_STORE_H_
