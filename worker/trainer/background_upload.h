// Uploads the newest checkpoint on a thread of its own, and again until it is committed.
//
//   BackgroundUpload uploads(coordinator, /*streams=*/2, {});
//   MP_RETURN_IF_ERROR(uploads.Claim());     // no attempt reads the memory any more
//   memcpy(...);                             // the checkpoint, into memory that stays
//   uploads.Submit(upload, /*final=*/false);
//   absl::Status last = uploads.Wait(absl::InfiniteFuture());
//
// While the coordinator is away, the upload starts again from the beginning until it succeeds. A
// newer one replaces an upload that waits, so nobody waits for the coordinator. A full disk at the
// coordinator ends the upload with a warning.
#ifndef MILEPOST_WORKER_TRAINER_BACKGROUND_UPLOAD_H_
#define MILEPOST_WORKER_TRAINER_BACKGROUND_UPLOAD_H_

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/random/random.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/rpc/endpoint.h"
#include "worker/trainer/upload_attempt.h"

namespace milepost::worker {

// The state of the newest upload.
struct UploadState {
  bool active = false;  // neither committed nor given up
  bool durable = true;  // Upload::durable
  absl::Status last =
      absl::OkStatus();  // how the last one ended; ABORTED: a newer generation exists
  // Why the newest one is overdue: one line for the user. Empty: it is not.
  std::string problem;
  int64_t committed_step = -1;  // newest step that this rank knows to be committed
};

// Call Claim, Submit, GiveUp and Wait from one thread at a time. State may be called from any
// thread.
class BackgroundUpload {
 public:
  struct Options {
    absl::Duration full_disk_retry = absl::Seconds(60);  // of a final upload
    // Called once by the upload's thread, before anything else. Its error is Claim's from then on.
    std::function<absl::Status()> prepare = nullptr;
  };

  // `streams`: the most that an upload has. One connection each.
  BackgroundUpload(const Endpoint& coordinator, int streams, Options options);
  ~BackgroundUpload();  // ends a running upload at once

  // Blocks until the memory of what was submitted before is not read any more, and keeps it so
  // until Submit or GiveUp. Copies of it (Upload::copy) are made by then. What was not committed
  // gives way; `step`, which replaces it, is
  // for the message. CANCELLED: Withdraw was called. Otherwise the error of `prepare`.
  absl::Status Claim(int64_t step);
  // After Claim: whether a durable upload gave way to this one.
  bool gave_way() const { return gave_way_; }
  // The memory of upload.chunks, and upload.layout, stay as they are until the next Claim. `final`:
  // no other one follows, so that a full disk is retried for options.full_disk_retry.
  void Submit(Upload upload, bool final);
  void GiveUp();    // instead of Submit
  void Withdraw();  // GiveUp of a claim, if there is one; no later one is granted. From any thread.

  // Blocks until `prepare` is done, and returns its error.
  absl::Status AwaitPrepared();
  // Blocks until the newest upload is committed or given up, and returns how it ended.
  // DEADLINE_EXCEEDED: `deadline` came first.
  absl::Status Wait(absl::Time deadline);

  UploadState State() const;

  // Ends a running upload at once; none begins any more. May be called from any thread.
  void Cancel();

 private:
  bool IsFree() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return prepared_ && !attempting_ && (!copy_due_ || stopping_);
  }
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !state_.active || stopping_; }
  void GiveUpLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || (state_.active && !claimed_);
  }
  void Loop();
  // `first`: of this upload.
  UploadResult Attempt(bool first);
  // Less when there is a newer upload, or when the coordinator was away and is back.
  void PauseFor(absl::Duration pause, int64_t submitted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Zero: this upload is over. Otherwise how long to pause before the next attempt.
  absl::Duration Settle(const UploadResult& result, absl::Duration backoff)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Said once, not at every attempt.
  void Problem(absl::string_view what, const std::string& how_long, const UploadResult& result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Uploader uploader_;
  absl::BitGen bits_;
  Upload upload_;             // written while `claimed_`, read by the thread while `attempting_`
  bool gave_way_ = false;     // of Claim's thread
  std::string copy_problem_;  // of the upload's thread: why upload_ has no copies

  mutable absl::Mutex mutex_;
  bool prepared_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status prepare_status_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool claimed_ ABSL_GUARDED_BY(mutex_) = false;
  bool withdrawn_ ABSL_GUARDED_BY(mutex_) = false;
  bool attempting_ ABSL_GUARDED_BY(mutex_) = false;
  bool copy_due_ ABSL_GUARDED_BY(mutex_) = false;  // no attempt has begun that makes the copies
  bool final_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t submitted_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time submit_time_ ABSL_GUARDED_BY(mutex_);
  UploadState state_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_BACKGROUND_UPLOAD_H_
