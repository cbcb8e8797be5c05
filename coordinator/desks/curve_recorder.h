// Makes curves of what jobs' ranks report, and stores them every few seconds, on a thread of its
// own.
//
//   CurveRecorder recorder(&store->curves());
//   recorder.Take(std::move(outcome.reports), outcome.deleted_jobs);
//   MP_ASSIGN_OR_RETURN(v1::JobCurves curves, recorder.Get(7, /*max_points=*/0));
//   recorder.Stop();
//
// In memory are the curves of jobs that have reported in the last minutes, and no others. A process
// that is killed loses what it was told in the last `store_every`. Thread-safe.
#ifndef MILEPOST_COORDINATOR_DESKS_CURVE_RECORDER_H_
#define MILEPOST_COORDINATOR_DESKS_CURVE_RECORDER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/core/curve_set.h"
#include "coordinator/store/curve_store.h"
#include "milepost/v1/job.pb.h"

namespace milepost::coordinator {

class CurveRecorder {
 public:
  explicit CurveRecorder(CurveStore* store, absl::Duration store_every = absl::Seconds(5));
  ~CurveRecorder() { Stop(); }

  // Never blocks for long. Reports of jobs that are deleted with it, or were, are forgotten.
  void Take(std::vector<RankZeroReport> reports, const std::set<int64_t>& deleted);

  // With all that was taken before. Of a job without one, nothing. Blocks on the disk.
  absl::StatusOr<v1::JobCurves> Get(int64_t job, size_t max_points);

  // Stores what is not stored yet. What comes later is not taken. Idempotent.
  void Stop();

 private:
  struct Running {
    CurveSet curves;
    absl::Time last_report;
  };

  void Run();
  // Makes what waits part of the curves.
  void Absorb() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Running& Find(int64_t job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Store() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  CurveStore* const store_;
  const absl::Duration store_every_;

  // Held for no longer than a report takes to go in or out.
  absl::Mutex waiting_mutex_;
  std::vector<RankZeroReport> waiting_ ABSL_GUARDED_BY(waiting_mutex_);
  std::vector<int64_t> deleted_ ABSL_GUARDED_BY(waiting_mutex_);
  bool stopping_ ABSL_GUARDED_BY(waiting_mutex_) = false;

  absl::Mutex mutex_ ABSL_ACQUIRED_BEFORE(waiting_mutex_);
  std::map<int64_t, Running> running_ ABSL_GUARDED_BY(mutex_);  // by job
  bool store_fails_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_DESKS_CURVE_RECORDER_H_
