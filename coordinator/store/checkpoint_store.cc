// Opening, beginning and streams. checkpoint_commit.cc has committing, checkpoint_reader.cc
// reading, retention and flags.
#include "coordinator/store/checkpoint_store.h"

#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/write_batch.h>
#include <spdlog/spdlog.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/error_details.h"
#include "common/proto_time.h"
#include "common/status_macros.h"
#include "coordinator/store/coverage.h"
#include "coordinator/store/damage.h"
#include "coordinator/store/database.h"
#include "coordinator/store/keys.h"
#include "coordinator/store/manifest.h"
#include "coordinator/store/open_checkpoint.h"
#include "coordinator/store/record_scan.h"
#include "coordinator/store/stream_writer_impl.h"
#include "coordinator/store/unnamed_chunks.h"

namespace milepost::coordinator {

namespace {

constexpr int kMaxStreams = 1 << 16;
constexpr int64_t kMostStepOfAnyJob = 1'000'000'000;
// Of tensors' names and shapes, the model and the state.
constexpr size_t kMostDescriptionBytes = 4 << 20;
constexpr int64_t kMaxBytes = int64_t{1} << 56;                  // so that those of many have a sum
constexpr absl::Duration kDeletionPatience = absl::Seconds(15);  // less than a caller has
constexpr absl::Duration kCancelPoll = absl::Milliseconds(200);

void RemoveFile(const std::string& file) {
  if (!file.empty()) std::remove(file.c_str());
}

absl::Status WipeFolder(const std::string& dir) {
  std::error_code error;
  std::filesystem::remove_all(dir, error);
  if (!error) std::filesystem::create_directories(dir, error);
  if (!error) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("staging folder ", dir, ": ", error.message()));
}

}  // namespace

int64_t CheckpointNumber(absl::string_view name) {
  int64_t number = 0;
  if (!absl::ConsumePrefix(&name, "checkpoints/") || !absl::SimpleAtoi(name, &number)) return 0;
  return number > 0 && absl::StrCat(number) == name ? number : 0;
}

absl::Status NoSuchCheckpoint(absl::string_view name) {
  return Refusal(v1::ERROR_REASON_CHECKPOINT_NOT_FOUND, name,
                 absl::StrCat("there is no checkpoint ", name));
}

CheckpointStore::CheckpointStore(Database* database, CheckpointStoreOptions options)
    : database_(database), options_(std::move(options)), deleter_(database) {}

CheckpointStore::~CheckpointStore() = default;

absl::StatusOr<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(
    Database* database, CheckpointStoreOptions options) {
  std::unique_ptr<CheckpointStore> store(new CheckpointStore(database, std::move(options)));
  MP_RETURN_IF_ERROR(WipeFolder(store->options_.staging_dir));
  MP_RETURN_IF_ERROR(store->Load());
  return store;
}

absl::Status CheckpointStore::Load() {
  std::set<int64_t> known;
  absl::MutexLock lock(&mutex_);
  MP_RETURN_IF_ERROR(LoadNextNumberLocked());
  MP_RETURN_IF_ERROR(ScanRecords(
      *database_, kManifestPrefix,
      [&](absl::string_view key, absl::string_view value)
          ABSL_NO_THREAD_SAFETY_ANALYSIS -> absl::Status {
            if (key.size() != 9)
              return absl::DataLossError("the store has a damaged checkpoint key");
            const auto number = static_cast<int64_t>(ReadBe64(key.substr(1)));
            known.insert(number);
            auto manifest = DecodeManifest(value);
            if (!manifest.ok()) {
              spdlog::error("checkpoints/{}: {}; it cannot be used", number,
                            std::string(manifest.status().message()));
              return absl::OkStatus();
            }
            Committed committed{.checkpoint = manifest->manifest().checkpoint()};
            std::string flags;
            absl::Status status =
                database_->Get(database_->meta(), NumberKey(kFlagsPrefix, number), &flags);
            if (!status.ok() && !absl::IsNotFound(status)) return status;
            DecodeFlags(flags, &committed.checkpoint);
            committed_[number] = std::move(committed);
            return absl::OkStatus();
          }));
  return FinishDeletions(known);
}

