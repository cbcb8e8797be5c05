// What this CPU's matrix products and convolutions (oneDNN's) can do, as far as it decides which
// way a kernel goes.
#ifndef MILEPOST_ENGINE_KERNELS_CPU_CPU_FEATURES_H_
#define MILEPOST_ENGINE_KERNELS_CPU_CPU_FEATURES_H_

namespace milepost::kernels {

// Whether products of bf16 are oneDNN's own (AVX-512). Elsewhere they are made of fp32 products,
// whose results are rounded in the same way; that saves memory, not time. Thread-safe;
// DNNL_MAX_CPU_ISA=AVX2 in the environment makes it false.
bool HasBf16Products();

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_CPU_FEATURES_H_
