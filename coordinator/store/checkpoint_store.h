// Checkpoints: written as one SST file per stream beside the database, made visible by one atomic
// ingest of all files and the manifest, never changed afterwards.
//
//   MP_ASSIGN_OR_RETURN(std::string name, store.Begin(request));
//   MP_ASSIGN_OR_RETURN(auto stream, store.OpenStream(name, generation, 0));
//   MP_RETURN_IF_ERROR(stream->Append(chunk, data));       // any number, any order
//   MP_RETURN_IF_ERROR(stream->Finish().status());         // on disk and synced
//   MP_RETURN_IF_ERROR(store.WaitStreams(name, deadline, cancelled));
//   MP_ASSIGN_OR_RETURN(PreparedCheckpoint prepared, store.Prepare(name, now));
//   MP_RETURN_IF_ERROR(prepared.Publish());
//
// Errors: NOT_FOUND for an unknown or swept checkpoint (begin again), ABORTED for an old
// generation, RESOURCE_EXHAUSTED for a full disk (the staged files of that checkpoint are gone, all
// else is as before), DATA_LOSS for bytes that do not match their checksum.
//
// Thread-safe. All calls block on the disk.
#ifndef MILEPOST_COORDINATOR_STORE_CHECKPOINT_STORE_H_
#define MILEPOST_COORDINATOR_STORE_CHECKPOINT_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/steady_time.h"
#include "coordinator/store/chunk_deleter.h"
#include "milepost/v1/store.pb.h"

namespace rocksdb {
class WriteBatch;
}

namespace milepost::coordinator {

class CheckpointReader;
class Database;
class StreamWriter;
struct OpenCheckpoint;

struct CheckpointStoreOptions {
  std::string staging_dir;  // on the database's file system; wiped at start
  std::function<absl::StatusOr<uint64_t>(const std::string&)> free_bytes;
  uint64_t margin_bytes = 0;
  absl::Duration bin_time = absl::Hours(24 * 7);  // see StoreOptions
};

// "checkpoints/12" -> 12; 0 when the name is not of that form.
int64_t CheckpointNumber(absl::string_view name);

// The answer to those who name one that is not there, or may not see it.
absl::Status NoSuchCheckpoint(absl::string_view name);

struct RetentionRule {
  int keep_last = 3;
  int64_t keep_every = 0;  // also keep steps that are a multiple; 0: none
  // Also keep the one with the smallest validation loss, of several the oldest.
  bool keep_best = false;
  std::set<std::string> awaited = {};  // names that are kept besides: jobs are to begin with them
};

// A checkpoint's reads that end in an error of the system (an unreadable sector, a mount that is
// away): such an error says nothing of what is stored until it has lasted. Its times are those of
// SteadyNow.
struct ReadTrouble {
  // Less than a rank waits for another that still restores.
  static constexpr absl::Duration kLong = absl::Seconds(30);

  // Without a failure it was another one. A rank that tries again reads up to the chunk first.
  static constexpr absl::Duration kOver = absl::Minutes(15);

  void Failed(int of_chunk, absl::Time now) {
    if (chunk < 0 || (!lasts && now >= last + kOver)) *this = {.chunk = of_chunk, .since = now};
    last = now;
    lasts = lasts || now >= since + kLong;
  }

  int chunk = -1;  // the first that failed, until it is read; -1: none
  absl::Time since = absl::InfinitePast();
  absl::Time last = absl::InfinitePast();
  bool lasts = false;
};

// How long those who read a checkpoint keep it from deletion: for so long after it was first to go.
// Who comes later does not make it longer, so that nobody keeps a checkpoint by reading it over and
// over. Times are those of SteadyNow.
struct ReadHold {
  static constexpr absl::Duration kLongest = absl::Minutes(10);
  // It was wanted gone, and then not any more. Longer than between two of a job's checkpoints, at
  // each of which it is asked again.
  static constexpr absl::Duration kForgotten = absl::Hours(24);

  // It is to go now. May it?
  bool Ends(absl::Time now) {
    if (now >= last + kForgotten) first = now;
    last = now;
    return now >= first + kLongest;
  }
  absl::Duration Left(absl::Time now) const { return first + kLongest - now; }

  absl::Time first = absl::InfinitePast();
  absl::Time last = absl::InfinitePast();
};

// A checkpoint that lacks nothing but being visible. It is dropped when this ends before Publish.
// Not thread-safe; the store outlives it.
class PreparedCheckpoint {
 public:
  PreparedCheckpoint(PreparedCheckpoint&& other) noexcept;
  PreparedCheckpoint& operator=(PreparedCheckpoint&& other) = delete;
  ~PreparedCheckpoint();

