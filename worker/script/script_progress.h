// What a script says of its progress, as the training status that Kubeflow Trainer takes, which
// transformers' Trainer posts by itself (KubeflowCallback):
//   {"trainerStatus": {"progressPercentage": 42, "estimatedRemainingSeconds": 90,
//                      "metrics": [{"name": "current_step", "value": "42"},
//                                  {"name": "loss", "value": "2.31"}]}}
// https://www.kubeflow.org/docs/components/trainer/ (status updates from a training job)
//
//   ScriptProgress progress;
//   MP_RETURN_IF_ERROR(progress.Take(body, now));
//   Send(progress.progress());
//
// Not thread-safe. Does not block.
#ifndef MILEPOST_WORKER_SCRIPT_SCRIPT_PROGRESS_H_
#define MILEPOST_WORKER_SCRIPT_SCRIPT_PROGRESS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "milepost/v1/job.pb.h"

namespace milepost::worker {

class ScriptProgress {
 public:
  static constexpr int kMostMetrics = 64;  // further names are passed over

  ScriptProgress();

  // INVALID_ARGUMENT: the body is no such status; nothing has changed. Any bytes are safe. Metrics
  // that Milepost knows become fields: current_step, total_steps, loss, eval_loss, learning_rate,
  // grad_norm. Other numbers are kept by name. What a status leaves out stays as it was. 100
  // percent without a step is the last step. Where neither current_step nor total_steps was ever
  // said, the percentage is the step, of 100.
  absl::Status Take(absl::string_view body, absl::Time now);

  const v1::Progress& progress() const { return progress_; }

 private:
  void TakeMetric(absl::string_view name, double value);

  v1::Progress progress_;
  bool counts_steps_ = false;  // the script has said a step, or how many there are
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_SCRIPT_PROGRESS_H_
