// Saves checkpoints behind the training loop's back: a copy of the state in host memory, then the
// upload on a thread of its own.
//
//   CheckpointUploader uploader(address, options);
//   MP_ASSIGN_OR_RETURN(absl::Duration held,
//                       uploader.Save(session.SaveSources(), state, /*final=*/false));  // a copy
//   ...                                                                     // training goes on
//   absl::Status last = uploader.Wait(absl::InfiniteFuture());              // committed
//
// One copy exists at a time. While the coordinator is away the upload is tried again from the start
// until it is back, and a newer Save replaces the one that waits: training never waits for the
// coordinator. A full disk there ends the upload with a warning; the next Save tries anew.
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
#include "engine/runtime/session.h"

namespace milepost::worker {

struct UploaderOptions {
  std::string job;
  int64_t generation = 0;
  int rank = 0;
  int world = 1;
  std::string model_yaml;
  std::vector<v1::TensorInfo> tensors;                 // what StateInterval::tensor indexes
  absl::Duration full_disk_retry = absl::Seconds(60);  // for a final Save
  // The copy is made in a file there (checkpoint_copy.h); empty: in memory.
  std::string copy_folder;
};

// Calls its argument with the sources, part after part; an error ends it.
using SourceParts = absl::FunctionRef<absl::Status(
    absl::FunctionRef<void(const std::vector<runtime::StateInterval>&)>)>;

// How the newest Save stands.
struct UploadState {
  bool active = false;  // not committed and not given up
  absl::Status last =
      absl::OkStatus();  // how the last one ended; ABORTED: a newer generation exists
  // Why the newest Save is not committed, when it should be by now: one line for the user.
  std::string problem;
  int64_t committed_step = -1;  // newest that this rank knows to be committed
};

// Save and Wait are for one thread; State for any.
class CheckpointUploader {
 public:
  // Allocates and faults in the copy's memory (on the upload thread, in the background): as large
  // as `sources`, which every Save has the size of.
  CheckpointUploader(const Endpoint& coordinator, UploaderOptions options,
                     const std::vector<runtime::StateInterval>& sources);
  // Ends an upload in progress at once.
  ~CheckpointUploader();

  // Copies the sources and returns; the time it took the caller, waiting for an active upload of
  // the previous Save included. `final`: there is no next one, so that a full disk is tried again
  // for options.full_disk_retry. RESOURCE_EXHAUSTED: there is no place for the copy.
  absl::StatusOr<absl::Duration> Save(const std::vector<runtime::StateInterval>& sources,
                                      const v1::TrainerState& state, bool final);
  // The same of sources that come in parts, each copied before the next one is asked for. The
  // errors of `sources`, and of making the copy's file: nothing is saved then.
  absl::StatusOr<absl::Duration> Save(SourceParts sources, const v1::TrainerState& state,
                                      bool final);

  // Until there is a place for the copy, which Save waits for too: why there is none.
  absl::Status AwaitCopy();

  // Until the newest Save is committed or given up: how it ended. DEADLINE_EXCEEDED: not by
  // `deadline`.
  absl::Status Wait(absl::Time deadline);

  UploadState State() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_CHECKPOINT_UPLOADER_H_
