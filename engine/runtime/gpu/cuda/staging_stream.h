// StagingStream (gpu/communicators/host_staged_communicator.h) on CUDA streams: copies of the
// runtime, and the driver's stream memory operations for the words.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_CUDA_STAGING_STREAM_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_CUDA_STAGING_STREAM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/runtime/gpu/communicators/host_staged_communicator.h"

namespace milepost::runtime {

class CudaStagingStream : public StagingStream {
 public:
  // FAILED_PRECONDITION where the driver has no stream memory operations.
  static absl::StatusOr<CudaStagingStream> Open();

  absl::Status Copy(void* to, const void* from, int64_t bytes, cudaStream_t stream) override;
  absl::Status Set(uint32_t* word, uint32_t value, cudaStream_t stream) override;
  absl::Status Await(uint32_t* word, uint32_t value, cudaStream_t stream) override;

 private:
  // As cuda.h has them: CUresult(CUstream, CUdeviceptr, cuuint32_t, unsigned).
  using MemoryOperation = int (*)(cudaStream_t, unsigned long long, uint32_t, unsigned);

  MemoryOperation write_ = nullptr;
  MemoryOperation wait_ = nullptr;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_CUDA_STAGING_STREAM_H_
