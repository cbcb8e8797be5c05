#include "engine/measure/disk_bench.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace milepost::runtime {
namespace {

TEST(MeasureDisk, HasBothRatesAndLeavesNothing) {
  std::string folder = (std::filesystem::temp_directory_path() / "milepost-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const auto rates = MeasureDisk(folder, {.region_bytes = 1 << 20, .regions = 3, .repeats = 1});
  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_GT(rates->read, 1e5);
  EXPECT_GT(rates->write, 1e5);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove(folder);
  EXPECT_EQ(MeasureDisk(folder, {}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace milepost::runtime
