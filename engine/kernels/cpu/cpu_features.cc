#include "engine/kernels/cpu/cpu_features.h"

#include <oneapi/dnnl/dnnl.hpp>

namespace milepost::kernels {

bool HasBf16Products() {
  // The constants are sets of features, one bit each.
  constexpr auto kNeeded = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kNeeded) == kNeeded;
}

}  // namespace milepost::kernels
