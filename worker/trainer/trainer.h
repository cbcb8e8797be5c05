// One rank's attempt, from the worker's message to the last checkpoint. Internal to train.h, whose
// Train makes one.
//
//   Trainer trainer(std::move(start), &channel, device);
//   TrainerExit exit = trainer.Run();
//
// train.cc has its course: what comes after what, the steps, and the end. trainer_setup.cc has what
// must be there before the first step, trainer_state.cc where the state comes from and what is kept
// of it.
//
// One thread makes it and calls Run, once, which blocks. `channel` and `device` outlive it.
#ifndef MILEPOST_WORKER_TRAINER_TRAINER_H_
#define MILEPOST_WORKER_TRAINER_TRAINER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/message_channel.h"
#include "common/rpc/endpoint.h"
#include "engine/comm/communicator.h"
#include "engine/runtime/session/activity.h"
#include "engine/runtime/session/training_session.h"
#include "milepost/v1/trainer.pb.h"
#include "worker/memory_state/peer_copies.h"
#include "worker/trainer/checkpoint_uploader.h"
#include "worker/trainer/device.h"
#include "worker/trainer/divergence.h"
#include "worker/trainer/failure.h"
#include "worker/trainer/hang_watch.h"
#include "worker/trainer/initial_weights.h"
#include "worker/trainer/progress.h"
#include "worker/trainer/scalar_log.h"
#include "worker/trainer/signals.h"

namespace milepost::worker {

class Trainer {
 public:
  Trainer(v1::TrainerStart start, MessageChannel* channel, const TrainerDevice& device)
      : device_(device),
        message_(std::move(start)),
        start_(message_.start()),
        spec_(start_.spec()),
        channel_(channel),
        progress_(channel, start_.rank() == 0),
        divergence_(spec_.train().max_skipped_steps()) {}

  TrainerExit Run();

 private:
  // Of restored_from_: no checkpoint, but what the hosts had in memory.
  static constexpr char kFromMemory[] = "memory";

  static absl::Time Now() { return Clock::Real()->Now(); }
  static absl::Status Aborted() {
    return absl::AbortedError("another rank is lost, the coordinator says");
  }

  // train.cc
  void WatchForHangs();
  // nullopt: on to the next step.
  std::optional<TrainerExit> OneStep();
  // What is due after a step: validation, a checkpoint.
  absl::Status AfterStep(int64_t step);
  bool IsCheckpointStep(int64_t step) const;
  // train.validation.patience: there is no better validation to come.
  bool OutOfPatience() const;
  // All ranks at the same step.
  bool Ends() const {
    return OutOfPatience() || stop_agreed_ || session_->step() >= spec_.train().steps();
  }
  // A step failed: what is left of the state is kept for the next attempt.
  TrainerExit Lost(const absl::Status& status);
  TrainerExit Finish();
  TrainerExit FinishStopped();
  static TrainerExit Fenced();

  // trainer_setup.cc. The first three, in this order; nullopt: go on.
  std::optional<TrainerExit> Join();  // the other ranks
  std::optional<TrainerExit> MakeSession();
  std::optional<TrainerExit> GetReady();  // after Begin: all that training needs besides the state
  absl::Status FindCoordinator();
  absl::Status CheckDevice() const;
  absl::Status CheckPathsOfSpec() const;
  absl::Status Meet();
  // What earlier attempts of the job have chosen by trying, so that this one has their bits; and
  // for later ones. A rank on a CPU chooses nothing.
  absl::Status FetchChoices();
  void KeepChoices();
  // Where optimizer state lies that is offloaded to disk; empty: it is not. Made if it is the
  // worker's own folder.
  absl::StatusOr<std::string> StateFolder() const;
  void MakeUploader();
  absl::Status OpenScalars();
  absl::Status MakeCopies();
  void SettingUp();
  absl::Status AwaitOthers();
  void LimitWaits();
  TrainerExit FailedSetUp(const absl::Status& status);

  // trainer_state.cc
  // Parameters and the rest of the state, from wherever they come; nullopt: they are there.
  std::optional<TrainerExit> Begin();
  // True: the session holds the state that the job's hosts had in memory.
  absl::StatusOr<bool> RestoreFromMemory();
  // nullopt: the session holds the checkpoint's state.
  std::optional<TrainerExit> Restore();
  // FAILED_PRECONDITION, with the ways on, where `state` comes of other data than there are now.
  absl::Status CheckData(const v1::TrainerState& state) const;
  // Collective, first of all: opens what adapters adapt, where there are adapters.
  absl::Status OpenBase();
  // Into the session, for the next FinishRestore.
  absl::Status ReadBase(int part);
  // FAILED_PRECONDITION where the adapters of `state` adapt another model.
  absl::Status CheckBase(const v1::TrainerState& state) const;
  // New parameters: from the seed, or from train.init_from.
  absl::Status Initialize();
  absl::StatusOr<absl::Duration> SaveState(bool final);
  void KeepWhatIsLeft();
  void ForgetOlderState();
  // A checkpoint has all of it.
  void ForgetAllState();

  const TrainerDevice& device_;
  const v1::TrainerStart message_;
  const v1::StartRank& start_;
  const v1::JobSpec& spec_;
  Endpoint coordinator_;
  MessageChannel* const channel_;
  runtime::ActivityBoard activity_;
  ProgressReporter progress_;
  DivergenceWatch divergence_;
  std::string state_folder_;
  bool fenced_ = false;
  bool stop_agreed_ = false;
  bool forgot_older_state_ = false;
  std::string restored_from_;  // empty: it began anew
  std::optional<InitialWeights> base_;
  std::string choices_;  // rank 0's, of earlier attempts
  std::unique_ptr<comm::Communicator> communicator_;
  std::unique_ptr<comm::Communicator> device_communicator_;  // of several ranks on GPUs
  std::unique_ptr<comm::Communicator> copies_communicator_;  // until copies_ has it
  std::unique_ptr<comm::Communicator> stage_activations_, stage_gradients_;  // of a pipeline
  std::optional<AbortWatch> abort_watch_;
  std::optional<HangWatch> hang_watch_;
  std::unique_ptr<runtime::TrainingSession> session_;
  std::unique_ptr<PeerCopies> copies_;  // with checkpoint.redundancy
  std::unique_ptr<CheckpointUploader> uploader_;
  std::unique_ptr<ScalarLog> scalars_;  // rank 0's, when asked for
  std::optional<std::jthread> keeper_;  // of what was chosen; ends first
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_TRAINER_H_
