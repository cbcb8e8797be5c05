// The desk for queues.
#ifndef MILEPOST_COORDINATOR_DESKS_QUEUE_DESK_H_
#define MILEPOST_COORDINATOR_DESKS_QUEUE_DESK_H_

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/desks/desk.h"
#include "milepost/v1/queue.pb.h"

namespace milepost::coordinator {

class QueueDesk : private Desk {
 public:
  explicit QueueDesk(const DeskTools& tools) : Desk(tools) {}

  absl::StatusOr<v1::Queue> Get(const std::string& name);
  // By name, after `after`.
  std::vector<v1::Queue> List(const std::string& after, int limit);
  absl::StatusOr<v1::Queue> Put(const v1::Queue& queue, bool create, bool allow_missing,
                                bool validate_only);
  absl::Status Delete(const v1::DeleteQueueRequest& request);

 private:
  v1::Queue DescribeLocked(const std::string& id) ABSL_SHARED_LOCKS_REQUIRED(mutex_);
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_DESKS_QUEUE_DESK_H_
