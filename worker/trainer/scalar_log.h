// The scalars that a training run leaves for TensorBoard. Training never fails because of them: a
// folder that cannot be written causes one line in the log and nothing else.
//
//   ScalarLog log(ScalarFolder("/runs/a", "jobs/7", uid), session.step(), now);
//   log.Step(progress, now);         // after every step
//   log.Validation(progress, now);   // after a validation
//
// It writes at most ten points a second. Not thread-safe. About once a second it writes a few KiB
// to a file.
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

// The job's own folder inside `base`, for example "/runs/a/jobs-7". Jobs of one spec share `base`
// (an array, a fork). The folder is created, and the job's uid is stored in it. When a jobs/7 of
// another data directory has that folder, this job gets "/runs/a/jobs-7-1a2b3c4d", after its uid.
// When the folder cannot be made, ScalarLog reports it.
std::string ScalarFolder(const std::string& base, const std::string& job, const std::string& uid);

// Adds a remedy for the user when a folder may not be written or lies on a read-only disk.
absl::Status WithRemedy(const absl::Status& status);

class ScalarLog {
 public:
  ScalarLog(const std::string& folder, int64_t start_step, absl::Time now);
  // Writes the points that are still buffered.
  ~ScalarLog();

  // Why nothing is written. The message does not name the field "report.tensorboard".
  const absl::Status& status() const { return status_; }

  void Step(const v1::Progress& progress, absl::Time now);
  void Validation(const v1::Progress& progress, absl::Time now);

 private:
  void Flush();

  absl::Status status_;
  std::unique_ptr<TensorBoardWriter> events_;  // null: the file cannot be written
  absl::Time last_point_ = absl::InfinitePast();
  absl::Time last_flush_ = absl::InfinitePast();
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_SCALAR_LOG_H_
