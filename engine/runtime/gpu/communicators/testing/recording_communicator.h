// Writes down what is enqueued, and does none of it: one rank alone, with values that stay what
// they are.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_TESTING_RECORDING_COMMUNICATOR_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_TESTING_RECORDING_COMMUNICATOR_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/runtime/gpu/backend/device_communicator.h"

namespace milepost::runtime {

class RecordingCommunicator : public DeviceCommunicator {
 public:
  RecordingCommunicator(int rank, int world) : rank_(rank), world_(world) {}

  std::vector<Collective> calls;
  std::vector<RowTransfers> rows;
  std::vector<cudaStream_t> streams;  // by call of either kind

  int rank() const override { return rank_; }
  int world() const override { return world_; }
  bool capturable() const override { return true; }
  absl::Status Enqueue(const Collective& call, char* arena, void* scratch,
                       cudaStream_t stream) override {
    calls.push_back(call);
    streams.push_back(stream);
    if (arena == nullptr) return absl::InternalError("no arena");
    if ((scratch == nullptr) && CollectiveScratchBytes(call) > 0) {
      return absl::InternalError("no scratch");
    }
    return absl::OkStatus();
  }
  absl::Status EnqueueRows(const RowTransfers& moves, cudaStream_t stream) override {
    rows.push_back(moves);
    streams.push_back(stream);
    return absl::OkStatus();
  }
  absl::Status Health() override { return absl::OkStatus(); }
  void Abort(absl::string_view) override {}

 private:
  const int rank_;
  const int world_;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_TESTING_RECORDING_COMMUNICATOR_H_
