// The desk for workers: their streams, what they say, and what administrators do with them.
//
// A worker whose message could not be stored is cut off: its next Hello repeats it.
#ifndef MILEPOST_COORDINATOR_DESKS_WORKER_DESK_H_
#define MILEPOST_COORDINATOR_DESKS_WORKER_DESK_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/desks/desk.h"
#include "coordinator/desks/log_writer.h"
#include "milepost/v1/worker.pb.h"

namespace milepost::coordinator {

class AttemptDesk;
class JobDesk;
class PageRoom;
class WorkerSession;

class WorkerDesk : private Desk {
 public:
  // They outlive the desk.
  WorkerDesk(const DeskTools& tools, AttemptDesk* attempts, JobDesk* jobs);

  // The session of a worker that said Hello: it gets Welcome, then all that is wanted of it.
  // Replaces an older session of the worker.
  void Attach(const std::shared_ptr<WorkerSession>& session, const v1::Hello& hello,
              std::function<void(const absl::Status&)> done);
  // `done` is called when it has been dealt with, by any thread and maybe at once; it must not
  // block.
  void Receive(const std::shared_ptr<WorkerSession>& session, v1::WorkerMessage message,
               std::function<void()> done);
  void Detach(const std::shared_ptr<WorkerSession>& session);

  absl::StatusOr<v1::Worker> Get(const std::string& name);
  // By name, after `after`, as many as there is room for.
  std::vector<v1::Worker> List(const std::string& after, PageRoom* room);
  absl::StatusOr<v1::Worker> Drain(const v1::DrainWorkerRequest& request);
  absl::StatusOr<v1::Worker> Resume(const std::string& name);
  absl::Status Delete(const std::string& name);

  // ---- by the coordinator ----
  // To their streams.
  void SendLocked(const std::vector<Action>& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t ConnectedLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return sessions_.size(); }
  // Of all workers, to be cut: a stream that ends from now on says nothing about its worker.
  using Sessions = std::map<std::string, std::shared_ptr<WorkerSession>>;
  Sessions TakeSessionsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Stores what waits of logs.
  void Stop() { log_writer_.Stop(); }

 private:
  Event EventOf(const std::string& worker, v1::WorkerMessage message);
  void WriteLogs(const std::string& worker, v1::LogBatch batch, std::function<void()> done);
  bool IsCurrentLocked(const std::shared_ptr<WorkerSession>& session) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  v1::Worker DescribeLocked(const v1::WorkerRecord& record) ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void StoreLogs(const v1::LogBatch& batch);
  void TrimLogs();

  AttemptDesk* const attempts_;
  JobDesk* const jobs_;
  Sessions sessions_ ABSL_GUARDED_BY(mutex_);  // by worker
  LogWriter log_writer_;                       // its thread uses what is above
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_DESKS_WORKER_DESK_H_
