#include "worker/trainer/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace milepost::worker {
namespace {

using ::testing::HasSubstr;

class TensorBoardTest : public ::testing::Test {
 protected:
  TensorBoardTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "milepost-tb-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~TensorBoardTest() override { std::filesystem::remove_all(folder_); }

  static std::string Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  std::string folder_;
};

// RFC 3720, B.4, and the usual check value.
TEST(Crc32cTest, MatchesPublishedValues) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

// The bytes that tensorboard 2.21's own record writer and messages give for the
// same three events (tests/golden/make_tensorboard_events.py).
TEST_F(TensorBoardTest, WritesTheBytesThatTensorBoardWrites) {
  auto writer = TensorBoardWriter::Create(folder_, 41, absl::FromUnixSeconds(1000));
  ASSERT_TRUE(writer.ok()) << writer.status();
  (*writer)->Add("train/loss", 42, 0.5, absl::FromUnixSeconds(1001));
  ASSERT_TRUE((*writer)->Flush().ok());
  std::string hex;
  for (const unsigned char c : Read((*writer)->path())) {
    static const char kDigits[] = "0123456789abcdef";
    hex += {kDigits[c >> 4], kDigits[c & 15]};
  }
  EXPECT_EQ(hex,
            "1800000000000000a37f4b22090000000000408f401a0d627261696e2e4576656e743a3273ae6b56"
            "0f000000000000006d532b09090000000000408f40102a3a020801641b834d200000000000000029"
            "eda950090000000000488f40102a2a130a110a0a747261696e2f6c6f7373150000003f935cd3e4");
}

TEST_F(TensorBoardTest, ResumingAddsAFile) {
  auto first = TensorBoardWriter::Create(folder_ + "/a/b", 0, absl::FromUnixSeconds(1000));
  auto second = TensorBoardWriter::Create(folder_ + "/a/b", 7, absl::FromUnixSeconds(1001));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE((*first)->path(), (*second)->path());
}

TEST_F(TensorBoardTest, SaysWhereItCannotWrite) {
  std::ofstream(folder_ + "/file") << "not a folder";
  const auto writer = TensorBoardWriter::Create(folder_ + "/file", 0, absl::UnixEpoch());
  EXPECT_FALSE(writer.ok());
  EXPECT_THAT(std::string(writer.status().message()), HasSubstr(folder_ + "/file"));
}

}  // namespace
}  // namespace milepost::worker
