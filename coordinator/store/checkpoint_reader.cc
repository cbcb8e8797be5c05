// Reading, verifying, flags and retention.
#include "coordinator/store/open_checkpoint.h"

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>
#include <spdlog/spdlog.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/coverage.h"
#include "coordinator/store/damage.h"
#include "coordinator/store/database.h"
#include "coordinator/store/keys.h"
#include "coordinator/store/manifest.h"

namespace milepost::coordinator {

namespace {

constexpr int kMaxDamagedListed = 100;

bool NewerForResuming(const v1::Checkpoint& a, const v1::Checkpoint& b) {
  return a.step() != b.step() ? a.step() > b.step()
                              : CheckpointNumber(a.name()) > CheckpointNumber(b.name());
}

// Indices of the chunks that overlap a range. Ranges of one tensor are merged first, so each chunk
// is found by binary search.
absl::StatusOr<std::vector<int>> FindChunks(const v1::StoredManifest& stored,
                                            const std::vector<v1::TensorRange>& ranges) {
  std::vector<int> wanted;
  if (ranges.empty()) {
    for (int i = 0; i < stored.chunks_size(); ++i) wanted.push_back(i);
    return wanted;
  }
  std::vector<std::vector<std::pair<int64_t, int64_t>>> by_tensor(stored.manifest().tensors_size());
  for (const v1::TensorRange& range : ranges) {
    if (range.tensor() < 0 || range.tensor() >= stored.manifest().tensors_size()) {
      return absl::InvalidArgumentError(absl::StrCat("ranges: tensor ", range.tensor(), " of ",
                                                     stored.manifest().tensors_size()));
    }
    if (range.begin() < range.end()) {
      by_tensor[range.tensor()].emplace_back(range.begin(), range.end());
    }
  }
  for (auto& intervals : by_tensor) {
    std::sort(intervals.begin(), intervals.end());
    std::vector<std::pair<int64_t, int64_t>> merged;
    for (const auto& interval : intervals) {
      if (!merged.empty() && interval.first <= merged.back().second) {
        merged.back().second = std::max(merged.back().second, interval.second);
      } else {
        merged.push_back(interval);
      }
    }
    intervals = std::move(merged);
  }
  for (int i = 0; i < stored.chunks_size(); ++i) {
    const v1::StoredChunk& chunk = stored.chunks(i);
    const auto& intervals = by_tensor[chunk.tensor()];
    auto first = std::upper_bound(
        intervals.begin(), intervals.end(), chunk.begin(),
        [](int64_t begin, const auto& interval) { return begin < interval.second; });
    if (first != intervals.end() && first->first < chunk.end()) wanted.push_back(i);
  }
  return wanted;
}

}  // namespace

absl::StatusOr<CheckpointStore::Committed*> CheckpointStore::FindCommittedLocked(
    const std::string& name) {
  auto found = committed_.find(CheckpointNumber(name));
  if (found != committed_.end()) return &found->second;
  return NoSuchCheckpoint(name);
}

absl::StatusOr<v1::StoredManifest> CheckpointStore::LoadManifest(int64_t number) {
  std::string stored;
  const absl::Status read =
      database_->Get(database_->meta(), NumberKey(kManifestPrefix, number), &stored);
  if (absl::IsInternal(read)) return absl::UnavailableError(read.message());  // as of a chunk
  MP_RETURN_IF_ERROR(read);
  return DecodeManifest(stored);
}

absl::StatusOr<v1::CheckpointManifest> CheckpointStore::Get(const std::string& name) {
  v1::Checkpoint checkpoint;
  {
    absl::MutexLock lock(&mutex_);
    MP_ASSIGN_OR_RETURN(Committed * committed, FindCommittedLocked(name));
    checkpoint = Described(*committed);
  }
  MP_ASSIGN_OR_RETURN(v1::StoredManifest stored, LoadManifest(CheckpointNumber(name)));
  *stored.mutable_manifest()->mutable_checkpoint() = checkpoint;  // with its flags
  return std::move(*stored.mutable_manifest());
}

absl::StatusOr<v1::Checkpoint> CheckpointStore::Owner(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  if (auto committed = FindCommittedLocked(name); committed.ok()) return (*committed)->checkpoint;
  MP_ASSIGN_OR_RETURN(std::shared_ptr<OpenCheckpoint> open, FindOpenLocked(name));
  v1::Checkpoint checkpoint;
  checkpoint.set_name(name);
  checkpoint.set_job(open->request.job());
  checkpoint.set_generation(open->request.generation());
  checkpoint.set_step(open->request.step());
  return checkpoint;
}

std::vector<v1::Checkpoint> CheckpointStore::List(const std::string& job, bool deleted) {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::Checkpoint> list;
  for (auto it = committed_.rbegin(); it != committed_.rend(); ++it) {
    const v1::Checkpoint& checkpoint = it->second.checkpoint;
    if (checkpoint.has_delete_time() != deleted) continue;
    if (job.empty() || checkpoint.job() == job) list.push_back(Described(it->second));
  }
  return list;
}

std::optional<v1::Checkpoint> CheckpointStore::NewestLocked(const std::string& job) {
  std::optional<v1::Checkpoint> newest;
  std::optional<v1::Checkpoint> unreadable;
  for (const auto& [number, committed] : committed_) {
    const v1::Checkpoint& checkpoint = committed.checkpoint;
    if (checkpoint.job() != job || checkpoint.damaged()) continue;
    if (checkpoint.has_delete_time()) continue;
    auto& best = committed.trouble.lasts ? unreadable : newest;
    if (!best.has_value() || NewerForResuming(checkpoint, *best)) best = checkpoint;
  }
  return newest.has_value() ? newest : unreadable;
}

std::optional<v1::Checkpoint> CheckpointStore::Newest(const std::string& job) {
  absl::MutexLock lock(&mutex_);
  return NewestLocked(job);
}

CheckpointStore::Usage CheckpointStore::CountBytes() {
  absl::MutexLock lock(&mutex_);
  Usage usage;
  for (const auto& [number, committed] : committed_) {
    const v1::Checkpoint& checkpoint = committed.checkpoint;
    (checkpoint.has_delete_time() ? usage.deleted : usage.kept) += checkpoint.bytes();
  }
  return usage;
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointStore::Read(
    const std::string& name, const std::vector<v1::TensorRange>& ranges) {
  const int64_t number = CheckpointNumber(name);
  v1::Checkpoint checkpoint;
  int troubled = -1;
  {
    absl::MutexLock lock(&mutex_);
    MP_ASSIGN_OR_RETURN(Committed * committed, FindCommittedLocked(name));
    MP_RETURN_IF_ERROR(CheckThere(*committed));
    ++committed->readers;
    checkpoint = committed->checkpoint;
    troubled = committed->trouble.chunk;
  }
  auto stored = LoadManifest(number);
  absl::StatusOr<std::vector<int>> wanted =
      stored.ok() ? FindChunks(*stored, ranges) : stored.status();
  if (!wanted.ok()) {
    ReleaseReader(number, /*keeps=*/false);
    return absl::IsDataLoss(stored.status()) ? RecordDamaged(name, stored.status())
                                             : wanted.status();
  }
  *stored->mutable_manifest()->mutable_checkpoint() = checkpoint;
  return std::unique_ptr<CheckpointReader>(
      new CheckpointReader(this, number, *std::move(stored), *std::move(wanted), troubled));
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointStore::Keep(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  MP_ASSIGN_OR_RETURN(Committed * committed, FindCommittedLocked(name));
  MP_RETURN_IF_ERROR(CheckThere(*committed));
  ++committed->keepers;
  v1::StoredManifest manifest;
  *manifest.mutable_manifest()->mutable_checkpoint() = committed->checkpoint;
  return std::unique_ptr<CheckpointReader>(new CheckpointReader(
      this, CheckpointNumber(name), std::move(manifest), {}, -1, /*keeps=*/true));
}

bool CheckpointStore::IsCommitted(int64_t number) {
  absl::MutexLock lock(&mutex_);
  return committed_.contains(number);
}

void CheckpointStore::ReleaseReader(int64_t number, bool keeps) {
  absl::MutexLock lock(&mutex_);
  const auto found = committed_.find(number);
  if (found == committed_.end()) return;  // deleted while it was read
  --(keeps ? found->second.keepers : found->second.readers);
}

CheckpointReader::CheckpointReader(CheckpointStore* store, int64_t number,
                                   v1::StoredManifest manifest, std::vector<int> wanted,
                                   int troubled, bool keeps)
    : store_(store),
      number_(number),
      manifest_(std::move(manifest)),
      wanted_(std::move(wanted)),
      troubled_(troubled),
      keeps_(keeps) {}

CheckpointReader::~CheckpointReader() { store_->ReleaseReader(number_, keeps_); }

std::string CheckpointReader::DescribeLast() const {
  const v1::StoredChunk& chunk = manifest_.chunks(wanted_[next_ - 1]);
  return DescribeChunk(manifest_.manifest().tensors(chunk.tensor()), chunk.begin(), chunk.end());
}

absl::StatusOr<bool> CheckpointReader::Next(v1::Chunk* chunk) {
  if (next_ >= wanted_.size()) return false;
  const int index = wanted_[next_++];
  const v1::StoredChunk& stored = manifest_.chunks(index);
  chunk->set_tensor(stored.tensor());
  chunk->set_begin(stored.begin());
  chunk->set_end(stored.end());
  chunk->set_xxh3(stored.xxh3());
  rocksdb::ReadOptions options;
  options.verify_checksums = true;
  options.fill_cache = false;
  Database* database = store_->database_;
  const rocksdb::Status status = database->db()->Get(
      options, database->chunks(), ChunkKey(number_, stored.stream(), stored.sequence()),
      chunk->mutable_data());
  const std::string& data = chunk->data();
  unreadable_ = !status.ok() && !status.IsCorruption() && !status.IsNotFound();
  if (!unreadable_ && index == troubled_) cleared_ = store_->CanReadAgain(number_, index);
  const std::string& name = manifest_.manifest().checkpoint().name();
  // Whatever has been read: its deletion ends all reading.
  if (!store_->IsCommitted(number_)) return NoSuchCheckpoint(name);
  if (status.ok() && XXH3_64bits(data.data(), data.size()) == stored.xxh3()) return true;
  // Another error says nothing about what is stored: a mount that was away, too many open files.
  if (unreadable_) {
    return store_->CannotRead(name, index, absl::StrCat(DescribeLast(), ": ", status.ToString()));
  }
  if (absl::Status marked = store_->MarkDamaged(name); !marked.ok()) {
    spdlog::error("{}: cannot be marked as damaged: {}", name, std::string(marked.message()));
  }
  return absl::DataLossError(
      absl::StrCat(name, ": ", DescribeLast(), " is damaged on disk: ",
                   status.ok() ? "its bytes do not match its checksum" : status.ToString()));
}

absl::StatusOr<v1::VerifyCheckpointResponse> CheckpointStore::Verify(
    const std::string& name, const std::function<bool()>& cancelled) {
  int64_t marks = 0;
  {
    absl::MutexLock lock(&mutex_);
    MP_ASSIGN_OR_RETURN(Committed * committed, FindCommittedLocked(name));
    marks = committed->marks;
  }
  MP_ASSIGN_OR_RETURN(std::unique_ptr<CheckpointReader> reader, Read(name, {}));
  v1::VerifyCheckpointResponse response;
  v1::Chunk chunk;
  while (true) {
    if (cancelled()) return absl::CancelledError("the call was cancelled");
    absl::StatusOr<bool> more = reader->Next(&chunk);
    if (reader->unreadable_) return absl::InternalError(more.status().message());
    if (absl::IsNotFound(more.status())) return more.status();
    if (more.ok() && !*more) break;
    response.set_chunks_checked(response.chunks_checked() + 1);
    if (more.ok() || response.damaged_chunks_size() >= kMaxDamagedListed) continue;
    response.add_damaged_chunks(reader->DescribeLast());
  }
  absl::MutexLock lock(&mutex_);
  MP_ASSIGN_OR_RETURN(Committed * committed, FindCommittedLocked(name));
  if (response.damaged_chunks().empty() && marks == committed->marks) {
    MP_RETURN_IF_ERROR(MarkWholeLocked(committed));
  }
  *response.mutable_checkpoint() = committed->checkpoint;
  return response;
}

absl::Status CheckpointStore::PutFlagsLocked(const v1::Checkpoint& checkpoint) {
  rocksdb::WriteBatch batch;
  batch.Put(database_->meta(), NumberKey(kFlagsPrefix, CheckpointNumber(checkpoint.name())),
            EncodeFlags(checkpoint));
  return database_->Write(&batch, /*sync=*/true);
}

absl::Status CheckpointStore::MarkDamaged(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  MP_ASSIGN_OR_RETURN(Committed * committed, FindCommittedLocked(name));
  ++committed->marks;
  if (committed->checkpoint.damaged()) return absl::OkStatus();
  committed->checkpoint.set_damaged(true);  // in memory even when the disk is full
  return PutFlagsLocked(committed->checkpoint);
}

absl::Status CheckpointStore::MarkWholeLocked(Committed* committed) {
  committed->trouble = ReadTrouble();
  if (!committed->checkpoint.damaged()) return absl::OkStatus();
  v1::Checkpoint whole = committed->checkpoint;
  whole.set_damaged(false);
  MP_RETURN_IF_ERROR(PutFlagsLocked(whole));
  committed->checkpoint = whole;
  return absl::OkStatus();
}

absl::Status CheckpointStore::CannotRead(const std::string& name, int chunk,
                                         const std::string& what) {
  const std::string message =
      absl::StrCat(name, ": cannot read ", what, ": look at the data directory's disk or mount");
  absl::MutexLock lock(&mutex_);
  MP_ASSIGN_OR_RETURN(Committed * committed, FindCommittedLocked(name));
  ++committed->marks;
  ReadTrouble& trouble = committed->trouble;
  const ReadTrouble before = trouble;
  trouble.Failed(chunk, SteadyNow());
  const bool is_new = before.since != trouble.since || before.lasts != trouble.lasts;
  if (is_new) spdlog::error("{}", message);  // not at every retry
  const std::optional<v1::Checkpoint> newest = NewestLocked(committed->checkpoint.job());
  const bool is_best = newest.has_value() && newest->name() == name;
  return trouble.lasts && !is_best ? absl::DataLossError(message) : absl::UnavailableError(message);
}

// Its data may be whole, so it is as one that cannot be read, and stays.
absl::Status CheckpointStore::RecordDamaged(const std::string& name, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  MP_ASSIGN_OR_RETURN(Committed * committed, FindCommittedLocked(name));
  ++committed->marks;
  const absl::Time now = SteadyNow();
  committed->trouble = {.chunk = 0, .since = now, .last = now, .lasts = true};
  const std::optional<v1::Checkpoint> newest = NewestLocked(committed->checkpoint.job());
  const bool is_best = newest.has_value() && newest->name() == name;
  return is_best ? absl::UnavailableError(status.message()) : status;
}

bool CheckpointStore::CanReadAgain(int64_t number, int chunk) {
  absl::MutexLock lock(&mutex_);
  const auto found = committed_.find(number);
  if (found == committed_.end()) return false;
  ReadTrouble& trouble = found->second.trouble;
  if (trouble.chunk != chunk) return false;
  trouble = ReadTrouble();
  return true;
}

absl::StatusOr<v1::Checkpoint> CheckpointStore::Pin(const std::string& name, bool pinned) {
  absl::MutexLock lock(&mutex_);
  MP_ASSIGN_OR_RETURN(Committed * committed, FindCommittedLocked(name));
  MP_RETURN_IF_ERROR(CheckThere(*committed));
  v1::Checkpoint changed = committed->checkpoint;
  changed.set_pinned(pinned);
  MP_RETURN_IF_ERROR(PutFlagsLocked(changed));
  committed->checkpoint = changed;
  return changed;
}

bool CheckpointStore::AwaitDeletions(absl::Time deadline) { return deleter_.Await(deadline); }

namespace {

// Of what is sorted by NewerForResuming: the name of the one with the smallest validation loss, of
// several the oldest, after which none was better. Empty: none has a loss.
std::string BestOf(const std::vector<v1::Checkpoint>& checkpoints) {
  const v1::Checkpoint* best = nullptr;
  for (const v1::Checkpoint& one : checkpoints) {
    if (one.damaged() || !one.has_validation_loss()) continue;
    if (best == nullptr || one.validation_loss() <= best->validation_loss()) best = &one;
  }
  return best == nullptr ? "" : best->name();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> CheckpointStore::Retain(const std::string& job,
                                                                 const RetentionRule& rule,
                                                                 absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const std::optional<v1::Checkpoint> newest = NewestLocked(job);
  std::vector<std::string> deleted;
  // What counts as kept may be what cannot be read.
  if (database_->damage().InRecords()) return deleted;
  // All damaged, or not to be read: keep what there is.
  const bool usable =
      newest.has_value() && !committed_.at(CheckpointNumber(newest->name())).trouble.lasts;
  if (!usable) return deleted;
  std::vector<v1::Checkpoint> candidates;
  for (const auto& [number, committed] : committed_) {
    const bool counts = !committed.checkpoint.has_delete_time() && !committed.claimed;
    if (counts && committed.checkpoint.job() == job) candidates.push_back(committed.checkpoint);
  }
  std::sort(candidates.begin(), candidates.end(), NewerForResuming);
  const std::string best = rule.keep_best ? BestOf(candidates) : "";
  int kept = 0;
  for (const v1::Checkpoint& checkpoint : candidates) {
    const int64_t number = CheckpointNumber(checkpoint.name());
    if (committed_.at(number).trouble.lasts) continue;  // may be whole
    if (!checkpoint.damaged() && kept < std::max(1, rule.keep_last)) {
      ++kept;
      continue;
    }
    const bool milestone =
        !checkpoint.damaged() && rule.keep_every > 0 && checkpoint.step() % rule.keep_every == 0;
    Committed& committed = committed_.at(number);
    if (milestone || checkpoint.pinned() || committed.keepers > 0) continue;
    if (checkpoint.name() == best) continue;
    if (rule.awaited.contains(checkpoint.name())) continue;
    if (committed.readers > 0 && !committed.hold.Ends(now)) continue;
    MP_RETURN_IF_ERROR(DeleteLocked(number));
    deleted.push_back(checkpoint.name());
  }
  return deleted;
}

}  // namespace milepost::coordinator
