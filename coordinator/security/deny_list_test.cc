#include "coordinator/security/deny_list.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace milepost::coordinator {
namespace {

namespace fs = std::filesystem;

TEST(DenyListTest, AFileThatCannotBeReadLetsNobodyIn) {
  std::string folder = (fs::temp_directory_path() / "deny_list_XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/" + kDeniedWorkersFile;
  DenyList list(path);
  absl::Time now = absl::FromUnixSeconds(1000);
  EXPECT_FALSE(list.Has("a", now));
  std::ofstream(path) << "# stolen\n a \n";
  now += absl::Seconds(2);
  EXPECT_TRUE(list.Has("a", now));
  EXPECT_FALSE(list.Has("b", now));
  fs::remove(path);
  fs::create_directory(path);
  now += absl::Seconds(2);
  EXPECT_TRUE(list.Has("a", now));
  fs::remove(path);
  now += absl::Seconds(2);
  EXPECT_FALSE(list.Has("a", now)) << "it was taken away on purpose";
  fs::remove_all(folder);
}

class DenyListFileTest : public ::testing::Test {
 protected:
  DenyListFileTest() {
    folder_ = (fs::temp_directory_path() / "deny_list_XXXXXX").string();
    if (mkdtemp(folder_.data()) == nullptr) ADD_FAILURE() << folder_;
    path_ = folder_ + "/" + kDeniedWorkersFile;
  }
  ~DenyListFileTest() override { fs::remove_all(folder_); }

  std::string folder_, path_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(DenyListFileTest, WorkersAreNamedByIdOrName) {
  std::ofstream(path_) << "workers/wa\r\nwb  # stolen\n";
  DenyList list(path_);
  EXPECT_TRUE(list.Has("wa", now_));
  EXPECT_TRUE(list.Has("wb", now_));
  EXPECT_FALSE(list.Has("wc", now_));
}

TEST_F(DenyListFileTest, ADirectoryInItsPlaceLetsNobodyIn) {
  fs::create_directory(path_);
  DenyList list(path_);
  EXPECT_TRUE(list.Has("wa", now_));
  fs::remove(path_);
  EXPECT_FALSE(list.Has("wa", now_ + absl::Seconds(2)));
}

TEST_F(DenyListFileTest, ALineThatIsNoIdLetsNobodyInWhoWasOut) {
  std::ofstream(path_) << "'wa'\nwb\n";
  DenyList fresh(path_);
  EXPECT_TRUE(fresh.Has("wa", now_)) << "it may be that worker who is meant";
  EXPECT_TRUE(fresh.Has("wc", now_));
  fs::remove(path_);
  DenyList running(path_);
  EXPECT_FALSE(running.Has("wc", now_));
  std::ofstream(path_) << "'wa'\nwb\n";
  EXPECT_TRUE(running.Has("wb", now_ + absl::Seconds(2)));
  EXPECT_FALSE(running.Has("wc", now_ + absl::Seconds(2))) << "it was let in by a good list";
}

}  // namespace
}  // namespace milepost::coordinator
