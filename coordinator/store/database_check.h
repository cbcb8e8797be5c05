// Whether a RocksDB directory is whole, before anything in it is trusted. Internal to store/.
#ifndef MILEPOST_COORDINATOR_STORE_DATABASE_CHECK_H_
#define MILEPOST_COORDINATOR_STORE_DATABASE_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/unique_fd.h"

namespace rocksdb {
class DB;
}  // namespace rocksdb

namespace milepost::coordinator {

// Of RocksDB's file CURRENT, which names the newest list of tables.
inline constexpr size_t kMaxCurrentBytes = 4096;

// In the directory of the database, and in copies of it.
inline constexpr char kLogMarkFile[] = "synced-log";

// Before RocksDB opens `db` and makes anew what it does not find. DATA_LOSS: a file that others
// need is not there, or its write-ahead log is shorter than what was acknowledged.
absl::Status CheckFiles(const std::string& db);

// Reads all of a table, by its path, and compares every block with its checksum: DATA_LOSS.
absl::Status VerifyTable(const std::string& path);

// Reads all of `family` (a column family's name) and compares every block with its checksum.
// DATA_LOSS names the first file that is damaged. No compaction may be under way.
absl::Status VerifyTables(rocksdb::DB* db, absl::string_view family);

// How much of the write-ahead log was synced at least: RocksDB itself does not know, and takes a
// log that was cut off or emptied for one that was written so. Noted after the sync and never
// synced itself, so it may be behind, and is never ahead. Thread-safe.
class LogMark {
 public:
  // Does nothing when the file cannot be made.
  explicit LogMark(const std::string& db);
  // The first `bytes` of the log `number` are on the disk.
  void Note(uint64_t number, uint64_t bytes);

 private:
  absl::Mutex mutex_;
  const UniqueFd fd_;
  uint64_t number_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_DATABASE_CHECK_H_
