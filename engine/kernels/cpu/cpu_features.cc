#include "engine/kernels/cpu/cpu_features.h"

#include <oneapi/dnnl/dnnl.hpp>

namespace milepost::kernels {

bool HasBf16Products(unsigned isa) {
  constexpr auto kNeeded = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (isa & kNeeded) == kNeeded;
}

bool HasBf16Products() {
  return HasBf16Products(static_cast<unsigned>(dnnl::get_effective_cpu_isa()));
}

}  // namespace milepost::kernels
