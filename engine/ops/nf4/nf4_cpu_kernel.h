// Making and reading weights of 4 bits on the CPU. The format: engine/dtype/nf4.h.
//
//   MP_RETURN_IF_ERROR(PackNf4(elements, 0, Nf4Bytes(elements), ReadElements, packed));
//   UnpackNf4(packed, elements, weights);
#ifndef MILEPOST_ENGINE_OPS_NF4_NF4_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_NF4_NF4_CPU_KERNEL_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace milepost::kernels {

// Writes elements [begin, end) of a tensor to `at`.
using ReadElements = std::function<absl::Status(int64_t begin, int64_t end, float* at)>;

// Bytes [begin, end) of a tensor of so many elements, packed, to `out`; both multiples of 4, or the
// end. Only blocks that have a part there are read, in order, at most 2^20 elements at a time; a
// block that is not finite gives what is not finite. Returns what `read` does. Parallel within
// what it has read; allocates.
absl::Status PackNf4(int64_t elements, int64_t begin, int64_t end, const ReadElements& read,
                     uint8_t* out);

// T: float, bf16 or f16, to nearest. Parallel; bits do not depend on threads.
template <typename T>
void UnpackNf4(const uint8_t* packed, int64_t elements, T* out);

// What an element has become in 4 bits, in place: pack and unpack. Whole blocks, or the tensor's
// end. Parallel.
void RoundToNf4(float* values, int64_t count);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_NF4_NF4_CPU_KERNEL_H_