// Only what a record says is to go. Chunks that nothing names may be all that is left of a
// checkpoint whose manifest was lost.
absl::Status CheckpointStore::FinishDeletions(const std::set<int64_t>& known) {
  std::set<int64_t> deleted;
  MP_RETURN_IF_ERROR(
      ScanRecords(*database_, kDeletedPrefix, [&](absl::string_view key, absl::string_view) {
        if (key.size() != 9) return absl::DataLossError("the store has a damaged deletion key");
        const auto number = static_cast<int64_t>(ReadBe64(key.substr(1)));
        if (!known.contains(number)) deleted.insert(number);
        return absl::OkStatus();
      }));
  std::set<int64_t> named = known;
  named.insert(deleted.begin(), deleted.end());
  for (const ChunkFiles& chunks : ChunksBeside(*database_, named)) {
    spdlog::error(
        "checkpoints/{}: has {} bytes of chunks and no record; they are kept "
        "(`milepost-coordinator unnamed-chunks` lists and removes such)",
        chunks.checkpoint, chunks.bytes);
  }
  for (int64_t number : deleted) deleter_.Add(number);
  return absl::OkStatus();
}

absl::Status CheckpointStore::LoadNextNumberLocked() {
  std::string stored;
  const absl::Status status = database_->Get(database_->meta(), kNextCheckpointKey, &stored);
  if (absl::IsNotFound(status)) return absl::OkStatus();
  MP_RETURN_IF_ERROR(status);
  if (stored.size() != 8) return absl::DataLossError("the checkpoint counter is damaged");
  next_number_ = static_cast<int64_t>(ReadBe64(stored));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> CheckpointStore::NextNumberLocked() {
  std::string next;
  AppendBe64(static_cast<uint64_t>(next_number_ + 1), &next);
  rocksdb::WriteBatch batch;
  batch.Put(database_->meta(), kNextCheckpointKey, next);
  MP_RETURN_IF_ERROR(database_->Write(&batch, /*sync=*/true));
  return next_number_++;
}

int64_t CheckpointStore::CountReserved() {
  absl::MutexLock lock(&mutex_);
  return ReservedLocked();
}

int64_t CheckpointStore::ReservedLocked() const {
  int64_t reserved = 0;
  for (const auto& [number, open] : open_) {
    reserved += std::max<int64_t>(0, open->request.bytes() - open->written_bytes);
  }
  return reserved;
}

absl::Status CheckpointStore::ReserveLocked(const v1::BeginCheckpointRequest& request) {
  const int64_t reserved = ReservedLocked();
  MP_ASSIGN_OR_RETURN(const uint64_t free, options_.free_bytes(options_.staging_dir));
  const uint64_t needed = static_cast<uint64_t>(request.bytes() + reserved) + options_.margin_bytes;
  if (needed <= free) return absl::OkStatus();
  return Refusal(
      v1::ERROR_REASON_DISK_FULL, request.job(),
      absl::StrCat("no space for a checkpoint of ", request.bytes(), " bytes: ", free,
                   " are free on the disk of ", database_->dir(), ", ", reserved,
                   " of them reserved by ", open_.size(), " open checkpoints and ",
                   options_.margin_bytes, " kept back; delete checkpoints or free some space"));
}

absl::Status CheckpointStore::CheckEverFits(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  MP_ASSIGN_OR_RETURN(const uint64_t free, options_.free_bytes(options_.staging_dir));
  int64_t stored = 0;
  for (const auto& [number, committed] : committed_) stored += committed.checkpoint.bytes();
  const auto room = static_cast<int64_t>(free) + stored;
  if (bytes + static_cast<int64_t>(options_.margin_bytes) <= room) return absl::OkStatus();
  return Refusal(
      v1::ERROR_REASON_DISK_FULL, "",
      absl::StrCat("no checkpoint of this job would ever fit on the coordinator's disk, so nothing "
                   "that it learns could be saved: one takes ",
                   bytes, " bytes and ", options_.margin_bytes, " are kept back; ", free,
                   " are free, and all checkpoints there take ", stored,
                   "; it needs a larger disk"));
}

absl::StatusOr<std::string> CheckpointStore::FindTwinLocked(
    const v1::BeginCheckpointRequest& request) {
  for (const auto& [number, committed] : committed_) {
    const v1::Checkpoint& checkpoint = committed.checkpoint;
    if (checkpoint.job() == request.job() && checkpoint.generation() == request.generation() &&
        checkpoint.step() == request.step()) {
      return Refusal(v1::ERROR_REASON_CHECKPOINT_COMMITTED, checkpoint.name(),
                     absl::StrCat(checkpoint.name(), " is already committed"));
    }
  }
  for (const auto& [number, open] : open_) {
    const v1::BeginCheckpointRequest& twin = open->request;
    if (twin.job() != request.job() || twin.generation() != request.generation() ||
        twin.step() != request.step()) {
      continue;
    }
    if (twin.streams() != request.streams() || twin.tensors_size() != request.tensors_size() ||
        twin.bytes() != request.bytes()) {
      return absl::InvalidArgumentError(absl::StrCat(
          open->name, " was begun with ", twin.bytes(), " bytes of ", twin.tensors_size(),
          " tensors in ", twin.streams(), " streams, not ", request.bytes(), " bytes of ",
          request.tensors_size(), " tensors in ", request.streams(), " streams"));
    }
    return open->name;
  }
  return std::string();
}

// A rank begins a later step only once its part of the earlier one is committed or given up: what
// is still open of earlier steps can never be complete, and a rank that comes late with one is told
// so instead of waiting for the others for ever.
absl::Status CheckpointStore::SupersedeLocked(const v1::BeginCheckpointRequest& request) {
  const auto refuse = [&](const std::string& name, int64_t step) {
    return Refusal(v1::ERROR_REASON_CHECKPOINT_SUPERSEDED, name,
                   absl::StrCat("step ", request.step(), " is superseded: ", name, " of step ",
                                step, " was begun since"));
  };
  for (const auto& [number, committed] : committed_) {
    const v1::Checkpoint& other = committed.checkpoint;
    if (other.job() == request.job() && other.generation() == request.generation() &&
        other.step() > request.step()) {
      return refuse(other.name(), other.step());
    }
  }
  std::vector<std::shared_ptr<OpenCheckpoint>> earlier;
  for (const auto& [number, open] : open_) {
    if (open->request.job() != request.job() ||
        open->request.generation() != request.generation()) {
      continue;
    }
    if (open->request.step() > request.step()) return refuse(open->name, open->request.step());
    if (!open->committing) earlier.push_back(open);
  }
  for (const auto& open : earlier) {
    DropLocked(open, Refusal(v1::ERROR_REASON_CHECKPOINT_SUPERSEDED, open->name,
                             absl::StrCat(open->name, " is superseded by the one of step ",
                                          request.step())));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckpointStore::Begin(const v1::BeginCheckpointRequest& request) {
  absl::StatusOr<std::string> name = TryBegin(request);
  if (!absl::IsResourceExhausted(name.status())) return name;
  // One at a time: what one caller empties the bin for may do for the others, ranks of one job. And
  // not before what was deleted already has given up its space.
  absl::MutexLock emptying(&emptying_);
  const absl::Time deadline = absl::Now() + kDeletionPatience;
  const bool all_gone = deleter_.Await(deadline);
  name = TryBegin(request);
  if (!all_gone) return name;
  if (!absl::IsResourceExhausted(name.status())) return name;
  MP_RETURN_IF_ERROR(EmptyBinFor(request));
  deleter_.Await(deadline);
  return TryBegin(request);
}

absl::StatusOr<std::string> CheckpointStore::TryBegin(const v1::BeginCheckpointRequest& begun) {
  MP_RETURN_IF_ERROR(CheckTensors(begun.tensors()));
  v1::BeginCheckpointRequest request = begun;  // whoever says less than it sends has room for that
  request.set_bytes(std::max(begun.bytes(), BytesOf(begun.tensors())));
  if (begun.streams() < 1 || begun.streams() > kMaxStreams || begun.bytes() < 0 ||
      request.bytes() > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("streams: must be in [1, ", kMaxStreams, "]; bytes: in [0, ", kMaxBytes, "]"));
  }
  if (begun.step() < 0 || begun.step() > kMostStepOfAnyJob) {
    return absl::InvalidArgumentError(
        absl::StrCat("step: must be in [0, ", kMostStepOfAnyJob, "]"));
  }
  // It is kept, and read into memory by whoever looks at the checkpoint, beside the bytes.
  if (begun.ByteSizeLong() > kMostDescriptionBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the description of the checkpoint has ",
                                                   begun.ByteSizeLong(), " bytes, of at most ",
                                                   kMostDescriptionBytes));
  }
  AbortOlder(request.job(), request.generation());
  absl::MutexLock lock(&mutex_);
  MP_ASSIGN_OR_RETURN(std::string twin, FindTwinLocked(request));
  if (!twin.empty()) return twin;
  MP_RETURN_IF_ERROR(SupersedeLocked(request));
  MP_RETURN_IF_ERROR(ReserveLocked(request));
  auto open = std::make_shared<OpenCheckpoint>();
  MP_ASSIGN_OR_RETURN(open->number, NextNumberLocked());
  open->name = absl::StrCat("checkpoints/", open->number);
  open->request = request;
  for (const v1::TensorInfo& tensor : request.tensors()) {
    open->elements.push_back(*ElementCount(tensor));
    open->element_bytes.push_back(DtypeBytes(tensor.dtype()));
  }
  open_[open->number] = open;
  return open->name;
}

