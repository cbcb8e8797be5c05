#include "coordinator/store/store.h"

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/disk_space.h"
#include "common/status_macros.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/damage.h"
#include "coordinator/store/database.h"
#include "coordinator/store/epochs.h"
#include "coordinator/store/files_store.h"
#include "coordinator/store/group_sync.h"
#include "coordinator/store/keys.h"
#include "coordinator/store/record_scan.h"

namespace milepost::coordinator {

namespace {

absl::Status ParseRecord(absl::string_view value, const char* what,
                         google::protobuf::MessageLite* record) {
  if (record->ParseFromArray(value.data(), static_cast<int>(value.size()))) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the store has a damaged record of a ", what));
}

std::string RendezvousPrefix(int64_t job, int64_t generation) {
  std::string key = NumberKey(kRendezvousPrefix, job);
  AppendBe64(static_cast<uint64_t>(generation), &key);
  return key;
}

}  // namespace

Store::Store() = default;
Store::~Store() {
  curves_.reset();
  logs_.reset();
  checkpoints_.reset();
  database_.reset();
}

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const StoreOptions& options) {
  MP_ASSIGN_OR_RETURN(const int64_t epoch, NewestEpoch(options.dir));
  if (epoch > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "data directory ", options.dir, " belongs to coordinators that stand by for each other: ",
        "give --etcd. To go back to a single one, stop them and move ", options.dir, "/epoch-",
        epoch, "/db to another, empty data directory"));
  }
  std::unique_ptr<Store> store(new Store);
  MP_ASSIGN_OR_RETURN(store->database_, Database::Open(options.dir));
  if (options.shared) {
    store->key_syncs_ = std::make_unique<GroupSync>(
        [database = store->database_.get()] { return database->SyncLog(); });
  }
  store->logs_ = std::make_unique<LogStore>(store->database_.get(), options.logs);
  MP_RETURN_IF_ERROR(store->logs_->Load());
  store->curves_ = std::make_unique<CurveStore>(store->database_.get());
  CheckpointStoreOptions checkpoint_options;
  checkpoint_options.staging_dir = absl::StrCat(options.dir, "/staging");
  checkpoint_options.free_bytes = options.free_bytes ? options.free_bytes : FreeBytes;
  checkpoint_options.margin_bytes = options.margin_bytes;
  checkpoint_options.bin_time = options.bin_time;
  MP_ASSIGN_OR_RETURN(store->checkpoints_,
                      CheckpointStore::Open(store->database_.get(), checkpoint_options));
  FilesStoreOptions files_options;
  files_options.dir = options.dir;
  files_options.most_bytes = options.most_files_bytes;
  files_options.margin_bytes = options.margin_bytes;
  files_options.free_bytes = checkpoint_options.free_bytes;
  files_options.reserved_bytes = [checkpoints = store->checkpoints_.get()] {
    return checkpoints->CountReserved();
  };
  MP_ASSIGN_OR_RETURN(store->files_, FilesStore::Open(std::move(files_options), absl::Now()));
  return store;
}

absl::StatusOr<uint64_t> Store::CountFreeBytes() const { return FreeBytes(database_->dir()); }

std::string Store::DescribeDamage() const { return database_->damage().Describe(); }

absl::StatusOr<State> Store::LoadState() {
  State state;
  std::string last_job;
  const absl::Status found = database_->Get(database_->meta(), kLastJobKey, &last_job);
  if (found.ok() && last_job.size() == 8) {
    state.NoteLastJob(static_cast<int64_t>(ReadBe64(last_job)));
  } else if (!absl::IsNotFound(found)) {
    return found.ok() ? absl::DataLossError("the store has a damaged number of the last job")
                      : found;
  }
  MP_RETURN_IF_ERROR(
      ScanRecords(*database_, kJobPrefix, [&](absl::string_view, absl::string_view value) {
        v1::JobRecord record;
        MP_RETURN_IF_ERROR(ParseRecord(value, "job", &record));
        state.PutJob(std::move(record));
        return absl::OkStatus();
      }));
  MP_RETURN_IF_ERROR(
      ScanRecords(*database_, kWorkerPrefix, [&](absl::string_view, absl::string_view value) {
        v1::WorkerRecord record;
        MP_RETURN_IF_ERROR(ParseRecord(value, "worker", &record));
        state.PutWorker(std::move(record));
        return absl::OkStatus();
      }));
  MP_RETURN_IF_ERROR(
      ScanRecords(*database_, kQueuePrefix, [&](absl::string_view, absl::string_view value) {
        v1::QueueRecord record;
        MP_RETURN_IF_ERROR(ParseRecord(value, "queue", &record));
        state.PutQueue(std::move(record));
        return absl::OkStatus();
      }));
  return state;
}

