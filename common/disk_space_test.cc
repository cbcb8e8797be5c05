#include "common/disk_space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

namespace milepost {
namespace {

using ::testing::HasSubstr;

TEST(DiskSpaceTest, IsWhatTheFileSystemSays) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path();
  const auto free = FreeBytes(folder);
  ASSERT_TRUE(free.ok()) << free.status();
  EXPECT_LE(*free, std::filesystem::space(folder).capacity);
  EXPECT_EQ(FreeBytes("/no/such/folder").status().code(), absl::StatusCode::kInternal);
}

TEST(DiskSpaceTest, AFullDiskIsToldWithItsRemedy) {
  const absl::Status status = DiskFull("/data", 20 << 20, kLowSpaceBytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("/data is full: 20 MiB are free, 32 are needed"));
}

}  // namespace
}  // namespace milepost
