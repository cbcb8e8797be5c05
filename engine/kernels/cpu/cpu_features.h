// What this CPU's matrix products and convolutions (oneDNN's) can do, as far as it decides which
// way a kernel goes.
#ifndef MILEPOST_ENGINE_KERNELS_CPU_CPU_FEATURES_H_
#define MILEPOST_ENGINE_KERNELS_CPU_CPU_FEATURES_H_

#include <string>

namespace milepost::kernels {

// Whether oneDNN multiplies bf16 with instructions made for it (AVX512_BF16, AMX) that are faster
// than fp32's. With AVX-512 alone it emulates them: slower than fp32, and with scratch of a hundred
// megabytes. Elsewhere bf16 goes through fp32 (matmul_widened.h,
// convolution_widened_cpu_kernel.h), rounded in the same way.
// Thread-safe; DNNL_MAX_CPU_ISA=AVX2 or AVX512_CORE in the environment makes it false.
bool HasBf16Products();

// The same of a set of features, as dnnl::cpu_isa has them: one bit each.
bool HasBf16Products(unsigned isa, bool fast_dot);

// Whether AVX512_BF16's dot product is there and faster than widening to fp32
// (common/cpu_features.h says where it is not). Thread-safe; the environment does not change it.
bool HasFastBf16Dot();

// The CPU's model and what oneDNN uses of it: where two are the same, products of the same sizes,
// with as many threads, have the same bits. The environment changes it, as it does products.
std::string CpuDescription();

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_CPU_FEATURES_H_