absl::Status Store::Write(const Outcome& outcome, const std::vector<StoredDelivery>& deliveries) {
  rocksdb::WriteBatch batch(0, 0, /*protection_bytes_per_key=*/8, 0);
  for (int64_t number : outcome.durable_jobs) {
    batch.Put(database_->meta(), NumberKey(kJobPrefix, number),
              outcome.jobs.at(number).SerializeAsString());
  }
  for (const std::string& name : outcome.durable_workers) {
    batch.Put(database_->meta(), kWorkerPrefix + name,
              outcome.workers.at(name).SerializeAsString());
  }
  for (const std::string& name : outcome.forgotten_workers) {
    batch.Delete(database_->meta(), kWorkerPrefix + name);
  }
  for (const auto& [id, record] : outcome.queues) {
    const std::string key = kQueuePrefix + id;
    if (record.has_value()) {
      batch.Put(database_->meta(), key, record->SerializeAsString());
    } else {
      batch.Delete(database_->meta(), key);
    }
  }
  for (int64_t number : outcome.ended_attempts) {
    batch.DeleteRange(database_->meta(), NumberKey(kRendezvousPrefix, number),
                      NumberKey(kRendezvousPrefix, number + 1));
  }
  for (const StoredDelivery& stored : deliveries) {
    batch.Put(database_->meta(), NumberKey(kDeliveryPrefix, static_cast<int64_t>(stored.number)),
              stored.delivery.SerializeAsString());
  }
  if (batch.Count() == 0 && outcome.deleted_jobs.empty()) return absl::OkStatus();
  if (!outcome.deleted_jobs.empty()) return WriteDeletions(outcome, &batch);
  return database_->Write(&batch, /*sync=*/true);
}

