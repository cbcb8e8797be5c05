// The coordinator's durable state: one RocksDB directory, one process.
//
//   MP_ASSIGN_OR_RETURN(auto store, Store::Open({.dir = "/var/lib/milepost"}));
//   MP_ASSIGN_OR_RETURN(State state, store->LoadState());
//   MP_RETURN_IF_ERROR(store->Write(outcome));   // synced before it returns
//
// Column families: `meta` (records, manifests, counters, rendezvous keys), `chunks` (checkpoint
// data, only ever ingested), `logs`, `curves`. docs/internals/checkpoint-format.md has every key
// and value.
//
// Thread-safe. Everything blocks on the disk. A full disk gives RESOURCE_EXHAUSTED and leaves the
// store usable: the same call succeeds once there is space.
#ifndef MILEPOST_COORDINATOR_STORE_STORE_H_
#define MILEPOST_COORDINATOR_STORE_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/disk_space.h"
#include "coordinator/core/state.h"
#include "coordinator/store/curve_store.h"
#include "coordinator/store/log_store.h"
#include "milepost/v1/store.pb.h"

namespace rocksdb {
class WriteBatch;
}

namespace milepost::coordinator {

class CheckpointStore;
class Database;
class FilesStore;
class GroupSync;

struct StoreOptions {
  std::string dir;  // made when missing
  // Bytes that an unprivileged writer can still put on the file system of a path; tests replace it.
  // Empty: statvfs.
  std::function<absl::StatusOr<uint64_t>(const std::string& path)> free_bytes;
  // Left free beside all reservations of open checkpoints: RocksDB's own logs and memtables.
  uint64_t margin_bytes = kStoreMarginBytes;
  LogLimits logs;
  // How long a checkpoint that somebody has deleted can be restored, where the disk has room.
  absl::Duration bin_time = absl::Hours(24 * 7);
  // Of files that are sent along with jobs: of all archives together.
  int64_t most_files_bytes = int64_t{20} << 30;
  // Another machine is to find all that was acknowledged, also what a restart on this one finds
  // without a sync.
  bool shared = false;
};

struct RendezvousKey {
  int64_t job = 0;  // number
  int64_t generation = 0;
  std::string key;
  std::string value;
};

// A message to a webhook that may not have been delivered yet.
struct StoredDelivery {
  uint64_t number = 0;
  v1::WebhookDelivery delivery;
};

class Store {
 public:
  // FAILED_PRECONDITION: the directory was written by a newer version, another process has it
  // open, or it has epochs (epochs.h). PERMISSION_DENIED, NOT_FOUND: it cannot be made or written.
  // The message names the directory.
  static absl::StatusOr<std::unique_ptr<Store>> Open(const StoreOptions& options);
  ~Store();

  absl::StatusOr<State> LoadState();
  // One synced write of the outcome's durable records, and the end of rendezvous keys of its ended
  // attempts; with these messages. Nothing is written when there is nothing durable. With a deleted
  // job go its log, its curves and its checkpoints, which must be claimed
  // (CheckpointStore::ClaimJob).
  absl::Status Write(const Outcome& outcome, const std::vector<StoredDelivery>& deliveries = {});

  // By number.
  absl::StatusOr<std::vector<StoredDelivery>> LoadDeliveries();
  // May be back after the machine has died (not synced).
  absl::Status ForgetDelivery(uint64_t number);

  absl::Status PutToken(const v1::TokenRecord& record, bool sync);
  // May be back after the machine has died (not synced).
  absl::Status DeleteToken(const std::string& name);
  absl::StatusOr<std::vector<v1::TokenRecord>> LoadTokens();

  // On the disk when they return.
  absl::Status PutJoinToken(const v1::JoinTokenRecord& record);
  absl::Status DeleteJoinToken(const std::string& name);
  // Both or neither. `used` may be null.
  absl::Status PutJoined(const v1::JoinedWorkerRecord& record, const v1::JoinTokenRecord* used);
  absl::Status DeleteJoined(const std::string& worker_id);
  absl::StatusOr<std::vector<v1::JoinTokenRecord>> LoadJoinTokens();
  absl::StatusOr<std::vector<v1::JoinedWorkerRecord>> LoadJoined();

  // On the disk when they return.
  absl::Status PutTemplate(const v1::TemplateRecord& record);
  absl::Status DeleteTemplate(const std::string& name);
  absl::StatusOr<std::vector<v1::TemplateRecord>> LoadTemplates();

  // Survives the death of the process. Never waits for the disk.
  absl::Status PutKey(const RendezvousKey& key);
  // With StoreOptions::shared: what PutKey has done survives the death of the machine, too. Blocks
  // on the disk, together with all who call it at the same time.
  absl::Status SyncKeys();
  absl::StatusOr<std::vector<RendezvousKey>> LoadKeys();

  // Of a job, until it is deleted. As PutKey; the next synced write takes it along.
  absl::Status PutChoices(int64_t job, const std::string& choices);
  // Empty: there are none. Blocks on the disk.
  absl::StatusOr<std::string> GetChoices(int64_t job);

  // Bytes that can still be put on the file system of its directory.
  absl::StatusOr<uint64_t> CountFreeBytes() const;
  // What was met of damaged records, logs or curves since the store was opened, with the way on;
  // empty: nothing. Nothing is deleted by itself from then on.
  std::string DescribeDamage() const;

  CheckpointStore& checkpoints() { return *checkpoints_; }
  LogStore& logs() { return *logs_; }
  CurveStore& curves() { return *curves_; }
  FilesStore& files() { return *files_; }

 private:
  Store();
  absl::Status WriteDeletions(const Outcome& outcome, rocksdb::WriteBatch* batch);

  // In this order: the database goes last.
  std::unique_ptr<Database> database_;
  std::unique_ptr<GroupSync> key_syncs_;  // nullptr: not shared
  std::unique_ptr<CheckpointStore> checkpoints_;
  std::unique_ptr<LogStore> logs_;
  std::unique_ptr<CurveStore> curves_;
  std::unique_ptr<FilesStore> files_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_STORE_H_
