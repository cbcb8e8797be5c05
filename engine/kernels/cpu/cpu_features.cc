#include "engine/kernels/cpu/cpu_features.h"

#include <oneapi/dnnl/dnnl.hpp>

#include "common/cpu_features.h"

namespace milepost::kernels {

bool HasBf16Products(unsigned isa, bool fast_dot) {
  const auto has = [isa](dnnl::cpu_isa needed) {
    const auto bits = static_cast<unsigned>(needed);
    return (isa & bits) == bits;
  };
  return has(dnnl::cpu_isa::avx512_core_amx) || (fast_dot && has(dnnl::cpu_isa::avx512_core_bf16));
}

bool HasBf16Products() {
  return HasBf16Products(static_cast<unsigned>(dnnl::get_effective_cpu_isa()), HasFastBf16Dot());
}

bool HasFastBf16Dot() {
  static const bool kHas = HostMultipliesBf16().dot;
  return kHas;
}

}  // namespace milepost::kernels
