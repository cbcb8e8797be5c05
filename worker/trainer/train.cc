#include "worker/trainer/train.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "worker/trainer/trainer.h"

namespace milepost::worker {
namespace {

constexpr absl::Duration kHandOver = absl::Seconds(10);
constexpr absl::Duration kStopPoll = absl::Milliseconds(200);
constexpr absl::Duration kQuietWait = absl::Seconds(5);  // before saying what is waited for

}  // namespace

TrainerExit Trainer::Run() {
  WatchForHangs();
  if (std::optional<TrainerExit> exit = Join()) return *std::move(exit);
  if (std::optional<TrainerExit> exit = MakeSession()) return *std::move(exit);
  if (std::optional<TrainerExit> exit = Begin()) return *std::move(exit);
  if (std::optional<TrainerExit> exit = GetReady()) return *std::move(exit);
  if (OutOfPatience()) {  // an attempt was cut off while it ended
    spdlog::info("step {}: ends at once, as train.validation.patience has run out",
                 session_->step());
  }
  while (!Ends()) {
    if (std::optional<TrainerExit> exit = OneStep()) return *std::move(exit);
  }
  progress_.Send(Now(), /*must=*/true);
  const bool stopped = session_->step() < spec_.train().steps() && !OutOfPatience();
  return stopped ? FinishStopped() : Finish();
}

// What hangs cannot leave: the process ends under it.
void Trainer::WatchForHangs() {
  const double patience = message_.hang_seconds();
  hang_watch_.emplace(
      &activity_, HangWatch::Options{
                      .patience = patience > 0 ? absl::Seconds(patience) : absl::InfiniteDuration(),
                      .on_gpu = device_.kind == v1::DEVICE_KIND_CUDA,
                      .aborting = AbortRequested,
                      .alive =
                          [this] {
                            v1::TrainerMessage message;
                            message.mutable_alive();
                            channel_->Send(message, absl::InfinitePast()).IgnoreError();
                          },
                      .on_hang =
                          [this](const Hang& hang) {
                            spdlog::error("{}", hang.message);
                            v1::TrainerMessage message;
                            message.mutable_failure()->set_class_(hang.failure_class);
                            message.mutable_failure()->set_message(hang.message);
                            channel_->Send(message, Now() + kHandOver).IgnoreError();
                            spdlog::default_logger()->flush();
                            _exit(kExitError);
                          }});
}

std::optional<TrainerExit> Trainer::OneStep() {
  auto report = session_->Step(StopRequested());
  if (!report.ok()) return Lost(report.status());
  stop_agreed_ = report->stop_agreed;
  progress_.Step(*report, Now());
  if (scalars_ != nullptr) scalars_->Step(progress_.progress(), Now());
  if (absl::Status status = divergence_.Step(*report); !status.ok()) {
    progress_.Send(Now(), /*must=*/true);
    return StepFailure(status);
  }
  if (absl::Status status = AfterStep(report->step); !status.ok()) return Lost(status);
  if (copies_ != nullptr) {
    const absl::Status status = copies_->AfterStep(*session_, *communicator_);
    if (!status.ok()) return Lost(status);
  }
  ForgetOlderState();
  const UploadState upload = uploader_->State();
  progress_.CheckpointProblem(upload.problem, Now());
  if (absl::IsAborted(upload.last)) return Fenced();
  return std::nullopt;
}

bool Trainer::IsCheckpointStep(int64_t step) const {
  if (step == spec_.train().steps() || stop_agreed_) return true;
  // Of a run that may just have diverged none takes the place of one from before.
  const int64_t every = spec_.checkpoint().every();
  return every > 0 && step % every == 0 && !divergence_.suspicious();
}

bool Trainer::OutOfPatience() const {
  const int64_t patience = spec_.train().validation().patience();
  return patience > 0 && session_->trainer_state().validations_since_best() >= patience;
}

absl::Status Trainer::AfterStep(int64_t step) {
  const bool last = step == spec_.train().steps();
  const bool first = step == progress_.progress().start_step() + 1;
  const int64_t every = spec_.train().validation().every();
  const bool validate =
      !spec_.data().validation().empty() && (last || (every > 0 && step % every == 0));
  // The first step is news at once, not after a validation.
  progress_.Send(Now(), first);
  if (validate) {
    MP_ASSIGN_OR_RETURN(runtime::EvaluationReport evaluation, session_->Evaluate());
    progress_.Validation(step, evaluation);
    if (scalars_ != nullptr) scalars_->Validation(progress_.progress(), Now());
    progress_.Send(Now(), /*must=*/true);
    if (OutOfPatience() && !last) {
      spdlog::info("step {}: the last {} validations had no smaller loss than {:.6g}: ending", step,
                   session_->trainer_state().validations_since_best(),
                   session_->trainer_state().best_validation_loss());
    }
  }
  const bool best = validate && spec_.checkpoint().keep_best() && !divergence_.suspicious() &&
                    session_->trainer_state().validations_since_best() == 0;
  if (IsCheckpointStep(step) || best || OutOfPatience()) {
    MP_ASSIGN_OR_RETURN(const absl::Duration held, SaveState(Ends()));
    progress_.Hold(held);
  }
  return absl::OkStatus();
}

TrainerExit Trainer::Lost(const absl::Status& status) {
  if (comm::IsPeerLost(status)) KeepWhatIsLeft();
  return StepFailure(status);
}

TrainerExit Trainer::Fenced() {
  return {kExitFenced, v1::FAILURE_CLASS_UNSPECIFIED,
          "a newer generation of this job exists: leaving"};
}

TrainerExit Trainer::FinishStopped() {
  spdlog::info("step {}: stopped as told, saving", session_->step());
  absl::Status status = absl::DeadlineExceededError("");
  // Whoever told it to stop says when that takes too long.
  while (absl::IsDeadlineExceeded(status) && !AbortRequested()) {
    status = uploader_->Wait(Now() + kStopPoll);
    progress_.CheckpointProblem(uploader_->State().problem, Now());
  }
  if (absl::IsAborted(status)) return Fenced();
  if (status.ok()) {
    ForgetAllState();
  } else {
    spdlog::warn("step {}: leaving without a checkpoint of this step: {}", session_->step(),
                 std::string(status.message()));
    KeepWhatIsLeft();
  }
  return {.code = kExitStopped};
}

TrainerExit Trainer::Finish() {
  absl::Status status = uploader_->Wait(Now() + kQuietWait);
  progress_.CheckpointProblem(uploader_->State().problem, Now());
  if (absl::IsDeadlineExceeded(status)) {
    spdlog::info("step {}: all steps are done; waiting for the last checkpoint to be committed",
                 session_->step());
  }
  while (absl::IsDeadlineExceeded(status)) {
    if (AbortRequested()) return Lost(Aborted());
    if (StopRequested()) return FinishStopped();
    progress_.CheckpointProblem(uploader_->State().problem, Now());
    status = uploader_->Wait(Now() + kStopPoll);
  }
  if (absl::IsAborted(status)) return Fenced();
  if (status.ok()) {
    ForgetAllState();
    // Its checkpoint is there all the same: one bad batch at the very end loses nothing.
    const absl::Status loss = CheckFinalLoss(session_->trainer_state());
    return loss.ok() ? TrainerExit() : StepFailure(loss);
  }
  return {absl::IsResourceExhausted(status) ? kExitError : kExitNetwork, v1::FAILURE_CLASS_HOST,
          absl::StrCat("all steps are done, but the last checkpoint could not be saved: ",
                       std::string(status.message()))};
}

int Train(v1::TrainerStart start, MessageChannel* channel, const TrainerDevice& device) {
  Trainer trainer(std::move(start), channel, device);
  return EndRank(trainer.Run(), channel);
}

int EndRank(const TrainerExit& exit, MessageChannel* channel) {
  if (exit.message.empty()) return exit.code;
  if (!exit.with_last_line) spdlog::error("{}", exit.message);
  v1::TrainerMessage message;
  message.mutable_failure()->set_class_(exit.failure_class);
  message.mutable_failure()->set_message(exit.message);
  message.mutable_failure()->set_with_last_line(exit.with_last_line);
  *message.mutable_failure()->mutable_position() = exit.position;
  (void)channel->Send(message, Clock::Real()->Now() + absl::Seconds(1));
  // What waits for a disk that is silent would never end.
  if (exit.failure_class == v1::FAILURE_CLASS_HOST) {
    spdlog::default_logger()->flush();
    std::_Exit(exit.code);
  }
  return exit.code;
}

int RunRank(MessageChannel channel, absl::FunctionRef<int(v1::TrainerStart, MessageChannel*)> run) {
  v1::TrainerStart start;
  const absl::Status status = channel.Receive(&start, Clock::Real()->Now() + kHandOver);
  if (status.ok()) return run(std::move(start), &channel);
  spdlog::error("no start message from the worker: {}", std::string(status.message()));
  return kExitError;
}

}  // namespace milepost::worker