absl::StatusOr<std::shared_ptr<OpenCheckpoint>> CheckpointStore::FindOpenLocked(
    const std::string& name) {
  auto found = open_.find(CheckpointNumber(name));
  if (found != open_.end()) return found->second;
  if (committed_.contains(CheckpointNumber(name))) {
    return Refusal(v1::ERROR_REASON_CHECKPOINT_COMMITTED, name,
                   absl::StrCat(name, " is already committed"));
  }
  return Refusal(v1::ERROR_REASON_CHECKPOINT_NOT_FOUND, name,
                 absl::StrCat("no checkpoint ", name, " is being written: begin again"));
}

absl::StatusOr<std::unique_ptr<StreamWriter>> CheckpointStore::OpenStream(const std::string& name,
                                                                          int64_t generation,
                                                                          int32_t stream) {
  std::unique_ptr<StreamWriter::Impl> impl;
  {
    absl::MutexLock lock(&mutex_);
    MP_ASSIGN_OR_RETURN(std::shared_ptr<OpenCheckpoint> open, FindOpenLocked(name));
    if (open->request.generation() != generation) {
      return Refusal(v1::ERROR_REASON_GENERATION_OVER, name,
                     absl::StrCat(name, " belongs to generation ", open->request.generation(),
                                  ", not ", generation));
    }
    if (stream < 0 || stream >= open->request.streams()) {
      return absl::InvalidArgumentError(
          absl::StrCat("stream: must be in [0, ", open->request.streams(), "), not ", stream));
    }
    std::string file = absl::StrCat(options_.staging_dir, "/", open->number, "-", stream, "-",
                                    ++files_made_, ".sst");
    impl = std::make_unique<StreamWriter::Impl>(this, open, stream, std::move(file));
  }
  if (absl::Status status = impl->Start(); !status.ok()) {
    StreamFailed(impl->open, status);
    return status;
  }
  return std::unique_ptr<StreamWriter>(new StreamWriter(std::move(impl)));
}

