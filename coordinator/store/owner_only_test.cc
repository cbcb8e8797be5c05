#include "coordinator/store/owner_only.h"

#include <sys/stat.h>

#include <fstream>

#include "coordinator/store/store_fixture.h"

namespace milepost::coordinator {
namespace {

namespace fs = std::filesystem;

mode_t ModeOf(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(lstat(path.c_str(), &info), 0) << path;
  return info.st_mode & 0777;
}

class OwnerOnlyTest : public StoreFixture {};

TEST_F(OwnerOnlyTest, AReadableStoreIsMended) {
  Open();
  Commit(1);
  store_.reset();
  std::ofstream(dir_ + "/mine") << "not the coordinator's";
  fs::create_symlink(dir_ + "/mine", dir_ + "/db/link");
  ASSERT_EQ(chmod((dir_ + "/mine").c_str(), 0644), 0);
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(dir_)) {
    if (entry.is_symlink() || entry.path().filename() == "mine") continue;
    ASSERT_EQ(chmod(entry.path().c_str(), entry.is_directory() ? 0755 : 0644), 0);
    ++files;
  }
  ASSERT_GT(files, 4);
  ASSERT_EQ(chmod(dir_.c_str(), 0755), 0);
  KeepToOwner(dir_);
  EXPECT_EQ(ModeOf(dir_), 0700u);
  for (const auto& entry : fs::recursive_directory_iterator(dir_)) {
    if (entry.is_symlink() || entry.path().filename() == "mine") continue;
    EXPECT_EQ(ModeOf(entry.path()), entry.is_directory() ? 0700u : 0600u) << entry.path();
  }
  EXPECT_EQ(ModeOf(dir_ + "/mine"), 0644u) << "through a link, or for no reason";
  Open();
}

}  // namespace
}  // namespace milepost::coordinator
