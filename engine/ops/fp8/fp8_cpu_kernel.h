// Quantisation of tensors to 8 bits on the CPU. Scalings and slots: ops/fp8/fp8_contract.h.
#ifndef MILEPOST_ENGINE_OPS_FP8_FP8_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_FP8_FP8_CPU_KERNEL_H_

#include <bit>
#include <cstdint>

#include "engine/dtype/fp8.h"
#include "engine/ops/fp8/fp8_contract.h"

namespace milepost::kernels {

// codes[rows, columns] and codes_t[columns, rows], either may be null, of x times record[kScale].
// slots[kAmaxSlots], nullable: the larger of what is there and the magnitudes in x, which for
// `first` is as if 0 were there; a NaN's is infinite. rows and columns are multiples of 16.
// Parallel; bits do not depend on threads.
template <typename Code>
void Quantize(const Stacked& x, const float* record, bool first, Code* codes, Code* codes_t,
              float* slots);

// The largest of a tensor's slots.
float AmaxOf(const float* slots);

// Codes times record[kInverse] in bf16: exact but where that is below bf16's normal numbers.
template <typename Code>
void Dequantize(const Code* codes, int64_t n, const float* record, bf16* out);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_FP8_FP8_CPU_KERNEL_H_
