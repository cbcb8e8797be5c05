// The coordinator's store, modelled: records as the last write that landed has them, and
// checkpoints. A write lands whole or not at all. What the real store promises of a write is in
// coordinator/store/store.h, of checkpoints in coordinator/store/checkpoint_store.h.
#ifndef MILEPOST_TESTS_SIM_DISK_H_
#define MILEPOST_TESTS_SIM_DISK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/state.h"
#include "tests/sim/plants.h"

namespace milepost::sim {

struct SavedCheckpoint {
  int64_t number = 0;
  int64_t generation = 0;
  int64_t step = 0;
};

class Disk {
 public:
  explicit Disk(Plant plant) : plant_(plant) {}

  bool full = false;
  absl::Duration slowness;  // that a write takes longer than usual

  absl::Status Write(const coordinator::Outcome& outcome);
  coordinator::State Load() const;

  // ---- checkpoints, by job ----
  // The number; ALREADY_EXISTS when the step is saved, RESOURCE_EXHAUSTED when the disk is full.
  absl::StatusOr<int64_t> Begin(int64_t job, int64_t generation, int64_t step);
  // It is about to be committed: until it is, or is dropped, nothing else ends it but a crash and a
  // newer one. NOT_FOUND when it is neither open nor saved.
  absl::Status Claim(int64_t job, int64_t number);
  absl::Status Commit(int64_t job, int64_t number);
  void Drop(int64_t job, int64_t number);
  void AbortOlder(int64_t job, int64_t generation);
  void Retain(int64_t job, int keep_last);
  std::optional<SavedCheckpoint> Newest(int64_t job) const;
  // What a crash leaves: no open checkpoints, and with kAcknowledgeUnsynced not the newest write.
  void Crash();
  int open() const { return static_cast<int>(open_.size()); }

 private:
  const Plant plant_;
  std::map<int64_t, v1::JobRecord> jobs_;
  std::map<std::string, v1::WorkerRecord> workers_;
  std::map<std::string, v1::QueueRecord> queues_;
  struct Undo {
    std::map<int64_t, std::optional<v1::JobRecord>> jobs;
    std::map<std::string, std::optional<v1::WorkerRecord>> workers;
  } undo_;
  int64_t next_checkpoint_ = 1;
  std::map<int64_t, SavedCheckpoint> open_;  // by job: a newer one supersedes the older
  std::set<int64_t> claimed_;                // numbers
  std::map<int64_t, std::vector<SavedCheckpoint>> saved_;
};

}  // namespace milepost::sim

#endif  // MILEPOST_TESTS_SIM_DISK_H_