absl::Status CheckpointStore::EndedReason(const OpenCheckpoint& open) {
  absl::MutexLock lock(&mutex_);
  return open.ended;
}

// A full disk ends the whole checkpoint, so that its space is free again; a bad message only its
// stream.
void CheckpointStore::StreamFailed(const std::shared_ptr<OpenCheckpoint>& open,
                                   const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  DropLocked(open, status);
}

absl::Status CheckpointStore::StreamFinished(const std::shared_ptr<OpenCheckpoint>& open,
                                             int32_t stream, const std::string& file,
                                             std::vector<v1::StoredChunk> chunks) {
  absl::MutexLock lock(&mutex_);
  if (open->committing) {
    return Refusal(
        v1::ERROR_REASON_CHECKPOINT_IN_USE, open->name,
        absl::StrCat(open->name, " is being committed: stream ", stream, " comes too late"));
  }
  MP_RETURN_IF_ERROR(open->ended);
  OpenCheckpoint::Stream& slot = open->streams[stream];
  RemoveFile(slot.file);
  slot.file = file;
  slot.chunks = std::move(chunks);
  streams_changed_.SignalAll();
  return absl::OkStatus();
}

// By value: what open_ held may be the last reference.
void CheckpointStore::DropLocked(
    std::shared_ptr<OpenCheckpoint> open,  // NOLINT(performance-unnecessary-value-param)
    absl::Status reason) {
  if (!open->ended.ok() || open_.erase(open->number) == 0) return;
  open->ended = std::move(reason);
  open->dead = true;
  for (const auto& [stream, slot] : open->streams) RemoveFile(slot.file);
  open->streams.clear();
  streams_changed_.SignalAll();
}

