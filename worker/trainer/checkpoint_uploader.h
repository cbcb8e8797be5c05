// Saves checkpoints in the background. It copies the state to host memory, and a thread of its own
// uploads the copy.
//
//   CheckpointUploader uploader(address, options);
//   MP_ASSIGN_OR_RETURN(absl::Duration held,
//                       uploader.Save(session.SaveSources(), state, /*final=*/false));  // a copy
//   ...                                                                     // training goes on
//   absl::Status last = uploader.Wait(absl::InfiniteFuture());              // committed
//
// Only one copy exists at a time. background_upload.h says what happens while the coordinator is
// away.
#ifndef MILEPOST_WORKER_TRAINER_CHECKPOINT_UPLOADER_H_
#define MILEPOST_WORKER_TRAINER_CHECKPOINT_UPLOADER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/endpoint.h"
#include "engine/runtime/session/training_session.h"
#include "worker/trainer/background_upload.h"

namespace milepost::worker {

struct UploaderOptions {
  std::string job;
  int64_t generation = 0;
  int rank = 0;
  int world = 1;
  std::string model_yaml;
  std::vector<v1::TensorInfo> tensors;                 // StateInterval::tensor indexes these
  absl::Duration full_disk_retry = absl::Seconds(60);  // for a final Save
  // The folder of the file that holds the copy (checkpoint_copy.h). Empty: the copy is in memory.
  std::string copy_folder;
};

// Calls its argument with the sources, one part after the other. An error ends it.
using SourceParts = absl::FunctionRef<absl::Status(
    absl::FunctionRef<void(const std::vector<runtime::StateInterval>&)>)>;

// Call Save and Wait from one thread. State may be called from any thread.
class CheckpointUploader {
 public:
  // Allocates and faults in the memory of the copy, on the upload thread in the background. The
  // copy is as large as `sources`; every Save must have the same size.
  CheckpointUploader(const Endpoint& coordinator, UploaderOptions options,
                     const std::vector<runtime::StateInterval>& sources);
  // Ends a running upload at once.
  ~CheckpointUploader();

  // Copies the sources and returns how long the caller was held, including the wait for an active
  // upload of the previous Save. `final` says that no Save follows, so that a full disk is retried
  // for options.full_disk_retry. RESOURCE_EXHAUSTED: there is no room for the copy.
  absl::StatusOr<absl::Duration> Save(const std::vector<runtime::StateInterval>& sources,
                                      const v1::TrainerState& state, bool final);
  // Does the same with sources that arrive in parts. Each part is copied before the next one is
  // requested. Also returns the errors of `sources` and of making the copy's file; then nothing is
  // saved.
  absl::StatusOr<absl::Duration> Save(SourceParts sources, const v1::TrainerState& state,
                                      bool final);

  // Blocks until the copy's memory or file is ready, as Save does too. An error says why it could
  // not be made.
  absl::Status AwaitCopy();

  // Blocks until the newest Save is committed or given up, and returns how it ended.
  // DEADLINE_EXCEEDED: `deadline` came first.
  absl::Status Wait(absl::Time deadline);

  UploadState State() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_CHECKPOINT_UPLOADER_H_
