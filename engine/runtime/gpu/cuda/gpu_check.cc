#include "engine/runtime/gpu/cuda/gpu_check.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "common/status_macros.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cuda/libraries/cublas_products.h"
#include "engine/runtime/gpu/cuda/cuda_device.h"

namespace milepost::runtime {
namespace {

constexpr absl::Duration kCheckTimeout = absl::Seconds(10);
constexpr int64_t kMemory = int64_t{512} << 20;
constexpr int64_t kSize = 4096;  // of square matrices
constexpr int64_t kMatrix = kSize * kSize * 2;

// bf16 numbers in (-2, -1] and [1, 2), which are noise in every bit that may be.
std::vector<char> Noise(int64_t bytes) {
  std::vector<char> noise(static_cast<size_t>(bytes));
  uint32_t state = 1;
  for (int64_t i = 0; i + 2 <= bytes; i += 2) {
    state = state * 1664525U + 1013904223U;
    const auto half = static_cast<uint16_t>(((state >> 16) & 0x807fU) | 0x3f80U);
    std::memcpy(noise.data() + i, &half, 2);
  }
  return noise;
}

absl::Status CheckMemory(CudaDevice& device, StreamId stream, const std::vector<char>& noise,
                         char* memory) {
  std::vector<char> back(noise.size());
  const auto bytes = static_cast<int64_t>(noise.size());
  MP_RETURN_IF_ERROR(device.Copy(stream, memory, noise.data(), bytes));
  MP_RETURN_IF_ERROR(device.Copy(stream, back.data(), memory, bytes));
  MP_RETURN_IF_ERROR(device.Synchronize(stream, kCheckTimeout));
  if (back == noise) return absl::OkStatus();
  return absl::DataLossError("the GPU's memory gives back other bytes than were written");
}

absl::Status CheckProducts(CudaDevice& device, StreamId stream, char* memory) {
  MP_ASSIGN_OR_RETURN(auto products, kernels::cuda::CublasProducts::Create({}));
  constexpr DType kBf16 = DType::kBf16;
  const kernels::cuda::Product product{
      .spec = {.m = kSize, .n = kSize, .k = kSize, .a = kBf16, .b = kBf16, .c = kBf16}};
  MP_RETURN_IF_ERROR(products->Prepare(product));
  MP_ASSIGN_OR_RETURN(char* workspace, device.Allocate(products->WorkspaceBytes()));
  std::vector<char> results[2];
  for (std::vector<char>& result : results) {
    char* c = memory + 2 * kMatrix;
    MP_RETURN_IF_ERROR(device.Zero(stream, c, kMatrix));
    MP_RETURN_IF_ERROR(products->Execute(product, {.a = memory, .b = memory + kMatrix, .c = c},
                                         workspace, device.native_stream(stream)));
    result.resize(static_cast<size_t>(kMatrix));
    MP_RETURN_IF_ERROR(device.Copy(stream, result.data(), c, kMatrix));
    MP_RETURN_IF_ERROR(device.Synchronize(stream, kCheckTimeout));
  }
  if (results[0] == results[1]) return absl::OkStatus();
  return absl::DataLossError("the GPU gives two results for one matrix product");
}

}  // namespace

absl::Status CheckGpu(int ordinal) {
  MP_ASSIGN_OR_RETURN(auto device, CudaDevice::Open(ordinal));
  MP_ASSIGN_OR_RETURN(const StreamId stream, device->AddStream());
  MP_ASSIGN_OR_RETURN(char* memory, device->Allocate(kMemory));
  MP_RETURN_IF_ERROR(CheckMemory(*device, stream, Noise(kMemory), memory));
  return CheckProducts(*device, stream, memory);
}

}  // namespace milepost::runtime
