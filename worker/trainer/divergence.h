// Whether a run has diverged: skipped steps one after the other, or a final loss that is no number.
// Every rank sees the same reports and comes to the same end. Not thread-safe; no I/O.
//
//   DivergenceWatch watch(spec.train().max_skipped_steps());
//   MP_RETURN_IF_ERROR(watch.Step(report));           // after every step
//   MP_RETURN_IF_ERROR(CheckFinalLoss(session.trainer_state()));  // after the last one
#ifndef MILEPOST_WORKER_TRAINER_DIVERGENCE_H_
#define MILEPOST_WORKER_TRAINER_DIVERGENCE_H_

#include <cstdint>
#include <deque>

#include "absl/status/status.h"
#include "engine/runtime/session.h"

namespace milepost::worker {

class DivergenceWatch {
 public:
  // `most`: skipped steps in order, as train.max_skipped_steps has them; 0: any number.
  explicit DivergenceWatch(int64_t most) : most_(most) {}

  // FAILED_PRECONDITION once there were so many, with what loss and norm did before. A step whose
  // overflow a lower loss scale may mend does not count, and ends no series.
  absl::Status Step(const runtime::StepReport& report);

  // The last step was skipped, and not for the loss scale: parameters may be no numbers any more.
  bool suspicious() const { return in_order_ > 0; }

 private:
  absl::Status Diverged(const runtime::StepReport& report) const;

  const int64_t most_;
  int64_t in_order_ = 0;
  bool at_floor_ = false;                 // before the next step: its overflow cannot be mended
  std::deque<runtime::StepReport> good_;  // the last few that were not skipped
};

// FAILED_PRECONDITION where the loss of the last step, or the validation loss after it, is NaN or
// infinite.
absl::Status CheckFinalLoss(const v1::TrainerState& state);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_DIVERGENCE_H_
