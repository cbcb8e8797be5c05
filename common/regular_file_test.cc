#include "common/regular_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace milepost {
namespace {

class RegularFile : public testing::Test {
 protected:
  RegularFile() {
    char name[] = "/tmp/milepost-file-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~RegularFile() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
};

TEST_F(RegularFile, IsReadWhole) {
  const std::string text(100'000, 'x');
  std::ofstream(Path("a")) << text;
  EXPECT_EQ(ReadRegularFile(Path("a"), 100'000).value(), text);
  std::filesystem::create_symlink("a", Path("link"));
  EXPECT_EQ(ReadRegularFile(Path("link"), 100'000).value(), text);
  const std::ofstream empty(Path("empty"));
  EXPECT_EQ(ReadRegularFile(Path("empty"), 0).value(), "");
}

TEST_F(RegularFile, TooLongIsRefused) {
  std::ofstream(Path("a")) << "four";
  const auto text = ReadRegularFile(Path("a"), 3);
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(text.status().message(), Path("a") + " is longer than 3 bytes");
}

// A FIFO without a writer, which a plain open() waits on for ever, and others that are no files.
TEST_F(RegularFile, WhatIsNoFileIsRefusedAtOnce) {
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  for (const std::string& path : {Path("fifo"), std::string("/dev/zero"), folder_}) {
    EXPECT_EQ(ReadRegularFile(path, 100).status().code(), absl::StatusCode::kInvalidArgument)
        << path;
  }
}

TEST_F(RegularFile, NamesThatLeadNowhere) {
  EXPECT_EQ(ReadRegularFile(Path("none"), 100).status().code(), absl::StatusCode::kNotFound);
  std::filesystem::create_symlink("b", Path("a"));
  std::filesystem::create_symlink("a", Path("b"));
  const absl::Status circle = ReadRegularFile(Path("a"), 100).status();
  EXPECT_EQ(circle.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(circle.message(), Path("a") + " cannot be read: Too many levels of symbolic links");
}

}  // namespace
}  // namespace milepost
