// What an open database has met of damaged tables: at its start none is damaged that holds records.
// A compaction that meets one there would have RocksDB take no writes any more; or, since its
// iterators may end in front of a damaged block without an error, it would delete the table with
// what it has not read. So the tables that one is to read are verified first. Where
// one is damaged the compaction waits until the database is closed, which ends it, and none
// follows; what is there stays as it is, and what is new is still written.
//
//   auto damage = std::make_shared<Damage>();
//   options.listeners.push_back(damage);
//   ...
//   if (damage->InRecords()) return;   // nothing is deleted that nobody asked for
//   ...
//   rocksdb::CancelAllBackgroundWork(db, /*wait=*/false);
//   damage->Release();   // and then close the database
//
// Internal to store/. Thread-safe. Only OnCompactionBegin blocks.
#ifndef MILEPOST_COORDINATOR_STORE_DAMAGE_H_
#define MILEPOST_COORDINATOR_STORE_DAMAGE_H_

#include <rocksdb/listener.h>

#include <array>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace milepost::coordinator {

class Damage : public rocksdb::EventListener {
 public:
  // How a read of records, logs or curves has ended: DATA_LOSS is noted, all else is not.
  void NoteRecords(const absl::Status& status) { Note(status, kRecords); }
  void NoteLogs(const absl::Status& status) { Note(status, kLogs); }
  void NoteCurves(const absl::Status& status) { Note(status, kCurves); }

  // The first that was met, in records where there is some, with the way on; empty: none.
  std::string Describe() const;
  bool InRecords() const;
  // True once, when a compaction waits: no other may be begun, and none be waited for.
  bool TakeStopCompactions();
  // Compactions that wait go on, and end, since the database is being closed.
  void Release();

  void OnCompactionBegin(rocksdb::DB* db, const rocksdb::CompactionJobInfo& job) override;

 private:
  enum Kind : uint8_t { kRecords, kLogs, kCurves, kKinds };
  static Kind KindOf(const std::string& family);
  void Note(const absl::Status& status, Kind kind);

  mutable absl::Mutex mutex_;
  std::array<std::string, kKinds> met_ ABSL_GUARDED_BY(mutex_);  // empty: nothing
  bool stop_compactions_ ABSL_GUARDED_BY(mutex_) = false;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_DAMAGE_H_
