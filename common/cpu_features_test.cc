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
  EXPECT_FALSE(HostMultipliesBf16(root));
  std::filesystem::create_directory(root + "/proc");
  const auto with = [&](const std::string& flags) {
    std::ofstream(root + "/proc/cpuinfo")
        << "processor\t: 0\nflags\t\t: fpu " << flags << " avx2\n\n";
    return HostMultipliesBf16(root);
  };
  EXPECT_TRUE(with("avx512f avx512_bf16"));
  EXPECT_FALSE(with("avx512f avx512_bf16x"));
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace milepost
