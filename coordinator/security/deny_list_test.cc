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

}  // namespace
}  // namespace milepost::coordinator
