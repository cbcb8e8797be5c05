#include "common/cpu_features.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace milepost {
namespace {

TEST(CpuFeatures, AreThoseThatTheKernelTells) {
  std::string root = testing::TempDir() + "/cpu_XXXXXX";
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  EXPECT_FALSE(HostMultipliesBf16(root).Any());
  std::filesystem::create_directory(root + "/proc");
  const auto with = [&](const std::string& vendor, const std::string& flags) {
    std::ofstream(root + "/proc/cpuinfo")
        << "processor\t: 0\nvendor_id\t: " << vendor << "\nflags\t\t: fpu " << flags << " avx2\n\n";
    return HostMultipliesBf16(root);
  };
  EXPECT_TRUE(with("AuthenticAMD", "avx512f avx512_bf16").dot);
  EXPECT_FALSE(with("AuthenticAMD", "avx512f avx512_bf16").tiles);
  EXPECT_FALSE(with("AuthenticAMD", "avx512f avx512_bf16x").Any());
  EXPECT_TRUE(with("AuthenticAMD", "avx512_bf16 avx512_fp16").dot);
  // Cooper Lake, Golden Cove with its tiles hidden, and with them.
  EXPECT_TRUE(with("GenuineIntel", "avx512f avx512_bf16").dot);
  EXPECT_FALSE(with("GenuineIntel", "avx512_bf16 avx512_fp16").Any());
  EXPECT_FALSE(with("GenuineIntel", "avx512_bf16 avx512_fp16 amx_bf16").dot);
  EXPECT_TRUE(with("GenuineIntel", "avx512_bf16 avx512_fp16 amx_bf16").tiles);
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace milepost
