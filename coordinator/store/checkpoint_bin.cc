// Deleting: into the bin and out of it, for good, and together with a job.
#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "common/proto_time.h"
#include "common/status_macros.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/damage.h"
#include "coordinator/store/database.h"
#include "coordinator/store/keys.h"

namespace milepost::coordinator {

namespace {

// Manifest first. What says that the chunks are to go stays until they are gone.
void AddDeletion(Database* database, int64_t number, rocksdb::WriteBatch* batch) {
  batch->Delete(database->meta(), NumberKey(kManifestPrefix, number));
  batch->Delete(database->meta(), NumberKey(kFlagsPrefix, number));
  batch->Put(database->meta(), NumberKey(kDeletedPrefix, number), "");
}

}  // namespace

absl::Status CheckpointStore::CheckThere(const Committed& committed) const {
  const std::string& name = committed.checkpoint.name();
  if (committed.claimed) {
    return Refusal(v1::ERROR_REASON_CHECKPOINT_IN_USE, name,
                   absl::StrCat(name, " is being deleted with its job"));
  }
  if (!committed.checkpoint.has_delete_time()) return absl::OkStatus();
  return Refusal(
      v1::ERROR_REASON_CHECKPOINT_DELETED, name,
      absl::StrCat(name, " is deleted: `milepost checkpoint restore ", name, "` has it back"));
}

absl::Status CheckpointStore::CheckMayGoLocked(Committed& committed, bool keep_newest,
                                               absl::Time now) {
  const v1::Checkpoint& checkpoint = committed.checkpoint;
  const std::string& name = checkpoint.name();
  if (committed.claimed) return CheckThere(committed);
  if (checkpoint.pinned()) {
    return Refusal(v1::ERROR_REASON_CHECKPOINT_PINNED, name,
                   absl::StrCat(name, " is pinned: unpin it first"));
  }
  if (committed.keepers > 0) {
    return Refusal(v1::ERROR_REASON_CHECKPOINT_IN_USE, name,
                   absl::StrCat(name, " is what a job is being made to begin with"));
  }
  const std::optional<v1::Checkpoint> newest = NewestLocked(checkpoint.job());
  if (keep_newest && newest.has_value() && newest->name() == name) {
    return Refusal(v1::ERROR_REASON_CHECKPOINT_NEWEST, name,
                   absl::StrCat(name, " is the newest checkpoint of ", checkpoint.job(),
                                ", which is not over: it would lose its progress"));
  }
  if (committed.readers == 0 || committed.hold.Ends(now)) return absl::OkStatus();
  const absl::Duration left = absl::Trunc(committed.hold.Left(now), absl::Seconds(1));
  return Refusal(
      v1::ERROR_REASON_CHECKPOINT_IN_USE, name,
      absl::StrCat(name, " is being read: try again later; reading keeps it for another ",
                   absl::FormatDuration(left), " at most"));
}

v1::Checkpoint CheckpointStore::Described(const Committed& committed) const {
  v1::Checkpoint checkpoint = committed.checkpoint;
  if (!checkpoint.has_delete_time()) return checkpoint;
  *checkpoint.mutable_purge_time() =
      ToProto(FromProto(checkpoint.delete_time()) + options_.bin_time);
  return checkpoint;
}

absl::Status CheckpointStore::DeleteLocked(int64_t number) { return DeleteAllLocked({number}); }

absl::Status CheckpointStore::Delete(const std::string& name, bool keep_newest, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  MP_ASSIGN_OR_RETURN(Committed * committed, FindCommittedLocked(name));
  MP_RETURN_IF_ERROR(CheckMayGoLocked(*committed, keep_newest, now));
  return DeleteLocked(CheckpointNumber(name));
}

absl::Status CheckpointStore::Bin(const std::string& name, bool keep_newest, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  MP_ASSIGN_OR_RETURN(Committed * committed, FindCommittedLocked(name));
  if (committed->checkpoint.has_delete_time() && !committed->claimed) return absl::OkStatus();
  MP_RETURN_IF_ERROR(CheckMayGoLocked(*committed, keep_newest, SteadyNow()));
  v1::Checkpoint deleted = committed->checkpoint;
  *deleted.mutable_delete_time() = ToProto(now);
  MP_RETURN_IF_ERROR(PutFlagsLocked(deleted));
  committed->checkpoint = deleted;
  return absl::OkStatus();
}

absl::StatusOr<v1::Checkpoint> CheckpointStore::Restore(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  MP_ASSIGN_OR_RETURN(Committed * committed, FindCommittedLocked(name));
  if (committed->claimed) return CheckThere(*committed);
  if (!committed->checkpoint.has_delete_time()) return committed->checkpoint;
  v1::Checkpoint restored = committed->checkpoint;
  restored.clear_delete_time();
  MP_RETURN_IF_ERROR(PutFlagsLocked(restored));
  committed->checkpoint = restored;
  committed->hold = {};
  return restored;
}

// The oldest first.
std::vector<int64_t> CheckpointStore::BinnedLocked() const {
  std::vector<std::pair<absl::Time, int64_t>> binned;
  for (const auto& [number, committed] : committed_) {
    const v1::Checkpoint& checkpoint = committed.checkpoint;
    if (!checkpoint.has_delete_time() || committed.claimed) continue;
    binned.emplace_back(FromProto(checkpoint.delete_time()), number);
  }
  std::sort(binned.begin(), binned.end());
  std::vector<int64_t> numbers;
  for (const auto& [time, number] : binned) numbers.push_back(number);
  return numbers;
}

absl::Status CheckpointStore::DeleteAllLocked(absl::Span<const int64_t> numbers) {
  if (numbers.empty()) return absl::OkStatus();
  rocksdb::WriteBatch batch;
  for (const int64_t number : numbers) AddDeletion(database_, number, &batch);
  MP_RETURN_IF_ERROR(database_->Write(&batch, /*sync=*/true, Database::Space::kFrees));
  for (const int64_t number : numbers) {
    committed_.erase(number);
    deleter_.Add(number);
  }
  return absl::OkStatus();
}

absl::Status CheckpointStore::EmptyBin(absl::Time now) {
  constexpr size_t kMostAtOnce = 1000;
  if (database_->damage().InRecords()) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  MP_ASSIGN_OR_RETURN(const uint64_t free, options_.free_bytes(options_.staging_dir));
  const auto floor = static_cast<int64_t>(2 * options_.margin_bytes);
  int64_t lacks = floor - static_cast<int64_t>(std::min<uint64_t>(free, floor));
  // What was deleted already has still to give up its space.
  if (!deleter_.Await(absl::InfinitePast())) lacks = 0;
  std::vector<int64_t> gone;
  size_t over = 0;  // of these
  for (const int64_t number : BinnedLocked()) {
    const v1::Checkpoint& checkpoint = committed_.at(number).checkpoint;
    const bool in_time = FromProto(checkpoint.delete_time()) + options_.bin_time > now;
    if ((in_time && lacks <= 0) || gone.size() == kMostAtOnce) break;
    lacks -= checkpoint.bytes();
    gone.push_back(number);
    if (!in_time) over = gone.size();
  }
  // Where all of it would not do, nothing is lost for it.
  if (lacks > 0) gone.resize(over);
  return DeleteAllLocked(gone);
}

absl::Status CheckpointStore::EmptyBinFor(const v1::BeginCheckpointRequest& request) {
  if (database_->damage().InRecords()) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  MP_ASSIGN_OR_RETURN(const uint64_t free, options_.free_bytes(options_.staging_dir));
  int64_t lacks = request.bytes() + ReservedLocked() + static_cast<int64_t>(options_.margin_bytes) -
                  static_cast<int64_t>(free);
  std::vector<int64_t> gone;
  for (const int64_t number : BinnedLocked()) {
    if (lacks <= 0) break;
    lacks -= committed_.at(number).checkpoint.bytes();
    gone.push_back(number);
  }
  // It would not fit all the same: nothing is lost for it.
  return lacks > 0 ? absl::OkStatus() : DeleteAllLocked(gone);
}

absl::StatusOr<std::vector<v1::Checkpoint>> CheckpointStore::ClaimJob(const std::string& job) {
  absl::MutexLock lock(&mutex_);
  std::vector<Committed*> own;
  for (auto& [number, committed] : committed_) {
    if (committed.checkpoint.job() != job) continue;
    MP_RETURN_IF_ERROR(CheckMayGoLocked(committed, /*keep_newest=*/false, SteadyNow()));
    own.push_back(&committed);
  }
  std::vector<v1::Checkpoint> claimed;
  for (Committed* committed : own) {
    committed->claimed = true;
    claimed.push_back(committed->checkpoint);
  }
  return claimed;
}

void CheckpointStore::ReleaseJob(const std::string& job) {
  absl::MutexLock lock(&mutex_);
  for (auto& [number, committed] : committed_) {
    if (committed.checkpoint.job() == job) committed.claimed = false;
  }
}

void CheckpointStore::AddClaimed(const std::string& job, rocksdb::WriteBatch* batch) {
  absl::MutexLock lock(&mutex_);
  for (const auto& [number, committed] : committed_) {
    if (committed.claimed && committed.checkpoint.job() == job) {
      AddDeletion(database_, number, batch);
    }
  }
}

void CheckpointStore::ClaimedGone(const std::string& job) {
  absl::MutexLock lock(&mutex_);
  for (auto it = committed_.begin(); it != committed_.end();) {
    if (!it->second.claimed || it->second.checkpoint.job() != job) {
      ++it;
      continue;
    }
    deleter_.Add(it->first);
    it = committed_.erase(it);
  }
}

}  // namespace milepost::coordinator
