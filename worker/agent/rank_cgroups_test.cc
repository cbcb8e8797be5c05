#include "worker/agent/rank_cgroups.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "absl/time/clock.h"
#include "common/steady_time.h"
#include "common/subprocess.h"

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;

class RankCgroupsTest : public testing::Test {
 protected:
  RankCgroupsTest() {
    std::string pattern = (fs::temp_directory_path() / "rank-cgroups-XXXXXX").string();
    dir_ = mkdtemp(pattern.data());
  }
  ~RankCgroupsTest() override { fs::remove_all(dir_); }

  static Subprocess Sleep(const std::vector<std::string>& folders) {
    SpawnOptions options;
    options.argv = {"/bin/sleep", "1000"};
    options.cgroup_files = Cgroup(folders).JoinFiles();
    return *Subprocess::Spawn(std::move(options));
  }
  static void SweepUntilGone(RankCgroups& groups, const std::string& folder) {
    const absl::Time give_up = SteadyNow() + absl::Minutes(1);
    while (fs::exists(folder) && SteadyNow() < give_up) {
      groups.Sweep(SteadyNow());
      absl::SleepFor(absl::Milliseconds(5));
    }
    EXPECT_FALSE(fs::exists(folder));
    EXPECT_EQ(groups.Sweep(SteadyNow()), absl::InfiniteFuture());
  }

  std::string dir_;
  const RankKey key_ = {"jobs/7", 2, 0};
};

TEST_F(RankCgroupsTest, WithoutGroupsRanksRunAsTheyAre) {
  RankCgroups groups(dir_, /*root=*/dir_);  // a system without any
  EXPECT_TRUE(groups.Make(key_, {.processes = 9}).empty());
  EXPECT_TRUE(groups.Make(key_, {.processes = 9}).empty());
  groups.Ended(key_);
  EXPECT_EQ(groups.Sweep(SteadyNow()), absl::InfiniteFuture());
}

TEST_F(RankCgroupsTest, NothingOfARankIsLeftAfterItsEnd) {
  RankCgroups groups(dir_);
  const std::vector<std::string> folders = groups.Make(key_, {.processes = 9});
  if (folders.empty()) GTEST_SKIP() << "this process may make no control groups";
  EXPECT_NE(folders[0].find("-jobs-7-2-0"), std::string::npos) << folders[0];
  EXPECT_EQ(Cgroup(folders).Read().process_limit, 9);
  Subprocess left = Sleep(folders);
  EXPECT_EQ(groups.Sweep(SteadyNow()), absl::InfiniteFuture()) << "the rank runs";
  EXPECT_TRUE(fs::exists(folders[0]));
  groups.Ended(key_);
  const auto end = left.Wait(absl::Now() + absl::Minutes(1));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->signal, SIGKILL);
  SweepUntilGone(groups, folders[0]);
}

TEST_F(RankCgroupsTest, WhatAKilledWorkerLeftIsEndedByTheNextOfItsFolderAlone) {
  RankCgroups killed(dir_);  // as good as: it does nothing any more
  const std::vector<std::string> folders = killed.Make(key_, {.processes = 9});
  if (folders.empty()) GTEST_SKIP() << "this process may make no control groups";
  Subprocess left = Sleep(folders);
  fs::create_directory(dir_ + "/other");
  RankCgroups other(dir_ + "/other");
  other.Prepare();
  EXPECT_TRUE(absl::IsDeadlineExceeded(left.Wait(absl::InfinitePast()).status()));
  RankCgroups next(dir_);
  next.Prepare();
  const auto end = left.Wait(absl::Now() + absl::Minutes(1));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->signal, SIGKILL);
  SweepUntilGone(next, folders[0]);
}

}  // namespace
}  // namespace milepost::worker
