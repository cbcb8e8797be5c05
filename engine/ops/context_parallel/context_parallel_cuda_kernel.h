// Cuts pieces out of rows, and puts them in: what context ranks send to each other. Semantics and
// bits of the CPU's (context_parallel_cpu_kernel.h), of the pieces of all ranks at once. Device
// memory, 16-byte aligned; in accesses of 16 bytes where a head's bytes are a multiple of that, of
// 4 or 2 otherwise. Asynchronous on `stream`.
#ifndef MILEPOST_ENGINE_OPS_CONTEXT_PARALLEL_CONTEXT_PARALLEL_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPS_CONTEXT_PARALLEL_CONTEXT_PARALLEL_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/context_parallel/context_parallel_contract.h"

namespace milepost::kernels::cuda {

// Where a rank's pieces lie: that of rank `own` in its rows by heads, those of the others packed,
// one behind the other in rank order.
template <typename Byte>
struct HeadPieces {
  Byte* packed = nullptr;
  Byte* by_heads = nullptr;
  int64_t own = 0;
};

// Every rank's heads, out of rows by tokens.
absl::Status TakeHeads(const HeadsExchangeShape& shape, const char* by_tokens,
                       const HeadPieces<char>& to, cudaStream_t stream);
// Into them, but for heads that ranks share.
absl::Status PutHeads(const HeadsExchangeShape& shape, const HeadPieces<const char>& from,
                      char* by_tokens, cudaStream_t stream);
// Those that ranks share: each the sum of what these ranks have, in fp32 and in rank order, rounded
// once. Nothing where they share none. T: float, bf16 or f16.
template <typename T>
absl::Status SumSharedHeads(const HeadsExchangeShape& shape, const HeadPieces<const char>& from,
                            T* by_tokens, cudaStream_t stream);

// The others' pieces of rows by heads, packed; and back.
absl::Status PackPieces(const HeadsExchangeShape& shape, const char* by_heads, int64_t own,
                        char* packed, cudaStream_t stream);
absl::Status UnpackPieces(const HeadsExchangeShape& shape, const char* packed, int64_t own,
                          char* by_heads, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_CONTEXT_PARALLEL_CONTEXT_PARALLEL_CUDA_KERNEL_H_
