#include "common/host_memory.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace milepost {
namespace {

class FakeRoot {
 public:
  FakeRoot() {
    std::string pattern = (std::filesystem::temp_directory_path() / "arena-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~FakeRoot() { std::filesystem::remove_all(folder_); }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder_ + path).parent_path());
    std::ofstream(folder_ + path) << text;
  }
  const std::string& path() const { return folder_; }

 private:
  std::string folder_;
};

TEST(AvailableMemory, IsTheHostsWhereThereIsNoCgroup) {
  FakeRoot root;
  root.Write("/proc/meminfo", "MemTotal:  100 kB\nMemAvailable:     64 kB\n");
  EXPECT_EQ(AvailableMemoryBytes(root.path()), 64 * 1024);
  EXPECT_EQ(MemoryLimitBytes(root.path()), 100 * 1024);
}

// As in a chroot: a slot is not given more than there is.
TEST(AvailableMemory, IsTheKernelsWithoutProc) {
  FakeRoot root;
  const int64_t host = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  EXPECT_EQ(MemoryLimitBytes(root.path()), host);
  EXPECT_GT(AvailableMemoryBytes(root.path()), 0);
  EXPECT_LE(AvailableMemoryBytes(root.path()), host);
}

TEST(AvailableMemory, HonoursTheTightestCgroupAbove) {
  FakeRoot root;
  root.Write("/proc/meminfo", "MemAvailable: 1000000 kB\n");
  root.Write("/proc/self/cgroup", "0::/jobs/seven\n");
  root.Write("/sys/fs/cgroup/jobs/seven/memory.max", "max\n");
  root.Write("/sys/fs/cgroup/jobs/seven/memory.current", "10\n");
  root.Write("/sys/fs/cgroup/jobs/memory.max", "5000\n");
  root.Write("/sys/fs/cgroup/jobs/memory.current", "3000\n");
  root.Write("/sys/fs/cgroup/jobs/memory.stat", "anon 1\ninactive_file 500\n");
  EXPECT_EQ(AvailableMemoryBytes(root.path()), 5000 - 3000 + 500);
  EXPECT_EQ(MemoryLimitBytes(root.path()), 5000);
}

TEST(AvailableMemory, ReadsVersionOne) {
  FakeRoot root;
  root.Write("/proc/self/cgroup", "5:cpu:/x\n4:memory:/x\n");
  root.Write("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "900\n");
  root.Write("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(AvailableMemoryBytes(root.path()), 0);
}

}  // namespace
}  // namespace milepost
