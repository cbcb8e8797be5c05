// Device memory that is host memory, and ranks that are threads: a call is made at once, over a
// communicator among them (comm/in_process.h). What Enqueue blocks for, a device's stream would.
//
//   auto ranks = comm::MakeInProcessGroup(2);
//   InProcessDeviceCommunicator communicator(*ranks[rank]);   // on the thread of the rank
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_TESTING_IN_PROCESS_DEVICE_COMMUNICATOR_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_TESTING_IN_PROCESS_DEVICE_COMMUNICATOR_H_

#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "engine/comm/communicator.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/stage_transfers.h"
#include "engine/runtime/gpu/backend/device_communicator.h"

namespace milepost::runtime {

// Whether what the device executor calls so may wait for peers (FakeDevice::SetBeside).
inline bool MeetsPeers(absl::string_view name) {
  for (const char* kind : {"(stage_", "(tensor_", "(reduce_", "(gather_", "(tokens_to_",
                           "(heads_to_", "(expert_segments", "(rows_"}) {
    if (absl::StrContains(name, kind)) return true;
  }
  return false;
}

// Among whom the calls of a stream are made, of the in-process groups that there are.
inline comm::Communicator& RanksOf(plan::Stream stream, comm::Communicator& collectives,
                                   const StageTransfers& transfers) {
  return stream == plan::Stream::kStageActivations ? *transfers.activations
         : stream == plan::Stream::kStageGradients ? *transfers.gradients
                                                   : collectives;
}

class InProcessDeviceCommunicator : public DeviceCommunicator {
 public:
  explicit InProcessDeviceCommunicator(comm::Communicator& ranks, bool capturable = true)
      : ranks_(ranks), capturable_(capturable) {}

  int rank() const override { return ranks_.rank(); }
  int world() const override { return ranks_.world(); }
  bool capturable() const override { return capturable_; }
  absl::Status Enqueue(const Collective& call, char* arena, void*, cudaStream_t) override {
    return Alone([&] { return Call(call, arena); });
  }
  absl::Status EnqueueRows(const RowTransfers& moves, cudaStream_t) override {
    return Alone([&] {
      std::memcpy(moves.stays.to, moves.stays.from, static_cast<size_t>(moves.stays.bytes));
      return ranks_.Exchange(moves.transfers, moves.among);
    });
  }
  absl::Status Health() override { return Keep(absl::OkStatus()); }
  void Abort(absl::string_view reason) override {
    Keep(absl::AbortedError(reason)).IgnoreError();
    ranks_.Abort(reason);
  }

 private:
  absl::Status Alone(absl::FunctionRef<absl::Status()> call) {
    if (busy_.exchange(true)) return Keep(absl::InternalError("two streams share a communicator"));
    const absl::Status status = call();
    busy_ = false;
    return Keep(status);
  }
  absl::Status Call(const Collective& call, char* arena) {
    if (call.kind == Collective::Kind::kExchange) {
      return ExchangeOnHost(call, arena + call.sent.offset, arena + call.received.offset, ranks_);
    }
    sums_.resize(static_cast<size_t>(call.bytes()));
    return CallOnHost(call, arena + call.offset, ranks_, sums_.data());
  }
  // The first failure.
  absl::Status Keep(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = status;
    return failure_;
  }

  comm::Communicator& ranks_;
  const bool capturable_;
  std::vector<char> sums_;
  std::atomic<bool> busy_{false};  // with a call, of which a stream makes one at a time
  std::mutex mutex_;
  absl::Status failure_;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_TESTING_IN_PROCESS_DEVICE_COMMUNICATOR_H_
