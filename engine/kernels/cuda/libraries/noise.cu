#include "engine/kernels/cuda/libraries/noise.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/ops/fp8/fp8_contract.h"

namespace milepost::kernels::cuda {
namespace {

constexpr int64_t kPieceBytes = int64_t{64} << 10;

absl::Status StatusOf(cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("CUDA: writing noise to the device: ", cudaGetErrorString(error)));
}

std::vector<char> Piece(DType type) {
  std::vector<char> piece(kPieceBytes);
  uint64_t state = 1;
  const auto next = [&state] {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<float>(static_cast<int64_t>(state) >> 32) / 2147483648.0F;
  };
  const auto fill = [&](auto* data) {
    using T = std::remove_pointer_t<decltype(data)>;
    for (size_t i = 0; i < piece.size() / sizeof(T); ++i) data[i] = FromFloat<T>(next());
  };
  if (type == DType::kBf16) fill(reinterpret_cast<bf16*>(piece.data()));
  if (type == DType::kF16) fill(reinterpret_cast<f16*>(piece.data()));
  if (type == DType::kF32) fill(reinterpret_cast<float*>(piece.data()));
  if (type == DType::kE4M3) fill(reinterpret_cast<e4m3*>(piece.data()));
  if (type == DType::kE5M2) fill(reinterpret_cast<e5m2*>(piece.data()));
  return piece;
}

}  // namespace

absl::Status FillWithNoise(DType type, int64_t bytes, void* data) {
  const std::vector<char> piece = Piece(type);
  char* const begin = static_cast<char*>(data);
  int64_t filled = std::min(bytes, kPieceBytes);
  MP_RETURN_IF_ERROR(StatusOf(
      cudaMemcpy(begin, piece.data(), static_cast<size_t>(filled), cudaMemcpyHostToDevice)));
  while (filled < bytes) {
    const int64_t more = std::min(filled, bytes - filled);
    MP_RETURN_IF_ERROR(StatusOf(
        cudaMemcpy(begin + filled, begin, static_cast<size_t>(more), cudaMemcpyDeviceToDevice)));
    filled += more;
  }
  return StatusOf(cudaStreamSynchronize(cudaStreamLegacy));  // copies on the device return at once
}

}  // namespace milepost::kernels::cuda