  const v1::Checkpoint& checkpoint() const { return checkpoint_; }
  // It is visible; also where it was so before it was to be prepared.
  bool committed() const { return committed_; }
  // Makes chunks and manifest visible in one atomic write. Quick: no data is copied, and no file is
  // deleted, also where it fails: Drop does that. At most once, and not where it is committed.
  absl::Status Publish();
  // Does nothing to a committed one. `why` is what those are told who write to it.
  void Drop(const absl::Status& why);

 private:
  friend class CheckpointStore;
  struct Work;
  PreparedCheckpoint(v1::Checkpoint checkpoint, std::unique_ptr<Work> work);
  v1::Checkpoint checkpoint_;
  std::unique_ptr<Work> work_;  // nullptr: there is nothing left to do
  bool committed_;
};

class CheckpointStore {
 public:
  static absl::StatusOr<std::unique_ptr<CheckpointStore>> Open(Database* database,
                                                               CheckpointStoreOptions options);
  ~CheckpointStore();

  // Reserves space and opens the checkpoint. The same (job, generation, step) gives the same name
  // while it is open. Drops what older generations or earlier steps of the job have open;
  // FAILED_PRECONDITION when a later step of the generation was begun or committed already.
  // ALREADY_EXISTS when that one is committed: the message starts with its name. INVALID_ARGUMENT
  // for tensors that are not well-formed.
  absl::StatusOr<std::string> Begin(const v1::BeginCheckpointRequest& request);

  // RESOURCE_EXHAUSTED when a checkpoint of so many bytes would not fit if all others were deleted:
  // what trains for it could save nothing.
  absl::Status CheckEverFits(int64_t bytes);

  // `stream` is in [0, streams). A second writer of the same stream replaces the first's data when
  // it finishes.
  absl::StatusOr<std::unique_ptr<StreamWriter>> OpenStream(const std::string& name,
                                                           int64_t generation, int32_t stream);

  // Waits until every stream of an open checkpoint is finished; returns at once when it is
  // committed. FAILED_PRECONDITION naming the missing streams at the deadline; CANCELLED when
  // `cancelled` (asked about five times a second) is true.
  absl::Status WaitStreams(const std::string& name, absl::Time deadline,
                           const std::function<bool()>& cancelled);

  // Proves the coverage and writes the manifest: all of a commit that takes time. One of several
  // concurrent callers does the work, the others wait for it. FAILED_PRECONDITION names what is
  // missing or doubled.
  absl::StatusOr<PreparedCheckpoint> Prepare(const std::string& name, absl::Time now);

  absl::Status Abort(const std::string& name);
  // Ends what generations older than `generation` of the job have open.
  void AbortOlder(const std::string& job, int64_t generation);

  absl::StatusOr<v1::CheckpointManifest> Get(const std::string& name);
  // The job and generation that an open or committed checkpoint belongs to.
  absl::StatusOr<v1::Checkpoint> Owner(const std::string& name);
  // Newest (highest number) first; all jobs when `job` is empty. `deleted`: those in the bin, else
  // those that are not.
  std::vector<v1::Checkpoint> List(const std::string& job, bool deleted = false);
  // The checkpoint that the job should resume from: highest step, then highest number, not damaged;
  // one that cannot be read when there is no other.
  std::optional<v1::Checkpoint> Newest(const std::string& job);
  // Bytes of the tensor data of all that are committed.
  struct Usage {
    int64_t kept = 0;
    int64_t deleted = 0;  // in the bin
  };
  Usage CountBytes();
  // Bytes that are still to be written of those that are not committed.
  int64_t CountReserved();

