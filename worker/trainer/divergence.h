// Detects that a run has diverged: too many skipped steps in a row, or a final loss that is not a
// finite number. Every rank sees the same reports and reaches the same verdict; with train.sync
// every rank of an island, and all of them after an outer step. Not thread-safe; no I/O.
//
//   DivergenceWatch watch(spec.train().max_skipped_steps());
//   MP_RETURN_IF_ERROR(watch.Step(report));           // after every step
//   MP_RETURN_IF_ERROR(CheckFinalLoss(session.trainer_state()));  // after the last one
#ifndef MILEPOST_WORKER_TRAINER_DIVERGENCE_H_
#define MILEPOST_WORKER_TRAINER_DIVERGENCE_H_

#include <cstdint>
#include <deque>

#include "absl/status/status.h"
#include "engine/runtime/session/training_session.h"

namespace milepost::worker {

class DivergenceWatch {
 public:
  // `most`: how many steps in a row make a failure (train.max_skipped_steps); 0: no number does.
  explicit DivergenceWatch(int64_t most) : most_(most) {}

  // FAILED_PRECONDITION once that many steps in a row were skipped; the message has the loss and
  // the norm of the steps before. A step whose overflow a lower loss scale may mend does not count,
  // and does not end a series either.
  absl::Status Step(const runtime::StepReport& report);

  // Steps were skipped since the last good one, and not for the loss scale. The parameters may hold
  // NaN or infinity.
  bool suspicious() const { return in_order_ > 0; }

 private:
  absl::Status Diverged(const runtime::StepReport& report) const;

  const int64_t most_;
  int64_t in_order_ = 0;
  // The loss scale is at its minimum: a lower one cannot mend the next overflow.
  bool at_floor_ = false;
  std::deque<runtime::StepReport> good_;  // the last few that were not skipped
};

// FAILED_PRECONDITION when the loss of the last step, or the validation loss after it, is NaN or
// infinite.
absl::Status CheckFinalLoss(const v1::TrainerState& state);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_DIVERGENCE_H_
