// What a training run leaves for TensorBoard. Training never fails because of it: a folder that
// cannot be written is said once in the log, and that is all.
//
//   ScalarLog log(ScalarFolder("/runs/a", "jobs/7", uid), session.step(), now);
//   log.Step(progress, now);         // after every step
//   log.Validation(progress, now);   // after a validation
//
// At most ten points a second. Not thread-safe; writes a few KiB to a file about once a second.
#ifndef MILEPOST_WORKER_TRAINER_SCALAR_LOG_H_
#define MILEPOST_WORKER_TRAINER_SCALAR_LOG_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "milepost/v1/job.pb.h"
#include "worker/trainer/tensorboard.h"

namespace milepost::worker {

// The job's own folder in `base`, which jobs of one spec share (an array, a fork):
// "/runs/a/jobs-7". Made, with the job's uid in it: where another data directory's jobs/7 has it
// already, this one's is "/runs/a/jobs-7-1a2b3c4d", after its uid. Where it cannot be made
// ScalarLog says so.
std::string ScalarFolder(const std::string& base, const std::string& job, const std::string& uid);

// What a folder that may not be written, or lies on a read-only disk, asks of the user.
absl::Status WithRemedy(const absl::Status& status);

class ScalarLog {
 public:
  ScalarLog(const std::string& folder, int64_t start_step, absl::Time now);
  // Writes what is still held back.
  ~ScalarLog();

  // Why nothing is written, without "report.tensorboard".
  const absl::Status& status() const { return status_; }

  void Step(const v1::Progress& progress, absl::Time now);
  void Validation(const v1::Progress& progress, absl::Time now);

 private:
  void Flush();

  absl::Status status_;
  std::unique_ptr<TensorBoardWriter> events_;  // null: it cannot be written
  absl::Time last_point_ = absl::InfinitePast();
  absl::Time last_flush_ = absl::InfinitePast();
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_SCALAR_LOG_H_
