#include "worker/script/scratch_folder.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "absl/time/clock.h"

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;

class ScratchFolderTest : public testing::Test {
 protected:
  ScratchFolderTest() {
    std::string path = testing::TempDir() + "scratch_XXXXXX";
    parent_ = mkdtemp(path.data());
  }
  ~ScratchFolderTest() override { fs::remove_all(parent_); }

  std::string parent_;
};

TEST_F(ScratchFolderTest, GoesWithAllThatIsInIt) {
  std::string path;
  {
    auto scratch = ScratchFolder::Make(parent_);
    ASSERT_TRUE(scratch.ok()) << scratch.status();
    path = scratch->path();
    fs::create_directory(path + "/work");
    std::ofstream(path + "/work/file") << "text";
    EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all);
  }
  EXPECT_FALSE(fs::exists(path));
  EXPECT_FALSE(ScratchFolder::Make(parent_ + "/absent").ok());
}

TEST_F(ScratchFolderTest, OnlyAbandonedOnesAreRemoved) {
  const absl::Time later = absl::Now() + absl::Hours(1);
  const std::string abandoned = parent_ + "/milepost-script-a";
  const std::string other = parent_ + "/something-else";
  fs::create_directories(abandoned + "/work");
  fs::create_directory(other);
  fs::create_directory_symlink(other, parent_ + "/milepost-script-link");
  const auto used = ScratchFolder::Make(parent_);
  ASSERT_TRUE(used.ok()) << used.status();
  EXPECT_EQ(RemoveAbandoned(parent_, absl::Now()), 0) << "it may be about to be locked";
  EXPECT_EQ(RemoveAbandoned(parent_, later), 1);
  EXPECT_FALSE(fs::exists(abandoned));
  EXPECT_TRUE(fs::exists(other));
  EXPECT_TRUE(fs::exists(used->path()));
  EXPECT_EQ(RemoveAbandoned(parent_ + "/absent", later), 0);
}

// As files that were sent along are; also where this user is not root, who may do everything.
TEST_F(ScratchFolderTest, AlsoWhatCanOnlyBeReadGoes) {
  constexpr uid_t kNobody = 65534;
  const bool root = geteuid() == 0;
  if (root) {
    ASSERT_EQ(chown(parent_.c_str(), kNobody, kNobody), 0);
    ASSERT_EQ(seteuid(kNobody), 0);
  }
  {
    auto folder = ScratchFolder::Make(parent_);
    ASSERT_TRUE(folder.ok()) << folder.status();
    fs::create_directories(folder->path() + "/files/a");
    std::ofstream(folder->path() + "/files/a/b") << "x";
    fs::create_symlink("/", folder->path() + "/files/a/root");
    for (const char* name : {"/files/a/b", "/files/a", "/files"}) {
      fs::permissions(folder->path() + name, fs::perms::owner_read | fs::perms::owner_exec);
    }
  }
  EXPECT_TRUE(fs::is_empty(parent_));
  ASSERT_EQ(seteuid(root ? 0 : geteuid()), 0);
}

}  // namespace
}  // namespace milepost::worker
