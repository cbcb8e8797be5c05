// Routing rows to experts and back, on a GPU; semantics of the CPU's (experts_cpu_kernel.h). Device
// memory, 16-byte aligned; T in {float, bf16, f16}. Asynchronous on `stream`. The same inputs give
// the same bits.
#ifndef MILEPOST_ENGINE_OPS_EXPERTS_EXPERTS_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_EXPERTS_EXPERTS_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/experts/experts_contract.h"

namespace milepost::kernels::cuda {

// What routing makes; counts may be null.
struct RoutedTo {
  float* weights = nullptr;
  int32_t* chosen = nullptr;
  int32_t* slots = nullptr;
  int32_t* offsets = nullptr;
  const float* before = nullptr;  // counts so far, or null for zeros
  float* counts = nullptr;
};

// `last`: in device memory, the last row that counts; null: all do. `workspace`:
// RoutingWorkspace::Bytes.
template <typename T>
absl::Status RouteExperts(const ExpertRouting& routing, const int64_t* last, const T* logits,
                          const RoutedTo& to, void* workspace, cudaStream_t stream);

// `slopes` may be null.
template <typename T>
absl::Status RouteExpertsBackward(const ExpertRouting& routing, const T* logits,
                                  const float* weights, const int32_t* chosen,
                                  const float* dweights, const float* slopes, T* dlogits,
                                  cudaStream_t stream);

template <typename T>
absl::Status DispatchRows(const RoutedRows& shape, const T* x, const int32_t* slots, T* y,
                          cudaStream_t stream);

// `weights`: null for ones.
template <typename T>
absl::Status CombineRows(const RoutedRows& shape, const T* y, const float* weights,
                         const int32_t* slots, T* out, cudaStream_t stream);

// dy may be y.
template <typename T>
absl::Status CombineRowsBackward(const RoutedRows& shape, const T* y, const float* weights,
                                 const int32_t* slots, const T* dout, T* dy, float* dweights,
                                 cudaStream_t stream);

// slopes [experts + 1] of the losses of balance (experts.h: kExpertBalance). `factor`: in device
// memory, the gradient's.
struct BalanceOf {
  const int32_t* targets = nullptr;
  int64_t rows = 0;
  const float* counts = nullptr;
  int64_t experts = 0;
  double balance_loss = 0;
  double z_loss = 0;
  const float* factor = nullptr;
};
absl::Status ExpertBalance(const BalanceOf& balance, float* slopes, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_EXPERTS_EXPERTS_CUDA_KERNEL_H_
