#include "engine/runtime/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

namespace milepost::runtime {
namespace {

using ::testing::HasSubstr;

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

TEST(Arena, IsZeroedAlignedAndExactlyAsLarge) {
  for (int64_t bytes : {int64_t{1}, int64_t{4097}, int64_t{5} << 20}) {
    auto arena = Arena::Allocate(bytes);
    ASSERT_TRUE(arena.ok()) << arena.status();
    EXPECT_EQ(arena->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(arena->data()) % (bytes >= (2 << 20) ? 2 << 20 : 4096),
              0u);
    EXPECT_TRUE(std::all_of(arena->data(), arena->data() + bytes, [](char c) { return c == 0; }));
    arena->data()[bytes - 1] = 1;
    Arena moved = *std::move(arena);
    EXPECT_EQ(moved.data()[bytes - 1], 1);
  }
}

TEST(Arena, RefusesWithTheFigures) {
  const auto arena = Arena::Allocate(int64_t{1} << 50);
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(arena.status().message()), HasSubstr("1125899906842624 bytes"));
  EXPECT_THAT(std::string(arena.status().message()), HasSubstr("this host never has more than"));
}

TEST(Arena, WhatOthersUseMayBeFreeLater) {
  const int64_t free = AvailableMemoryBytes();
  const int64_t limit = MemoryLimitBytes();
  if (free >= limit) GTEST_SKIP() << "nothing else uses memory here";
  const auto arena = Arena::Allocate(limit);
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted) << arena.status();
}

TEST(AvailableMemory, IsTheHostsWhereThereIsNoCgroup) {
  FakeRoot root;
  EXPECT_EQ(AvailableMemoryBytes(root.path()), std::numeric_limits<int64_t>::max());
  root.Write("/proc/meminfo", "MemTotal:  100 kB\nMemAvailable:     64 kB\n");
  EXPECT_EQ(AvailableMemoryBytes(root.path()), 64 * 1024);
  EXPECT_EQ(MemoryLimitBytes(root.path()), 100 * 1024);
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
}  // namespace milepost::runtime
