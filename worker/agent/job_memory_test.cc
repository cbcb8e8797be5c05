#include "worker/agent/job_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;

class JobMemoryTest : public testing::Test {
 protected:
  JobMemoryTest() {
    dir_ = (fs::temp_directory_path() / "job_memory_XXXXXX").string();
    EXPECT_NE(mkdtemp(dir_.data()), nullptr);
  }
  ~JobMemoryTest() override { fs::remove_all(dir_); }

  std::string dir_;
  const absl::Time start_ = absl::FromUnixSeconds(1'000'000);
};

TEST_F(JobMemoryTest, KeepsFoldersForAWhileAfterTheLastRank) {
  JobMemory memory(dir_, "w");
  const std::string seven = memory.FolderOf("jobs/7", "u");
  const std::string eight = memory.FolderOf("jobs/8", "u");
  EXPECT_TRUE(fs::is_directory(seven));
  EXPECT_NE(seven, eight);
  memory.Sweep({seven, eight}, start_);
  memory.Sweep({eight}, start_ + absl::Hours(1));
  EXPECT_TRUE(fs::exists(seven)) << "its rank has only just gone";
  memory.Sweep({eight}, start_ + absl::Hours(1) + JobMemory::kKeep - absl::Seconds(1));
  EXPECT_TRUE(fs::exists(seven));
  memory.Sweep({eight}, start_ + absl::Hours(1) + JobMemory::kKeep);
  EXPECT_FALSE(fs::exists(seven));
  EXPECT_TRUE(fs::exists(eight));
}

TEST_F(JobMemoryTest, AJobThatComesBackInTimeFindsItsState) {
  JobMemory memory(dir_, "w");
  const std::string folder = memory.FolderOf("jobs/7", "u");
  std::ofstream(folder + "/state") << "x";
  memory.Sweep({}, start_);
  memory.Sweep({}, start_ + absl::Seconds(30), JobMemory::kKeepFromOthers);
  EXPECT_EQ(memory.FolderOf("jobs/7", "u"), folder);
  memory.Sweep({folder}, start_ + absl::Seconds(40));
  memory.Sweep({folder}, start_ + absl::Hours(5));
  EXPECT_TRUE(fs::exists(folder + "/state"));
  EXPECT_EQ(memory.Sweep({}, start_ + absl::Hours(6), JobMemory::kKeepFromOthers),
            start_ + absl::Hours(6) + absl::Minutes(1));
  EXPECT_EQ(memory.Sweep({}, start_ + absl::Hours(6) + absl::Minutes(1), absl::Minutes(1)),
            absl::InfiniteFuture());
  EXPECT_FALSE(fs::exists(folder));
}

TEST_F(JobMemoryTest, WhatAKilledWorkerLeftIsSweptToo) {
  fs::create_directories(dir_ + "/w/jobs-7");
  fs::permissions(dir_ + "/w", fs::perms::owner_all);
  {
    JobMemory memory(dir_, "w");
    memory.Sweep({}, start_);
    EXPECT_TRUE(fs::exists(dir_ + "/w/jobs-7"));
    memory.Sweep({}, start_ + JobMemory::kKeep);
    EXPECT_FALSE(fs::exists(dir_ + "/w/jobs-7"));
  }
  EXPECT_FALSE(fs::exists(dir_ + "/w")) << "it has left";
}

TEST_F(JobMemoryTest, NothingIsKeptNowhere) {
  JobMemory memory("", "w");
  EXPECT_EQ(memory.FolderOf("jobs/7", "u"), "");
  EXPECT_EQ(memory.Sweep({}, start_), absl::InfiniteFuture());
  JobMemory unwritable("/proc/no", "w");
  EXPECT_EQ(unwritable.FolderOf("jobs/7", "u"), "");
}

TEST_F(JobMemoryTest, TakesNoFolderThatOthersCanWriteTo) {
  fs::create_directories(dir_ + "/w");
  fs::permissions(dir_ + "/w", fs::perms::all);
  JobMemory memory(dir_, "w");
  EXPECT_EQ(memory.FolderOf("jobs/7", "u"), "");
  JobMemory other(dir_, "v");
  EXPECT_NE(other.FolderOf("jobs/7", "u"), "");
  EXPECT_NE(other.FolderOf("jobs/7", "u"), other.FolderOf("jobs/7", "another coordinator's"));
}

}  // namespace
}  // namespace milepost::worker
