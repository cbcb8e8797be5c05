#include "worker/script/scratch_folder.h"

#include <gtest/gtest.h>
#include <stdlib.h>

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

}  // namespace
}  // namespace milepost::worker
