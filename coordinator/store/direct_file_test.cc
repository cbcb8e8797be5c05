#include "coordinator/store/direct_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>

namespace milepost::coordinator {
namespace {

constexpr size_t kBuffer = DirectFile::kBufferBytes;
constexpr int kNoMount = 77;

class DirectFileTest : public ::testing::Test {
 protected:
  DirectFileTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "milepost-direct-XXXXXX";
    dir_ = mkdtemp(pattern.data());
  }
  ~DirectFileTest() override { std::filesystem::remove_all(dir_); }

  static std::string Bytes(size_t size) {
    std::mt19937 random(static_cast<unsigned>(size));
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    return bytes;
  }

  // Appends pieces of `piece` bytes; the file's bytes are those afterwards.
  void ExpectWhole(size_t size, size_t piece) {
    const std::string path = dir_ + "/file";
    const std::string bytes = Bytes(size);
    std::atomic<int64_t> written = 0;
    auto file = DirectFile::Create(path, &written);
    ASSERT_TRUE(file.ok()) << file.status();
    for (size_t at = 0; at < size; at += piece) {
      (*file)->Append(absl::string_view(bytes).substr(at, piece));
    }
    EXPECT_EQ((*file)->size(), size);
    const absl::Status status = (*file)->Finish();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(written, static_cast<int64_t>(size));
    std::ifstream in(path, std::ios::binary);
    const std::string there((std::istreambuf_iterator<char>(in)), {});
    EXPECT_TRUE(there == bytes) << size << " bytes by " << piece << ", " << there.size();
  }

  // In a child, with a file system of its own at dir_.
  template <typename Scenario>
  void WithFileSystem(const char* type, const char* options, Scenario scenario) {
    const pid_t child = fork();
    if (child == 0) {
      if (unshare(CLONE_NEWNS) != 0 ||
          mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          mount("none", dir_.c_str(), type, 0, options) != 0) {
        _exit(kNoMount);
      }
      scenario();
      _exit(HasFailure() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNoMount) {
      GTEST_SKIP() << "mounting a " << type << " is not allowed here";
    }
    EXPECT_EQ(status, 0) << "the child failed or died; its messages are above";
  }

  std::string dir_;
};

TEST_F(DirectFileTest, HasTheBytesThatWereAppended) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, size_t{4097},
                            kBuffer - 1, kBuffer, kBuffer + 1, 2 * kBuffer, 3 * kBuffer + 4095}) {
    ExpectWhole(size, 100'003);
    ExpectWhole(size, 3 * kBuffer);
  }
}

TEST_F(DirectFileTest, AnOldFileIsReplaced) {
  ExpectWhole(kBuffer + 5, 1000);
  ExpectWhole(5, 5);
}

// Debian 12's kernel has no direct writes there.
TEST_F(DirectFileTest, AFileSystemWithoutDirectWritesWillDo) {
  WithFileSystem("ramfs", "", [&] { ExpectWhole(3 * kBuffer + 17, 100'003); });
}

TEST_F(DirectFileTest, AFullDiskIsToldAndEndsNothingElse) {
  WithFileSystem("tmpfs", "size=10m", [&] {
    std::atomic<int64_t> written = 0;
    auto file = DirectFile::Create(dir_ + "/file", &written);
    ASSERT_TRUE(file.ok()) << file.status();
    const std::string bytes = Bytes(kBuffer);
    for (int i = 0; i < 5; ++i) (*file)->Append(bytes);
    const absl::Status status = (*file)->Finish();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("free some space"));
    EXPECT_LE(written, 10 << 20);
  });
}

TEST_F(DirectFileTest, AFolderThatIsNotThereIsToldAtOnce) {
  std::atomic<int64_t> written = 0;
  const auto file = DirectFile::Create(dir_ + "/none/file", &written);
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInternal) << file.status();
}

}  // namespace
}  // namespace milepost::coordinator
