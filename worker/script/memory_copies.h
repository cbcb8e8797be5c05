// What a script's ranks saved last, in the memory of their own hosts and of others' hosts
// (checkpoint.redundancy: 1). A rank or a host that is lost then costs no save, also where the
// save was not durable. The method is that of worker/memory_state/peer_copies.h.
//
//   MemoryCopies copies({.folder = "/dev/shm/...", .job = uid, .generation = 3, ...});
//   MP_RETURN_IF_ERROR(copies.Keep(step, tensors, slices));   // on every rank
//
//   // In the next attempt, on every rank:
//   MP_ASSIGN_OR_RETURN(std::optional<SaveInMemory> save,
//                       TakeUpSave(folder, uid, generation, least_step, communicator));
//   if (save) ...   // upload each rank's slices as the checkpoint of save->step
//
// There are two copies each of own and received state, written in turn, each in files of its own
// that are made anew where a save has other tensors: the save before is whole until this one is,
// everywhere.
#ifndef MILEPOST_WORKER_SCRIPT_MEMORY_COPIES_H_
#define MILEPOST_WORKER_SCRIPT_MEMORY_COPIES_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/comm/communicator.h"
#include "engine/state/layout.h"
#include "milepost/v1/checkpoint.pb.h"
#include "worker/memory_state/peer_link.h"
#include "worker/memory_state/snapshot_file.h"

namespace milepost::worker {

class MemoryCopies {
 public:
  struct Options {
    std::string folder;  // the job's, on a file system in memory
    SnapshotId id;       // of this rank
    int world = 1;
    // Connects the ranks, before the first copy of several ranks. Blocks.
    std::function<absl::StatusOr<std::unique_ptr<comm::Communicator>>()> connect;
  };
  explicit MemoryCopies(Options options) : options_(std::move(options)) {}

  // Copies this rank's part of a save, `slices` of `tensors`, and the part of another rank. It
  // returns when every rank has done so. Collective: all ranks give the same step and tensors.
  // Blocks. RESOURCE_EXHAUSTED, FAILED_PRECONDITION: there is too little memory, or none to use;
  // then no rank has a copy of this save. DATA_LOSS: a copy arrived damaged. INTERNAL: the steps
  // differ. Otherwise errors are those of the communicator, which ends all copies of the attempt.
  // Call it from one thread.
  absl::Status Keep(int64_t step, const std::vector<v1::TensorInfo>& tensors,
                    const std::vector<state::TensorSlice>& slices);

  // Ends a call of Keep, and all later ones. From any thread.
  void Abort();

 private:
  struct Slot {
    std::unique_ptr<SnapshotFile> own;
    std::unique_ptr<SnapshotFile> received;  // null: there is one rank
    // What they are for.
    uint64_t tensors = 0;
    std::vector<state::Interval> intervals;
    PeerState peer;
  };
  absl::Status Connect();
  // Whether any rank says so. Collective.
  absl::StatusOr<bool> Any(bool here);
  absl::Status CheckStep(int64_t step);
  // For a save of other tensors than it has.
  absl::Status MakeSlot(const std::vector<v1::TensorInfo>& tensors,
                        const std::vector<state::Interval>& intervals);
  absl::Status MakeFiles(const std::vector<v1::TensorInfo>& tensors,
                         const std::vector<state::Interval>& intervals, Slot& slot);
  absl::Status Fill(const Slot& slot, int64_t step, const std::vector<state::TensorSlice>& slices);

  const Options options_;
  PeerLink link_;
  std::array<Slot, 2> slots_;
  size_t next_ = 0;
  bool kept_ = false;  // a save
  absl::Mutex mutex_;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<comm::Communicator> communicator_;  // set under mutex_, used by Keep's thread
};

// A save of an earlier attempt.
struct SaveInMemory {
  int64_t step = 0;
  std::vector<v1::TensorInfo> tensors;
  std::vector<state::TensorSlice> slices;  // this rank's share: the ranks' are the whole save
  std::vector<FoundSnapshot> bytes;        // the slices lie in these
};

// Looks for the newest save, of `least_step` or later, that all hosts together have completely.
// Nullopt: there is none. Collective: every rank gets the same step and tensors. Blocks. Errors
// are the communicator's.
absl::StatusOr<std::optional<SaveInMemory>> TakeUpSave(const std::string& folder,
                                                       const std::string& job, int64_t generation,
                                                       int64_t least_step,
                                                       comm::Communicator& communicator);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_MEMORY_COPIES_H_
