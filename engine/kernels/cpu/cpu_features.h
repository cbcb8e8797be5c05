// What this CPU's matrix products and convolutions (oneDNN's) can do, as far as it decides which
// way a kernel goes.
#ifndef MILEPOST_ENGINE_KERNELS_CPU_CPU_FEATURES_H_
#define MILEPOST_ENGINE_KERNELS_CPU_CPU_FEATURES_H_

namespace milepost::kernels {

// Whether oneDNN multiplies bf16 with instructions made for it (AVX512_BF16, AMX). With AVX-512
// alone it emulates them: slower than fp32, and with scratch of a hundred megabytes. Elsewhere bf16
// goes through fp32 (matmul_widened.h, convolution_widened_cpu_kernel.h), rounded in the same way.
// Thread-safe; DNNL_MAX_CPU_ISA=AVX2 or AVX512_CORE in the environment makes it false.
bool HasBf16Products();

// The same of a set of features, as dnnl::cpu_isa has them: one bit each.
bool HasBf16Products(unsigned isa);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_CPU_FEATURES_H_
