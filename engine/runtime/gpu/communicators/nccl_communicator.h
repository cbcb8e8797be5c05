// Collectives over NCCL: one GPU per rank, one process per rank.
//
//   MP_ASSIGN_OR_RETURN(auto communicator,
//                       NcclCommunicator::Create({.sets = RankSetsOf(plan, rank)}, nccl, *tcp));
//   std::string note = communicator->Register(arena, plan.arena_bytes);
//
// Ranks find each other through a communicator that they have already: versions are compared over
// it, and rank 0's unique id goes out. Every wait of this class has a deadline; NCCL's own calls
// return at once, since its communicators are non-blocking. So one lock around each of them keeps
// Abort prompt whatever another thread is at.
//
// Sums of fp32 and fp64 are NCCL's: their order is its choice. Exchanges are grouped sends and
// receives. Rounded sums are exchanged piece by piece too, and added in rank order by a kernel of
// ours.
//
// Capturable once each kind of call has been made outside of a capture: the first one makes
// connections. Threads: as DeviceCommunicator.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_NCCL_COMMUNICATOR_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_NCCL_COMMUNICATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/comm/communicator.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/gpu/backend/device_communicator.h"
#include "engine/runtime/gpu/communicators/nccl_api.h"

namespace milepost::runtime {

// The sets of ranks, other than all of them, that this rank's calls of the stream are among, each
// once, in an order in which the i-th set of every rank is of the same kind. One of count 0 stands
// for a set that this rank is not in. INTERNAL as CollectiveOf.
absl::StatusOr<std::vector<comm::RankSet>> RankSetsOf(
    const plan::StepPlan& plan, int rank, plan::Stream stream = plan::Stream::kCommunication);

struct NcclOptions {
  std::vector<comm::RankSet> sets;  // RankSetsOf
  absl::Duration init_timeout = absl::Seconds(120);
  // How long a call may take until it is on its stream: the first one of a kind connects to peers.
  absl::Duration enqueue_timeout = absl::Seconds(60);
  absl::Duration close_timeout = absl::Seconds(5);
  // Asked while this rank waits for others in Create: true ends it with ABORTED.
  std::function<bool()> cancelled;
};

class NcclCommunicator : public DeviceCommunicator {
 public:
  // Collective: every rank of `ranks` calls it, with its GPU current. Blocks for init_timeout at
  // most. FAILED_PRECONDITION: versions differ, with who has which; DEADLINE_EXCEEDED; otherwise as
  // Health. `nccl` must outlive the communicator; `ranks` is used only here.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(const NcclOptions& options,
                                                                  NcclApi& nccl,
                                                                  comm::Communicator& ranks);
  // In good order where all is well, by force otherwise, or where that takes close_timeout.
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const override { return rank_; }
  int world() const override { return world_; }
  bool capturable() const override { return true; }
  std::string Register(char* memory, int64_t bytes) override;
  absl::Status Enqueue(const Collective& call, char* arena, void* scratch,
                       cudaStream_t stream) override;
  absl::Status EnqueueRows(const RowTransfers& moves, cudaStream_t stream) override;
  absl::Status Health() override;
  void Abort(absl::string_view reason) override;

 private:
  // One of NCCL's: all ranks, or a set.
  struct Link {
    comm::RankSet set;
    NcclComm comm = nullptr;
    void* registration = nullptr;
  };
  // A call's parts: its link, its values, which of the set's ranks this is.
  struct Bound {
    const Collective& call;
    Link& link;
    char* data;
    int own;
    cudaStream_t stream;
    absl::Time deadline;
  };

  NcclCommunicator(const NcclOptions& options, NcclApi& nccl, int rank, int world)
      : options_(options), nccl_(nccl), rank_(rank), world_(world) {}
  absl::Status CheckVersions(comm::Communicator& ranks);
  absl::Status Connect(comm::Communicator& ranks);
  absl::Status SplitOff(const comm::RankSet& set, absl::Time deadline);
  absl::StatusOr<Link*> LinkOf(const comm::RankSet& set);

  absl::Status EnqueuePlain(const Bound& b);
  absl::Status EnqueueRounded(const Bound& b, char* scratch);
  // Bytes, among the ranks of a set.
  absl::Status Exchange(NcclComm* comm, const comm::RankSet& among,
                        absl::Span<const comm::Communicator::Transfer> transfers,
                        cudaStream_t stream, absl::Time deadline);

  using NcclCall = absl::FunctionRef<NcclResult()>;
  // Makes the call, and waits until NCCL is done with it: the call is on its stream then. `what` is
  // for the message.
  absl::Status Do(NcclComm* comm, const char* what, absl::Time deadline, NcclCall call);
  absl::Status Settle(NcclComm* comm, const char* what, absl::Time deadline);
  // With mutex_ held:
  NcclResult StateOf(NcclComm comm);
  absl::Status StatusOf(NcclResult result, NcclComm comm, absl::string_view what);
  absl::Status FailLocked(const absl::Status& status);
  void AbortLocked();
  bool CloseInOrder();

  const NcclOptions options_;
  NcclApi& nccl_;
  const int rank_;
  const int world_;
  std::mutex mutex_;                          // around every call of NCCL once there are links
  absl::Status failure_;                      // the first one; the links are aborted then
  std::vector<std::unique_ptr<Link>> links_;  // all ranks first
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_NCCL_COMMUNICATOR_H_
