// Collectives that travel through the host: device -> pinned memory -> comm::Communicator -> pinned
// memory -> device. For ranks that share a GPU, and where there is no NCCL.
//
//   HostStagedCommunicator communicator(transfer, *tcp, pinned);   // of StagingBytes(plan, rank)
//
// A call is an ordinary piece of a stream's work, though what happens in its middle happens on a
// thread of the communicator's own. On the stream lie, for call number n:
//
//   copy to the host | ready = n | wait until done >= n | copy to the device
//
// and the thread, which takes the calls in order, waits until ready >= n, makes the call over
// comm::Communicator, and sets done = n. `ready` and `done` are words of pinned memory. So:
//
// - Nothing waits but this stream and this thread. (A host function would do the thread's part as
//   well, but a runtime runs those of all streams on one thread: one that waits for peers stops the
//   host functions of every other stream, whose work the peers may be waiting for.)
// - No deadlock. Let every rank put the same calls on its stream in the same order. (Of what
//   pipeline stages hand on in one direction: let it do the calls between two ranks in the order of
//   both, as the plan has them; what follows holds for each call and the ranks that take part in
//   it, as activations go to later stages alone, and gradients to earlier ones, or as all stages
//   have their calls in one order of all of them: plan/pipeline/interleaved.h.) Take the
//   smallest n that some rank has not finished: on every rank the thread and the stream are done
//   with all before n, so the copy of call n waits only for work that was put on the device before
//   it, which waits for no call from n on, since no stream waits for a stream that waits for a
//   later one (plan::Verify). A host that waits for numbers before it enqueues n waits for earlier
//   calls alone. So every rank's ready reaches n, every thread makes call n, and done
//   = n. That the device runs other streams while one of them waits for a word is what
//   cuStreamWaitValue32 is for; ranks that share a GPU have contexts of their own, which take
//   turns.
// - One staging buffer is enough: the copy of call n + 1 to the host is behind call n's to the
//   device on the stream, and so behind everything that the thread did for n.
// - It ends. The communicator's time-out bounds each call. After the first error, or Abort, `done`
//   is set past every call that was enqueued, so that the stream drains at once (what it copies to
//   the device is undefined then, and Health says so), and Enqueue puts nothing more on it.
//
// Cannot be captured: n would be replayed as it was. Threads: as DeviceCommunicator.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_HOST_STAGED_COMMUNICATOR_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_HOST_STAGED_COMMUNICATOR_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/comm/communicator.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/gpu/backend/device_communicator.h"

namespace milepost::runtime {

// What a stream does for it. Each is put on the stream and returns; work of a stream is in order.
// The real one: engine/runtime/gpu/cuda/staging_stream.h.
class StagingStream {
 public:
  virtual ~StagingStream() = default;
  virtual absl::Status Copy(void* to, const void* from, int64_t bytes, cudaStream_t stream) = 0;
  // *word = value, in pinned memory, once all before it is done and seen by the host.
  virtual absl::Status Set(uint32_t* word, uint32_t value, cudaStream_t stream) = 0;
  // Work that follows waits until *word >= value, in the order of numbers that wrap around.
  virtual absl::Status Await(uint32_t* word, uint32_t value, cudaStream_t stream) = 0;
};

// Of one call of the stream at most: what `staging` of HostStagedCommunicator has to have. INTERNAL
// as CollectiveOf.
absl::StatusOr<int64_t> StagingBytes(const plan::StepPlan& plan, int rank,
                                     plan::Stream stream = plan::Stream::kCommunication);

struct StagedPart;

class HostStagedCommunicator : public DeviceCommunicator {
 public:
  // In pinned host memory.
  struct Pinned {
    uint32_t* ready = nullptr;
    uint32_t* done = nullptr;
    char* staging = nullptr;
    int64_t staging_bytes = 0;
  };

  // All of it must outlive the communicator; `ranks` is used by its thread alone from here on.
  HostStagedCommunicator(StagingStream& transfer, comm::Communicator& ranks, const Pinned& pinned);
  // Aborts `ranks` where a call is under way.
  ~HostStagedCommunicator() override;
  HostStagedCommunicator(const HostStagedCommunicator&) = delete;
  HostStagedCommunicator& operator=(const HostStagedCommunicator&) = delete;

  int rank() const override { return ranks_.rank(); }
  int world() const override { return ranks_.world(); }
  bool capturable() const override { return false; }
  absl::Status Enqueue(const Collective& call, char* arena, void* scratch,
                       cudaStream_t stream) override;
  absl::Status EnqueueRows(const RowTransfers& moves, cudaStream_t stream) override;
  absl::Status Health() override;
  void Abort(absl::string_view reason) override;

 private:
  struct Item {
    std::function<absl::Status()> call;  // on the staging
    uint32_t number = 0;
  };

  absl::Status CheckRoom(int64_t bytes) const;
  absl::Status StageRows(const RowTransfers& moves, cudaStream_t stream);
  // Ends every call; the first failure.
  absl::Status Fail(const absl::Status& status);
  // The call, with its copies in front and behind.
  absl::Status EnqueueCall(std::function<absl::Status()> call, absl::Span<const StagedPart> to_host,
                           absl::Span<const StagedPart> to_device, cudaStream_t stream);
  // Hands it to the thread; its number.
  absl::StatusOr<uint32_t> HandOver(std::function<absl::Status()> call);
  absl::Status EnqueueOn(uint32_t number, absl::Span<const StagedPart> to_host,
                         absl::Span<const StagedPart> to_device, cudaStream_t stream);
  void Run();
  bool AwaitReady(uint32_t number);
  void Finish(uint32_t number, const absl::Status& status);
  void FailLocked(const absl::Status& status);

  StagingStream& transfer_;
  comm::Communicator& ranks_;
  const Pinned pinned_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;            // as many as a step has calls, at most a few steps'
  uint32_t last_ = uint32_t{0} - 64;  // enqueued; so that the wrap is nothing rare
  bool under_way_ = false;            // the thread has an item
  bool stop_ = false;
  absl::Status failure_;  // the first one
  std::thread thread_;    // last: it uses the others
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_HOST_STAGED_COMMUNICATOR_H_
