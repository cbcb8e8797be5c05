#include "engine/runtime/gpu/cuda/staging_stream.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/runtime/gpu/cuda/cuda_status.h"

namespace milepost::runtime {
namespace {

static_assert(sizeof(CUdeviceptr) == sizeof(unsigned long long));
static_assert(sizeof(CUresult) == sizeof(int));
constexpr unsigned kVersion = 12000;  // from when on they need no leave of the driver

// The driver is not linked, so that the program starts without one.
absl::StatusOr<void*> DriverFunction(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  MP_RETURN_IF_ERROR(CudaStatus(
      cudaGetDriverEntryPointByVersion(name, &function, kVersion, cudaEnableDefault, &found),
      name));
  if (function != nullptr && found == cudaDriverEntryPointSuccess) return function;
  return absl::FailedPreconditionError(
      absl::StrCat("the driver has no ", name, "; collectives through the host need one for CUDA ",
                   kVersion / 1000, " or later"));
}

// The address of pinned memory is the same on the device.
unsigned long long OnDevice(const uint32_t* word) {
  return static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(word));
}

absl::Status DriverStatus(int result, const char* call) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": error ", result, " of the driver"));
}

}  // namespace

absl::StatusOr<CudaStagingStream> CudaStagingStream::Open() {
  CudaStagingStream stream;
  MP_ASSIGN_OR_RETURN(void* write, DriverFunction("cuStreamWriteValue32"));
  MP_ASSIGN_OR_RETURN(void* wait, DriverFunction("cuStreamWaitValue32"));
  stream.write_ = reinterpret_cast<MemoryOperation>(write);
  stream.wait_ = reinterpret_cast<MemoryOperation>(wait);
  return stream;
}

absl::Status CudaStagingStream::Copy(void* to, const void* from, int64_t bytes,
                                     cudaStream_t stream) {
  return CudaStatus(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream),
      "cudaMemcpyAsync");
}

// The driver's default: a fence of the whole system in front of the write.
absl::Status CudaStagingStream::Set(uint32_t* word, uint32_t value, cudaStream_t stream) {
  return DriverStatus(write_(stream, OnDevice(word), value, CU_STREAM_WRITE_VALUE_DEFAULT),
                      "cuStreamWriteValue32");
}

absl::Status CudaStagingStream::Await(uint32_t* word, uint32_t value, cudaStream_t stream) {
  return DriverStatus(wait_(stream, OnDevice(word), value, CU_STREAM_WAIT_VALUE_GEQ),
                      "cuStreamWaitValue32");
}

}  // namespace milepost::runtime