// What is in `batch`, and with it the deleted jobs and all that is theirs.
absl::Status Store::WriteDeletions(const Outcome& outcome, rocksdb::WriteBatch* batch) {
  std::string last_job;
  AppendBe64(static_cast<uint64_t>(outcome.last_job), &last_job);
  batch->Put(database_->meta(), kLastJobKey, last_job);
  for (const int64_t number : outcome.deleted_jobs) {
    batch->Delete(database_->meta(), NumberKey(kJobPrefix, number));
    batch->Delete(database_->meta(), NumberKey(kChoicesPrefix, number));
    batch->DeleteRange(database_->meta(), NumberKey(kRendezvousPrefix, number),
                       NumberKey(kRendezvousPrefix, number + 1));
    curves_->AddDeletion(number, batch);
    checkpoints_->AddClaimed(JobName(number), batch);
  }
  MP_RETURN_IF_ERROR(logs_->Delete(outcome.deleted_jobs, batch,
                                   [&] { return database_->Write(batch, /*sync=*/true); }));
  for (const int64_t number : outcome.deleted_jobs) checkpoints_->ClaimedGone(JobName(number));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StoredDelivery>> Store::LoadDeliveries() {
  std::vector<StoredDelivery> deliveries;
  MP_RETURN_IF_ERROR(
      ScanRecords(*database_, kDeliveryPrefix,
                  [&](absl::string_view key, absl::string_view value) -> absl::Status {
                    if (key.size() != 9) {
                      return absl::DataLossError("the store has a damaged webhook key");
                    }
                    StoredDelivery& stored = deliveries.emplace_back();
                    stored.number = ReadBe64(key.substr(1));
                    return ParseRecord(value, "webhook message", &stored.delivery);
                  }));
  return deliveries;
}

absl::Status Store::ForgetDelivery(uint64_t number) {
  rocksdb::WriteBatch batch;
  batch.Delete(database_->meta(), NumberKey(kDeliveryPrefix, static_cast<int64_t>(number)));
  return database_->Write(&batch, /*sync=*/false);
}

absl::Status Store::PutToken(const v1::TokenRecord& record, bool sync) {
  rocksdb::WriteBatch batch;
  batch.Put(database_->meta(), kTokenPrefix + record.token().name(), record.SerializeAsString());
  return database_->Write(&batch, sync);
}

absl::Status Store::DeleteToken(const std::string& name) {
  rocksdb::WriteBatch batch;
  batch.Delete(database_->meta(), kTokenPrefix + name);
  return database_->Write(&batch, /*sync=*/false);
}

absl::StatusOr<std::vector<v1::TokenRecord>> Store::LoadTokens() {
  std::vector<v1::TokenRecord> records;
  MP_RETURN_IF_ERROR(
      ScanRecords(*database_, kTokenPrefix, [&](absl::string_view, absl::string_view value) {
        return ParseRecord(value, "token", &records.emplace_back());
      }));
  return records;
}

absl::Status Store::PutJoinToken(const v1::JoinTokenRecord& record) {
  rocksdb::WriteBatch batch;
  batch.Put(database_->meta(), kJoinTokenPrefix + record.token().name(),
            record.SerializeAsString());
  return database_->Write(&batch, /*sync=*/true);
}

absl::Status Store::DeleteJoinToken(const std::string& name) {
  rocksdb::WriteBatch batch;
  batch.Delete(database_->meta(), kJoinTokenPrefix + name);
  return database_->Write(&batch, /*sync=*/true);
}

absl::Status Store::PutJoined(const v1::JoinedWorkerRecord& record,
                              const v1::JoinTokenRecord* used) {
  rocksdb::WriteBatch batch;
  batch.Put(database_->meta(), kJoinedPrefix + record.worker_id(), record.SerializeAsString());
  if (used != nullptr) {
    batch.Put(database_->meta(), kJoinTokenPrefix + used->token().name(),
              used->SerializeAsString());
  }
  return database_->Write(&batch, /*sync=*/true);
}

absl::Status Store::DeleteJoined(const std::string& worker_id) {
  rocksdb::WriteBatch batch;
  batch.Delete(database_->meta(), kJoinedPrefix + worker_id);
  return database_->Write(&batch, /*sync=*/true);
}

absl::StatusOr<std::vector<v1::JoinTokenRecord>> Store::LoadJoinTokens() {
  std::vector<v1::JoinTokenRecord> records;
  MP_RETURN_IF_ERROR(
      ScanRecords(*database_, kJoinTokenPrefix, [&](absl::string_view, absl::string_view value) {
        return ParseRecord(value, "join token", &records.emplace_back());
      }));
  return records;
}

absl::StatusOr<std::vector<v1::JoinedWorkerRecord>> Store::LoadJoined() {
  std::vector<v1::JoinedWorkerRecord> records;
  MP_RETURN_IF_ERROR(
      ScanRecords(*database_, kJoinedPrefix, [&](absl::string_view, absl::string_view value) {
        return ParseRecord(value, "worker that has joined", &records.emplace_back());
      }));
  return records;
}

absl::Status Store::PutTemplate(const v1::TemplateRecord& record) {
  rocksdb::WriteBatch batch;
  batch.Put(database_->meta(), kTemplatePrefix + record.template_().name(),
            record.SerializeAsString());
  return database_->Write(&batch, /*sync=*/true);
}

absl::Status Store::DeleteTemplate(const std::string& name) {
  rocksdb::WriteBatch batch;
  batch.Delete(database_->meta(), kTemplatePrefix + name);
  return database_->Write(&batch, /*sync=*/true);
}

absl::StatusOr<std::vector<v1::TemplateRecord>> Store::LoadTemplates() {
  std::vector<v1::TemplateRecord> records;
  MP_RETURN_IF_ERROR(
      ScanRecords(*database_, kTemplatePrefix, [&](absl::string_view, absl::string_view value) {
        return ParseRecord(value, "template", &records.emplace_back());
      }));
  return records;
}

absl::Status Store::PutKey(const RendezvousKey& key) {
  rocksdb::WriteBatch batch;
  batch.Put(database_->meta(), RendezvousPrefix(key.job, key.generation) + key.key, key.value);
  return database_->Write(&batch, /*sync=*/false);
}

absl::Status Store::SyncKeys() {
  return key_syncs_ == nullptr ? absl::OkStatus() : key_syncs_->Sync();
}

absl::StatusOr<std::vector<RendezvousKey>> Store::LoadKeys() {
  std::vector<RendezvousKey> keys;
  MP_RETURN_IF_ERROR(
      ScanRecords(*database_, kRendezvousPrefix,
                  [&](absl::string_view key, absl::string_view value) -> absl::Status {
                    if (key.size() < 17) {
                      return absl::DataLossError("the store has a damaged rendezvous key");
                    }
                    keys.push_back({static_cast<int64_t>(ReadBe64(key.substr(1))),
                                    static_cast<int64_t>(ReadBe64(key.substr(9))),
                                    std::string(key.substr(17)), std::string(value)});
                    return absl::OkStatus();
                  }));
  return keys;
}

absl::Status Store::PutChoices(int64_t job, const std::string& choices) {
  rocksdb::WriteBatch batch;
  batch.Put(database_->meta(), NumberKey(kChoicesPrefix, job), choices);
  return database_->Write(&batch, /*sync=*/false);
}

absl::StatusOr<std::string> Store::GetChoices(int64_t job) {
  std::string choices;
  const absl::Status status =
      database_->Get(database_->meta(), NumberKey(kChoicesPrefix, job), &choices);
  if (absl::IsNotFound(status)) return "";
  MP_RETURN_IF_ERROR(status);
  return choices;
}

}  // namespace milepost::coordinator