absl::Status CheckpointStore::WaitStreams(const std::string& name, absl::Time deadline,
                                          const std::function<bool()>& cancelled) {
  absl::MutexLock lock(&mutex_);
  if (committed_.contains(CheckpointNumber(name))) return absl::OkStatus();
  MP_ASSIGN_OR_RETURN(std::shared_ptr<OpenCheckpoint> open, FindOpenLocked(name));
  while (open->ended.ok() && !open->committing &&
         static_cast<int>(open->streams.size()) < open->request.streams()) {
    if (cancelled()) return absl::CancelledError("the call was cancelled");
    const absl::Time now = absl::Now();
    if (now >= deadline) {
      std::vector<int> missing;
      for (int i = 0; i < open->request.streams() && missing.size() < 20; ++i) {
        if (!open->streams.contains(i)) missing.push_back(i);
      }
      return Refusal(v1::ERROR_REASON_CHECKPOINT_INCOMPLETE, name,
                     absl::StrCat(name, ": of ", open->request.streams(), " streams, ",
                                  open->request.streams() - static_cast<int>(open->streams.size()),
                                  " are not written: ", absl::StrJoin(missing, ", ")));
    }
    streams_changed_.WaitWithDeadline(&mutex_, std::min(deadline, now + kCancelPoll));
  }
  return committed_.contains(open->number) ? absl::OkStatus() : open->ended;
}

absl::Status CheckpointStore::Abort(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  MP_ASSIGN_OR_RETURN(std::shared_ptr<OpenCheckpoint> open, FindOpenLocked(name));
  if (open->committing) {
    return Refusal(v1::ERROR_REASON_CHECKPOINT_IN_USE, name,
                   absl::StrCat(name, " is being committed"));
  }
  DropLocked(open, Refusal(v1::ERROR_REASON_CHECKPOINT_DROPPED, name,
                           absl::StrCat(name, " was given up")));
  return absl::OkStatus();
}

void CheckpointStore::AbortOlder(const std::string& job, int64_t generation) {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<OpenCheckpoint>> older;
  for (const auto& [number, open] : open_) {
    if (open->request.job() == job && open->request.generation() < generation &&
        !open->committing) {
      older.push_back(open);
    }
  }
  for (const auto& open : older) {
    DropLocked(open, Refusal(v1::ERROR_REASON_CHECKPOINT_DROPPED, open->name,
                             absl::StrCat(open->name, ": generation ", open->request.generation(),
                                          " of ", job, " is over")));
  }
}

}  // namespace milepost::coordinator
