#include "engine/kernels/cpu/cpu_features.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>

namespace milepost::kernels {
namespace {

bool Has(dnnl::cpu_isa isa, bool fast_dot = true) {
  return HasBf16Products(static_cast<unsigned>(isa), fast_dot);
}

// oneDNN 2.6 takes bf16 from AVX-512 on, but emulates it where there are no instructions for it.
TEST(CpuFeatures, Bf16ProductsAreThoseOfInstructionsMadeForThem) {
  EXPECT_FALSE(Has(dnnl::cpu_isa::sse41));
  EXPECT_FALSE(Has(dnnl::cpu_isa::avx2));
  EXPECT_FALSE(Has(dnnl::cpu_isa::avx2_vnni));
  EXPECT_FALSE(Has(dnnl::cpu_isa::avx512_core));
  EXPECT_FALSE(Has(dnnl::cpu_isa::avx512_core_vnni));
  EXPECT_TRUE(Has(dnnl::cpu_isa::avx512_core_bf16));
  EXPECT_TRUE(Has(dnnl::cpu_isa::avx512_core_amx));
  // A dot product slower than fp32 is not used. AMX is, whatever that dot product.
  EXPECT_FALSE(Has(dnnl::cpu_isa::avx512_core_bf16, /*fast_dot=*/false));
  EXPECT_TRUE(Has(dnnl::cpu_isa::avx512_core_amx, /*fast_dot=*/false));
}

// What the tests that run once per instruction set rely on.
TEST(CpuFeatures, TheEnvironmentLowersThem) {
  const char* most = std::getenv("DNNL_MAX_CPU_ISA");
  if (most == nullptr) GTEST_SKIP() << "DNNL_MAX_CPU_ISA is not set";
  const std::string isa = most;
  if (isa == "AVX2" || isa == "AVX512_CORE") {
    EXPECT_FALSE(HasBf16Products()) << isa;
  }
}

}  // namespace
}  // namespace milepost::kernels
