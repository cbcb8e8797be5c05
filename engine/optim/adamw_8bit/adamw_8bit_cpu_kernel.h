// AdamW whose m and v are held in 8 bits (Dettmers et al., "8-bit Optimizers via Block-wise
// Quantization", 2022): a code per element, and per block of 256 elements the largest magnitude in
// it. The codes stand for the numbers of the paper's dynamic data type, in [-1, 1] (m) and [0, 1]
// (v), times that magnitude.
//
//   AdamW8Bit<bf16>(params, n, p, {m, m_scale, v, v_scale}, g, parameter);
//
// Parallel; results do not depend on the thread count, nor on how a tensor is cut at multiples of
// the block.
#ifndef MILEPOST_ENGINE_OPTIM_ADAMW_8BIT_ADAMW_8BIT_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPTIM_ADAMW_8BIT_ADAMW_8BIT_CPU_KERNEL_H_

#include <array>
#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/optim/adamw/adamw_contract.h"
#include "engine/optim/adamw_8bit/adamw_8bit_contract.h"

namespace milepost::kernels {

// As AdamW (adamw_cpu_kernel.h), in fp32 from the m and v that the codes stand for; p moves by the
// new m and v, which are then rounded to the nearest code. A v that is not 0 never becomes 0, which
// would let a later m of its element divide by almost nothing: it takes the least code above.
template <typename T>
void AdamW8Bit(const AdamWParams& params, int64_t n, float* p, const QuantizedMoments& state,
               const float* g, T* copy);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPTIM_ADAMW_8BIT_ADAMW_8BIT_CPU_KERNEL_H_
