#include "engine/kernels/cpu/cpu_features.h"

#include <fstream>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"

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

std::string CpuDescription() {
  std::string model = "unknown";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, "model name")) continue;
    model = std::string(absl::StripAsciiWhitespace(line.substr(line.find(':') + 1)));
    break;
  }
  return absl::StrFormat("%s, oneDNN %x", model.substr(0, 80),
                         static_cast<unsigned>(dnnl::get_effective_cpu_isa()));
}

}  // namespace milepost::kernels
