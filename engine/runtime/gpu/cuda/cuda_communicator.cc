#include "engine/runtime/gpu/cuda/cuda_communicator.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/runtime/gpu/communicators/host_staged_communicator.h"
#include "engine/runtime/gpu/communicators/nccl_communicator.h"
#include "engine/runtime/gpu/cuda/cuda_status.h"
#include "engine/runtime/gpu/cuda/nccl.h"
#include "engine/runtime/gpu/cuda/staging_stream.h"

namespace milepost::runtime {
namespace {

using GpuId = std::array<char, 16>;

absl::StatusOr<GpuId> CurrentGpu() {
  int ordinal = 0;
  MP_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&ordinal), "cudaGetDevice"));
  cudaDeviceProp properties;
  MP_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties"));
  GpuId id;
  static_assert(sizeof(properties.uuid) == sizeof(id));
  std::memcpy(id.data(), &properties.uuid, id.size());
  return id;
}

// Whether two ranks have one GPU: its number is the world's only.
absl::StatusOr<bool> GpusAreShared(comm::Communicator& ranks) {
  std::vector<GpuId> gpus(ranks.world());
  MP_ASSIGN_OR_RETURN(gpus[ranks.rank()], CurrentGpu());
  MP_RETURN_IF_ERROR(ranks.AllGather(gpus.data(), gpus.size() * sizeof(GpuId)));
  std::sort(gpus.begin(), gpus.end());
  return std::adjacent_find(gpus.begin(), gpus.end()) != gpus.end();
}

// The communicator with what it needs.
class ThroughTheHost : public DeviceCommunicator {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceCommunicator>> Create(const plan::StepPlan& plan,
                                                                    plan::Stream stream,
                                                                    comm::Communicator& ranks) {
    MP_ASSIGN_OR_RETURN(const CudaStagingStream staging, CudaStagingStream::Open());
    MP_ASSIGN_OR_RETURN(const int64_t bytes, StagingBytes(plan, ranks.rank(), stream));
    auto made = std::unique_ptr<ThroughTheHost>(new ThroughTheHost(staging));
    // The words lie in front, in cache lines of their own.
    void* pinned = nullptr;
    MP_RETURN_IF_ERROR(CudaStatus(
        cudaHostAlloc(&pinned, static_cast<size_t>(bytes + 2 * kLine), cudaHostAllocPortable),
        "cudaHostAlloc"));
    made->pinned_ = static_cast<char*>(pinned);
    made->communicator_ = std::make_unique<HostStagedCommunicator>(
        made->stream_, ranks,
        HostStagedCommunicator::Pinned{reinterpret_cast<uint32_t*>(made->pinned_),
                                       reinterpret_cast<uint32_t*>(made->pinned_ + kLine),
                                       made->pinned_ + 2 * kLine, bytes});
    return made;
  }
  ~ThroughTheHost() override {
    communicator_.reset();
    cudaFreeHost(pinned_);
  }

  int rank() const override { return communicator_->rank(); }
  int world() const override { return communicator_->world(); }
  bool capturable() const override { return communicator_->capturable(); }
  absl::Status Enqueue(const Collective& call, char* arena, void* scratch,
                       cudaStream_t stream) override {
    return communicator_->Enqueue(call, arena, scratch, stream);
  }
  absl::Status EnqueueRows(const RowTransfers& moves, cudaStream_t stream) override {
    return communicator_->EnqueueRows(moves, stream);
  }
  absl::Status Health() override { return communicator_->Health(); }
  void Abort(absl::string_view reason) override { communicator_->Abort(reason); }

 private:
  static constexpr int64_t kLine = 128;

  explicit ThroughTheHost(const CudaStagingStream& stream) : stream_(stream) {}

  CudaStagingStream stream_;
  char* pinned_ = nullptr;
  std::unique_ptr<HostStagedCommunicator> communicator_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceCommunicator>> ConnectOnGpus(const plan::StepPlan& plan,
                                                                  plan::Stream stream,
                                                                  comm::Communicator& ranks,
                                                                  GpuTransport transport,
                                                                  std::function<bool()> cancelled) {
  bool through_host = transport == GpuTransport::kHost;
  if (transport == GpuTransport::kAuto) {
    MP_ASSIGN_OR_RETURN(through_host, GpusAreShared(ranks));
  }
  if (through_host) return ThroughTheHost::Create(plan, stream, ranks);
  NcclOptions options = {.cancelled = std::move(cancelled)};
  MP_ASSIGN_OR_RETURN(options.sets, RankSetsOf(plan, ranks.rank(), stream));
  return NcclCommunicator::Create(options, Nccl(), ranks);
}

}  // namespace milepost::runtime
