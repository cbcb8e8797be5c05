// AdamW whose m and v are held in 8 bits; bit for bit what the CPU's (adamw_8bit_cpu_kernel.h)
// makes. A warp has a quantized block of 256 elements: one pass.
#ifndef MILEPOST_ENGINE_OPTIM_ADAMW_8BIT_ADAMW_8BIT_CUDA_KERNEL_H_
#define MILEPOST_ENGINE_OPTIM_ADAMW_8BIT_ADAMW_8BIT_CUDA_KERNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/flat.h"
#include "engine/kernels/cuda/flat_update.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/optim/adamw_8bit/adamw_8bit_contract.h"

namespace milepost::kernels::cuda {

// As FlatUpdate (flat_update.h); chunks begin at multiples of 256 elements, and so do blocks.
template <typename T, typename P = float, typename G = float>
struct QuantizedUpdate {
  const FlatChunk* chunks = nullptr;
  int64_t chunk_count = 0;
  const SegmentFactors* factors = nullptr;
  const StepFactors* step = nullptr;
  const UpdateControl* control = nullptr;
  P* p = nullptr;
  QuantizedMoments state = {};
  const G* g = nullptr;
  T* copy = nullptr;  // nullable
};

template <typename T, typename P, typename G>
absl::Status AdamW8Bit(const QuantizedUpdate<T, P, G>& update, cudaStream_t stream);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPTIM_ADAMW_8BIT_ADAMW_8BIT_CUDA_KERNEL_H_
