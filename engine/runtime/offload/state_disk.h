// A rank's optimizer state on its host's disk (train.offload.optimizer: nvme): the plan's
// disk_regions in one file (state_file/state_file.h), and its turns in the arena in host memory,
// to which groups are read and from which they are written.
//
//   MP_ASSIGN_OR_RETURN(auto disk, StateDisk::Open(plan, "/nvme", rank, host_arena));
//   MP_RETURN_IF_ERROR(disk->Load(group));     // ... the group's state is in its buffers
//   MP_RETURN_IF_ERROR(disk->Store(group));    // ... and may be another one's now
//
// In a step the bound kReadState and kWriteState only begin: the disk works beside what follows,
// and who needs the bytes waits for the turn. So on each of the plan's disk streams one op is under
// way at a time, and it begins when the one before is over, whatever thread does the host's work.
//
// One thread at a time. `plan` and `host_arena` must outlive it; its destructor waits for what is
// under way.
#ifndef MILEPOST_ENGINE_RUNTIME_OFFLOAD_STATE_DISK_H_
#define MILEPOST_ENGINE_RUNTIME_OFFLOAD_STATE_DISK_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/backend.h"
#include "engine/runtime/executor/op_binding.h"
#include "engine/runtime/state_file/state_file.h"

namespace milepost::runtime {

class StateDisk {
 public:
  // Reserves plan.disk_bytes in `folder`, which must be there: RESOURCE_EXHAUSTED with the bytes
  // that are needed and free, NOT_FOUND, PERMISSION_DENIED. `file`: how it is opened; path and
  // regions are set here. Blocks.
  static absl::StatusOr<std::unique_ptr<StateDisk>> Open(const plan::StepPlan& plan,
                                                         const std::string& folder, int rank,
                                                         char* host_arena,
                                                         StateFileOptions file = {});

  // Errors of all below are the file's, as IsDiskFailure knows them.
  // ---- in a step ----
  // A kReadState or kWriteState of the group. Blocks only while the turn's last one is under way.
  absl::Status Begin(int group, bool write);
  // Until the turn's last one is over.
  absl::Status Await(int turn);
  absl::Status AwaitAll();

  // ---- between steps; they block ----
  // All of a group's states, or its master alone. Zeros where it was never stored.
  absl::Status Load(int group);
  absl::Status LoadMaster(int group);
  absl::Status Store(int group);

  // Whether states of the group are on disk: not those of a frozen group in fp32, whose parameters
  // are all there is.
  bool Has(int group) const { return !pieces_[group].empty(); }
  int64_t bytes() const { return file_->bytes(); }
  std::string description() const { return file_->description(); }

 private:
  // One state of a group.
  struct Piece {
    int region = 0;
    char* data = nullptr;
    int64_t bytes = 0;
  };

  StateDisk(const plan::StepPlan& plan, char* host_arena);
  absl::Status LoadPieces(int group, size_t count);

  const plan::StepPlan& plan_;
  std::vector<std::vector<Piece>> pieces_;                         // by group, the master first
  std::vector<bool> stored_;                                       // by group
  std::array<std::vector<int>, plan::kDiskTurns> under_way_ = {};  // regions
  std::unique_ptr<StateFile> file_;
};

// Whether an error is the disk's: the host's failure, not the job's.
bool IsDiskFailure(const absl::Status& status);
// An error that it is. A time-out gets another code: it is not a peer's.
absl::Status DiskFailure(const absl::Status& status);

// The begin of a kReadState or kWriteState. INTERNAL without a disk.
absl::StatusOr<BoundOp> BindDiskTransfer(const OpBinding& b);
// `update`, kOptimizer of b's group, once the state is there.
absl::StatusOr<BoundOp> AfterItsState(const OpBinding& b, absl::StatusOr<BoundOp> update);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_OFFLOAD_STATE_DISK_H_
