// What a rank tells its worker about each step.
#ifndef MILEPOST_WORKER_TRAINER_PROGRESS_H_
#define MILEPOST_WORKER_TRAINER_PROGRESS_H_

#include "absl/time/time.h"
#include "common/message_channel.h"
#include "engine/data/sample_source.h"
#include "engine/runtime/session/training_session.h"
#include "milepost/v1/trainer.pb.h"

namespace milepost::worker {

// Collects the figures of an attempt and sends them to the worker, at most ten times a second
// unless a call demands more. It never waits for the worker. Not thread-safe.
class ProgressReporter {
 public:
  // `channel` must outlive this object.
  ProgressReporter(MessageChannel* channel, bool log_steps) : channel_(channel), log_(log_steps) {}

  // Call it before the first step.
  void Begin(const v1::TrainerState& state, const runtime::TrainingSession& session,
             const v1::JobSpec& spec, const std::string& restored_from = "");
  void Step(const runtime::StepReport& report, absl::Time now);
  void Validation(int64_t step, const runtime::EvaluationReport& report);
  void Hold(absl::Duration held);
  // Empty: there is no problem. A change is sent at once.
  void CheckpointProblem(const std::string& problem, absl::Time now);
  // With `must` it sends at once, otherwise only when the next report is due.
  void Send(absl::Time now, bool must);

  const v1::Progress& progress() const { return progress_; }

 private:
  void LogStep(absl::Time now, bool must);
  // `on`: of a further set " on code". Also logs it.
  v1::LossReport Measured(int64_t step, const std::string& on,
                          const runtime::EvaluationReport::Head& head) const;
  void SetData(const data::SourceStats& stats);

  MessageChannel* const channel_;
  const bool log_;
  v1::Progress progress_;
  int64_t total_steps_ = 0;
  bool of_pairs_ = false;      // the loss is train.dpo's
  double flops_per_step_ = 0;  // of this rank
  double matmul_rate_ = 0;     // of its device, FLOP/s
  bool pending_ = false;       // a Send with `must` was refused
  absl::Time last_sent_ = absl::InfinitePast();
  absl::Time last_logged_ = absl::InfinitePast();
  int64_t logged_step_ = 0;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_PROGRESS_H_
