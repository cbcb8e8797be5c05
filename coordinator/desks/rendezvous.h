// The keys of running attempts: in memory for waiting, in the store for the coordinator's next
// start. Thread-safe.
#ifndef MILEPOST_COORDINATOR_DESKS_RENDEZVOUS_H_
#define MILEPOST_COORDINATOR_DESKS_RENDEZVOUS_H_

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace milepost::coordinator {

class Store;

class RendezvousTable {
 public:
  static constexpr size_t kMaxValueBytes = 64 << 10;
  static constexpr size_t kMaxKeyBytes = 1 << 10;
  static constexpr size_t kMaxBytesPerAttempt = 64 << 20;

  explicit RendezvousTable(Store* store) : store_(store) {}

  absl::Status Load();
  // Stores the key, which nobody sees before it is published: the store may not have it for good
  // yet. Never waits for the disk. What Publish is to be called with.
  absl::StatusOr<uint64_t> Put(int64_t job, int64_t generation, const std::string& key,
                               const std::string& value);
  // Waits for the disk where the store promises more than to survive this process.
  absl::Status Publish(int64_t job, int64_t generation, const std::string& key, uint64_t put);
  // Waits for the key to be published. `check` is asked about five times a second while waiting; an
  // error of it is returned. DEADLINE_EXCEEDED at the deadline.
  absl::StatusOr<std::string> Get(int64_t job, int64_t generation, const std::string& key,
                                  absl::Time deadline, const std::function<absl::Status()>& check);
  // Forgets all keys of the job (the store does so with the outcome that ended the attempt).
  void Drop(int64_t job);

 private:
  struct Value {
    std::string bytes;
    uint64_t put = 0;
    bool published = false;
  };
  struct Attempt {
    std::map<std::string, Value> keys;
    size_t bytes = 0;
  };

  Store* const store_;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::map<std::pair<int64_t, int64_t>, Attempt> attempts_ ABSL_GUARDED_BY(mutex_);
  uint64_t puts_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_DESKS_RENDEZVOUS_H_
