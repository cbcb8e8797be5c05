// From all streams on disk to a visible checkpoint.
#include <rocksdb/db.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/write_batch.h>

#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/error_details.h"
#include "common/proto_time.h"
#include "common/status_macros.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/coverage.h"
#include "coordinator/store/damage.h"
#include "coordinator/store/database.h"
#include "coordinator/store/keys.h"
#include "coordinator/store/manifest.h"
#include "coordinator/store/open_checkpoint.h"

namespace milepost::coordinator {

struct PreparedCheckpoint::Work {
  CheckpointStore* store = nullptr;
  std::shared_ptr<OpenCheckpoint> open;
  v1::StoredManifest manifest;
  std::string manifest_file;
};

PreparedCheckpoint::PreparedCheckpoint(v1::Checkpoint checkpoint, std::unique_ptr<Work> work)
    : checkpoint_(std::move(checkpoint)), work_(std::move(work)), committed_(work_ == nullptr) {}

PreparedCheckpoint::PreparedCheckpoint(PreparedCheckpoint&& other) noexcept = default;

PreparedCheckpoint::~PreparedCheckpoint() {
  if (work_ == nullptr) return;
  if (committed_) {
    std::remove(work_->manifest_file.c_str());
    work_->store->EndCommit(work_->open, absl::OkStatus(), /*drop=*/false).IgnoreError();
    return;
  }
  Drop(Refusal(v1::ERROR_REASON_CHECKPOINT_DROPPED, checkpoint_.name(),
               absl::StrCat(checkpoint_.name(), " was given up")));
}

// What is left to do on disk waits for the destructor or Drop: the caller may hold a lock.
absl::Status PreparedCheckpoint::Publish() {
  MP_CHECK(work_ != nullptr && !committed_);
  MP_RETURN_IF_ERROR(work_->store->Publish(work_->open, work_->manifest, work_->manifest_file));
  committed_ = true;
  return absl::OkStatus();
}

void PreparedCheckpoint::Drop(const absl::Status& why) {
  if (work_ == nullptr || committed_) return;
  std::remove(work_->manifest_file.c_str());
  work_->store->EndCommit(work_->open, why, /*drop=*/true).IgnoreError();
  work_ = nullptr;
}

absl::Status CheckpointStore::EndCommit(const std::shared_ptr<OpenCheckpoint>& open,
                                        const absl::Status& status, bool drop) {
  absl::MutexLock lock(&mutex_);
  open->committing = false;
  if (drop) DropLocked(open, status);
  streams_changed_.SignalAll();
  return status;
}

absl::StatusOr<std::shared_ptr<OpenCheckpoint>> CheckpointStore::ClaimCommit(
    const std::string& name) {
  absl::MutexLock lock(&mutex_);
  if (committed_.contains(CheckpointNumber(name))) return nullptr;
  MP_ASSIGN_OR_RETURN(std::shared_ptr<OpenCheckpoint> open, FindOpenLocked(name));
  while (open->committing) streams_changed_.Wait(&mutex_);
  if (committed_.contains(open->number)) return nullptr;
  MP_RETURN_IF_ERROR(open->ended);
  open->committing = true;
  return open;
}

absl::StatusOr<v1::StoredManifest> CheckpointStore::BuildManifest(const OpenCheckpoint& open,
                                                                  absl::Time now) {
  const v1::BeginCheckpointRequest& request = open.request;
  v1::StoredManifest stored;
  std::vector<v1::StoredChunk> chunks;
  int64_t bytes = 0;
  for (const auto& [stream, slot] : open.streams) {
    for (const v1::StoredChunk& chunk : slot.chunks) {
      chunks.push_back(chunk);
      *stored.add_chunks() = chunk;
      bytes += (chunk.end() - chunk.begin()) * open.element_bytes[chunk.tensor()];
    }
  }
  if (absl::Status status = CheckCoverage(request.tensors(), std::move(chunks)); !status.ok()) {
    return Refusal(v1::ERROR_REASON_CHECKPOINT_INCOMPLETE, open.name,
                   absl::StrCat(open.name, ": ", status.message()));
  }
  v1::CheckpointManifest* manifest = stored.mutable_manifest();
  *manifest->mutable_tensors() = request.tensors();
  *manifest->mutable_state() = request.state();
  manifest->set_model_yaml(request.model_yaml());
  v1::Checkpoint* checkpoint = manifest->mutable_checkpoint();
  checkpoint->set_name(open.name);
  checkpoint->set_job(request.job());
  checkpoint->set_step(request.step());
  checkpoint->set_generation(request.generation());
  checkpoint->set_bytes(bytes);
  checkpoint->set_chunks(stored.chunks_size());
  const v1::TrainerState& state = request.state();
  if (state.step() > 0 && state.validation_step() == state.step() &&
      std::isfinite(state.validation_loss())) {
    checkpoint->set_validation_loss(state.validation_loss());
  }
  *checkpoint->mutable_create_time() = ToProto(now);
  return stored;
}

absl::StatusOr<std::string> CheckpointStore::WriteManifestFile(int64_t number,
                                                               const v1::StoredManifest& manifest) {
  const std::string file = absl::StrCat(options_.staging_dir, "/", number, "-manifest.sst");
  // It says whose it is: where the list of tables is damaged, repairing drops what does not.
  rocksdb::SstFileWriter sst(rocksdb::EnvOptions(), MetaFileOptions(), database_->meta());
  rocksdb::Status status = sst.Open(file);
  if (status.ok()) status = sst.Put(NumberKey(kManifestPrefix, number), EncodeManifest(manifest));
  if (status.ok()) status = sst.Finish();
  if (status.ok()) return file;
  std::remove(file.c_str());
  return FromRocks(status, absl::StrCat("writing ", file));
}

absl::StatusOr<PreparedCheckpoint> CheckpointStore::Prepare(const std::string& name,
                                                            absl::Time now) {
  MP_ASSIGN_OR_RETURN(std::shared_ptr<OpenCheckpoint> open, ClaimCommit(name));
  if (open == nullptr) {
    absl::MutexLock lock(&mutex_);
    MP_ASSIGN_OR_RETURN(Committed * committed, FindCommittedLocked(name));
    return PreparedCheckpoint(committed->checkpoint, nullptr);
  }
  // `committing` keeps open->streams as they are.
  auto manifest = BuildManifest(*open, now);
  if (!manifest.ok()) return EndCommit(open, manifest.status(), /*drop=*/false);
  auto file = WriteManifestFile(open->number, *manifest);
  if (!file.ok()) return EndCommit(open, file.status(), /*drop=*/true);
  const v1::Checkpoint checkpoint = manifest->manifest().checkpoint();
  auto work = std::make_unique<PreparedCheckpoint::Work>();
  *work = {this, std::move(open), *std::move(manifest), *std::move(file)};
  return PreparedCheckpoint(checkpoint, std::move(work));
}

// All in one atomic write. Ingesting looks for keys in its way, and fails where they may be in a
// damaged block: there the manifest is written as a record by itself, after the chunks.
absl::Status CheckpointStore::MakeVisible(const OpenCheckpoint& open,
                                          const v1::StoredManifest& manifest,
                                          const std::string& manifest_file) {
  MP_RETURN_IF_ERROR(database_->CheckSpace());
  const std::string what = absl::StrCat("committing ", open.name);
  rocksdb::IngestExternalFileOptions options;
  options.move_files = true;
  options.write_global_seqno = false;
  rocksdb::IngestExternalFileArg chunks;
  chunks.column_family = database_->chunks();
  chunks.options = options;
  for (const auto& [stream, slot] : open.streams) {
    if (!slot.file.empty()) chunks.external_files.push_back(slot.file);
  }
  rocksdb::IngestExternalFileArg meta;
  meta.column_family = database_->meta();
  meta.options = options;
  meta.external_files = {manifest_file};
  std::vector<rocksdb::IngestExternalFileArg> arguments;
  if (!chunks.external_files.empty()) arguments.push_back(chunks);
  arguments.push_back(meta);
  const absl::Status ingested = FromRocks(database_->db()->IngestExternalFiles(arguments), what);
  if (!absl::IsDataLoss(ingested)) return ingested;
  database_->damage().NoteRecords(ingested);
  arguments.pop_back();
  if (!arguments.empty()) {
    MP_RETURN_IF_ERROR(FromRocks(database_->db()->IngestExternalFiles(arguments), what));
  }
  rocksdb::WriteBatch batch;
  batch.Put(database_->meta(), NumberKey(kManifestPrefix, open.number), EncodeManifest(manifest));
  return database_->Write(&batch, /*sync=*/true);
}

absl::Status CheckpointStore::Publish(const std::shared_ptr<OpenCheckpoint>& open,
                                      const v1::StoredManifest& manifest,
                                      const std::string& manifest_file) {
  MP_RETURN_IF_ERROR(MakeVisible(*open, manifest, manifest_file));
  const v1::Checkpoint& checkpoint = manifest.manifest().checkpoint();
  absl::MutexLock lock(&mutex_);
  committed_[open->number] = Committed{.checkpoint = checkpoint};
  open->committing = false;
  DropLocked(open, Refusal(v1::ERROR_REASON_CHECKPOINT_COMMITTED, open->name,
                           absl::StrCat(open->name, " is already committed")));
  std::vector<std::shared_ptr<OpenCheckpoint>> overtaken;
  for (const auto& [number, other] : open_) {
    if (other->request.job() == checkpoint.job() && other->request.step() < checkpoint.step() &&
        !other->committing) {
      overtaken.push_back(other);
    }
  }
  for (const auto& other : overtaken) {
    DropLocked(other, Refusal(v1::ERROR_REASON_CHECKPOINT_DROPPED, other->name,
                              absl::StrCat(other->name, " was overtaken by ", checkpoint.name())));
  }
  return absl::OkStatus();
}

}  // namespace milepost::coordinator