  // A reader of the chunks that overlap `ranges` (all when empty). While it lives the checkpoint is
  // not deleted before ReadHold has ended.
  absl::StatusOr<std::unique_ptr<CheckpointReader>> Read(
      const std::string& name, const std::vector<v1::TensorRange>& ranges);
  // One that reads nothing: while it lives the checkpoint is not deleted at all. For moments.
  absl::StatusOr<std::unique_ptr<CheckpointReader>> Keep(const std::string& name);
  // Reads everything; marks the checkpoint damaged when a chunk is, and whole when none is, unless
  // somebody has found one meanwhile. INTERNAL: it cannot be read now.
  absl::StatusOr<v1::VerifyCheckpointResponse> Verify(const std::string& name,
                                                      const std::function<bool()>& cancelled);
  absl::Status MarkDamaged(const std::string& name);
  absl::StatusOr<v1::Checkpoint> Pin(const std::string& name, bool pinned);
  // Into the bin, as of `now`: it counts nowhere, is not read, and can be restored until its time
  // is over or Begin needs its space. FAILED_PRECONDITION when it is pinned, being read, or the
  // newest of its job and `keep_newest`.
  absl::Status Bin(const std::string& name, bool keep_newest, absl::Time now);
  absl::StatusOr<v1::Checkpoint> Restore(const std::string& name);
  // Deletes what has been in the bin for longer than it may, and the oldest where the disk has less
  // than twice the margin left: a thousand at most, in one write. Called now and then.
  absl::Status EmptyBin(absl::Time now);
  // Deleted checkpoints are gone at once, also out of the bin; their space is free a moment later,
  // and Begin waits for that when it needs it. FAILED_PRECONDITION as above. `now`: SteadyNow's.
  absl::Status Delete(const std::string& name, bool keep_newest, absl::Time now = SteadyNow());

  // Before a job is deleted: from now on nobody reads or changes its checkpoints, those in the bin
  // among them, until they are gone or ReleaseJob is called. FAILED_PRECONDITION names one that is
  // pinned, being read, or claimed already.
  absl::StatusOr<std::vector<v1::Checkpoint>> ClaimJob(const std::string& job);
  void ReleaseJob(const std::string& job);
  // For what writes that the job is deleted: that its checkpoints are; and when that is written.
  void AddClaimed(const std::string& job, rocksdb::WriteBatch* batch);
  void ClaimedGone(const std::string& job);
  // Deletes what the rule does not keep: never a pinned one, the newest one, or one being read.
  // Damaged ones do not count as kept, and go only where there is one that can be read. Nothing
  // goes once a record was found damaged, here and in EmptyBin. Returns the names.
  absl::StatusOr<std::vector<std::string>> Retain(const std::string& job, const RetentionRule& rule,
                                                  absl::Time now = SteadyNow());
  // Until the space of everything deleted is free; false when it is not at `deadline`.
  bool AwaitDeletions(absl::Time deadline);

 private:
  friend class CheckpointReader;
  friend class PreparedCheckpoint;
  friend class StreamWriter;
  struct Committed {
    v1::Checkpoint checkpoint;
    int readers = 0;
    int keepers = 0;
    ReadHold hold;  // the readers'
    // While it lasts jobs resume from others, where there are any, yet it is not deleted.
    ReadTrouble trouble;
    int64_t marks = 0;     // how often it was found damaged, or could not be read
    bool claimed = false;  // it goes with its job
  };

