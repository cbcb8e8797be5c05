// The RocksDB directory: options, format version, column families, status mapping. Internal to
// store/. Thread-safe.
#ifndef MILEPOST_COORDINATOR_STORE_DATABASE_H_
#define MILEPOST_COORDINATOR_STORE_DATABASE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rocksdb {
class ColumnFamilyHandle;
class DB;
struct Options;
class Status;
class WriteBatch;
}  // namespace rocksdb

namespace milepost::coordinator {

class Damage;
class LogMark;

// A full disk and an exhausted quota are RESOURCE_EXHAUSTED, a bad checksum is DATA_LOSS. `what`
// says what was being done.
absl::Status FromRocks(const rocksdb::Status& status, absl::string_view what);

// Options of the SST files of `chunks` (also of files written to be ingested there): large values,
// no compression, XXH3, no cache, no filter.
rocksdb::Options ChunkFileOptions();
rocksdb::Options MetaFileOptions();

class Database {
 public:
  // Format of everything in the directory. A directory with a larger number is refused.
  static constexpr int kFormatVersion = 1;

  // DATA_LOSS, with nothing deleted: a table of records, the write-ahead log or a file that names
  // others is damaged or missing. Reads all tables of `meta`; the blocks of chunks are verified
  // when they are read.
  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::string& dir);
  ~Database();

  // One atomic write. RESOURCE_EXHAUSTED, with nothing done, when space is low
  // (common/disk_space.h).
  // What makes room may be written when there is little.
  enum class Space : uint8_t { kTakes, kFrees };
  absl::Status Write(rocksdb::WriteBatch* batch, bool sync, Space space = Space::kTakes);
  // Makes all that was written without a sync durable.
  absl::Status SyncLog();
  absl::Status CheckSpace(Space space = Space::kTakes) const;
  // NOT_FOUND when there is none. Of `meta` DATA_LOSS is noted as damage.
  absl::Status Get(rocksdb::ColumnFamilyHandle* family, absl::string_view key,
                   std::string* value) const;

  rocksdb::DB* db() const { return db_.get(); }
  rocksdb::ColumnFamilyHandle* meta() const { return families_[0]; }
  rocksdb::ColumnFamilyHandle* chunks() const { return families_[1]; }
  rocksdb::ColumnFamilyHandle* logs() const { return families_[2]; }
  rocksdb::ColumnFamilyHandle* curves() const { return families_[3]; }
  const std::string& dir() const { return dir_; }
  // What was met of damage since it was opened.
  Damage& damage() const { return *damage_; }

 private:
  explicit Database(std::string dir);
  absl::Status OpenRocks();
  absl::Status CheckFormat();
  absl::Status CheckTables();
  // Which write-ahead log is written to, and how long it is; 0, 0 when that is not known.
  std::pair<uint64_t, uint64_t> CurrentLog() const;
  // Or writes would soon wait for the one that waits.
  void StopCompactions();

  const std::string dir_;
  const std::shared_ptr<Damage> damage_;
  std::unique_ptr<LogMark> mark_;
  std::unique_ptr<rocksdb::DB> db_;
  std::vector<rocksdb::ColumnFamilyHandle*> families_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_DATABASE_H_