  CheckpointStore(Database* database, CheckpointStoreOptions options);
  absl::Status Load();
  absl::Status FinishDeletions(const std::set<int64_t>& known);
  absl::StatusOr<std::string> TryBegin(const v1::BeginCheckpointRequest& begun);
  // The open or committed twin of what is to begin: its name, or OK and an empty name.
  absl::StatusOr<std::string> FindTwinLocked(const v1::BeginCheckpointRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status SupersedeLocked(const v1::BeginCheckpointRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ReserveLocked(const v1::BeginCheckpointRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status LoadNextNumberLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<int64_t> NextNumberLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<OpenCheckpoint>> FindOpenLocked(const std::string& name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropLocked(std::shared_ptr<OpenCheckpoint> open, absl::Status reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<v1::Checkpoint> NewestLocked(const std::string& job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The open checkpoint, with `committing` set; null when it is committed.
  absl::StatusOr<std::shared_ptr<OpenCheckpoint>> ClaimCommit(const std::string& name);
  // Nobody commits it any more; with `drop` it ends for `status`.
  absl::Status EndCommit(const std::shared_ptr<OpenCheckpoint>& open, const absl::Status& status,
                         bool drop);
  absl::Status MakeVisible(const OpenCheckpoint& open, const v1::StoredManifest& manifest,
                           const std::string& manifest_file);
  absl::Status Publish(const std::shared_ptr<OpenCheckpoint>& open,
                       const v1::StoredManifest& manifest, const std::string& manifest_file);
  absl::StatusOr<v1::StoredManifest> BuildManifest(const OpenCheckpoint& open, absl::Time now);
  absl::StatusOr<std::string> WriteManifestFile(int64_t number, const v1::StoredManifest& manifest);
  absl::Status PutFlagsLocked(const v1::Checkpoint& checkpoint)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MarkWholeLocked(Committed* committed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What a reader answers; `what`: the chunk, by its index, and the system's error.
  absl::Status CannotRead(const std::string& name, int chunk, const std::string& what);
  // The same where the record that names its chunks is damaged.
  absl::Status RecordDamaged(const std::string& name, const absl::Status& status);
  // True when nothing is in the way any more.
  bool CanReadAgain(int64_t number, int chunk);
  absl::StatusOr<Committed*> FindCommittedLocked(const std::string& name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status DeleteLocked(int64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // All or none, in one write.
  absl::Status DeleteAllLocked(absl::Span<const int64_t> numbers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<int64_t> BinnedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Bytes that open checkpoints have still to write.
  int64_t ReservedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // In its job's way to go, or in the bin.
  absl::Status CheckThere(const Committed& committed) const;
  absl::Status CheckMayGoLocked(Committed& committed, bool keep_newest, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The oldest ones in the bin whose bytes the checkpoint lacks; none where all of them are too
  // few.
  absl::Status EmptyBinFor(const v1::BeginCheckpointRequest& request);
  v1::Checkpoint Described(const Committed& committed) const;
  absl::StatusOr<v1::StoredManifest> LoadManifest(int64_t number);
  absl::Status EndedReason(const OpenCheckpoint& open);
  void StreamFailed(const std::shared_ptr<OpenCheckpoint>& open, const absl::Status& status);
  // Takes the file over.
  absl::Status StreamFinished(const std::shared_ptr<OpenCheckpoint>& open, int32_t stream,
                              const std::string& file, std::vector<v1::StoredChunk> chunks);
  bool IsCommitted(int64_t number);
  void ReleaseReader(int64_t number, bool keeps);

  Database* const database_;
  const CheckpointStoreOptions options_;
  absl::Mutex emptying_;  // before mutex_: of those who empty the bin for a checkpoint
  absl::Mutex mutex_;
  absl::CondVar streams_changed_;
  std::map<int64_t, std::shared_ptr<OpenCheckpoint>> open_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, Committed> committed_ ABSL_GUARDED_BY(mutex_);
  int64_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;  // as it is stored
  uint64_t files_made_ ABSL_GUARDED_BY(mutex_) = 0;
  ChunkDeleter deleter_;
};

// One stream of one open checkpoint. Append checks the checksum while it copies the bytes to where
// a thread of the file's writes them from, so that receiving and writing overlap. Not thread-safe.
// Destroyed without Finish: its file is removed.
class StreamWriter {
 public:
  static constexpr int64_t kMaxChunkBytes = 4 << 20;

  ~StreamWriter();
  // `chunk` without its data, and the data, which are copied. DATA_LOSS names the chunk whose bytes
  // do not have the checksum they came with; INVALID_ARGUMENT: the interval is outside the tensor
  // or has another size than the data. After an error the stream is dead.
  absl::Status Append(const v1::Chunk& chunk, const absl::Cord& data);
  // The same of a chunk with its data.
  absl::Status Append(v1::Chunk chunk);
  // Bytes written and synced.
  absl::StatusOr<int64_t> Finish();

 private:
  friend class CheckpointStore;
  struct Impl;
  explicit StreamWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Chunks of a committed checkpoint in key order, each verified as it is read. Not thread-safe.
class CheckpointReader {
 public:
  ~CheckpointReader();
  // False at the end. DATA_LOSS names the chunk; the checkpoint is then marked damaged, or was
  // unreadable for long and there is another, and reading can go on with the next chunk.
  // UNAVAILABLE: it cannot be read now. NOT_FOUND: it was deleted meanwhile.
  absl::StatusOr<bool> Next(v1::Chunk* chunk);
  // It was known as unreadable, and is not any more.
  bool cleared() const { return cleared_; }
  // "tensor wte.weight m [0, 1048576)": the chunk that the last Next was about.
  std::string DescribeLast() const;
  const v1::CheckpointManifest& manifest() const { return manifest_.manifest(); }

 private:
  friend class CheckpointStore;
  CheckpointReader(CheckpointStore* store, int64_t number, v1::StoredManifest manifest,
                   std::vector<int> wanted, int troubled, bool keeps = false);
  CheckpointStore* const store_;
  const int64_t number_;
  const v1::StoredManifest manifest_;
  const std::vector<int> wanted_;  // indices into manifest_.chunks()
  const int troubled_;             // ReadTrouble::chunk at the beginning
  const bool keeps_;
  bool unreadable_ = false;  // so was the last one
  bool cleared_ = false;
  size_t next_ = 0;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_CHECKPOINT_STORE_H_
