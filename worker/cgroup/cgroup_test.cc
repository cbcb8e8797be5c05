#include "worker/cgroup/cgroup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/subprocess.h"
#include "worker/cgroup/cgroup_tree.h"

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kMiB = 1 << 20;

// A folder with the files that a kernel would show.
class FakeKernel : public testing::Test {
 protected:
  FakeKernel() {
    std::string pattern = (fs::temp_directory_path() / "cgroup-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
  }
  ~FakeKernel() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string Read(const std::string& path) const {
    std::ifstream file(root_ + path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // Of the group that this process is in, without limits so far.
  void Unified(const std::string& path, const std::string& processes) const {
    Write("/proc/self/cgroup", absl::StrCat("0::", path, "\n"));
    Write("/proc/self/mountinfo",
          "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
    Write("/sys/fs/cgroup/unit/cgroup.controllers", "cpu io memory pids\n");
    Write("/sys/fs/cgroup/unit/cgroup.subtree_control", "");
    Write("/sys/fs/cgroup/unit/cgroup.procs", processes);
    Write("/sys/fs/cgroup/unit/worker/cgroup.procs", "");
    Write("/sys/fs/cgroup/unit/worker/cgroup.controllers", "");
  }
  absl::StatusOr<CgroupTree> Prepare() const {
    return CgroupTree::Prepare({.prefix = "milepost-1-2-", .root = root_});
  }

  std::string root_;
};

TEST_F(FakeKernel, LimitsOfTheUnifiedHierarchy) {
  for (const char* file : {"memory.max", "memory.swap.max", "pids.max"}) {
    Write(absl::StrCat("/", file), "max\n");
  }
  Write("/memory.oom.group", "0\n");
  Write("/memory.peak", "123456\n");
  Write("/memory.events", "low 0\nhigh 0\nmax 9\noom 2\noom_kill 3\noom_group_kill 1\n");
  Write("/pids.events", "max 7\n");
  const Cgroup group({root_});
  CgroupRecord record = group.Read();
  EXPECT_EQ(record.memory_limit, 0);
  EXPECT_EQ(record.process_limit, 0);
  ASSERT_TRUE(group.Limit({.memory_bytes = 64 * kMiB, .processes = 99}).ok());
  EXPECT_EQ(Read("/memory.max"), "67108864");
  EXPECT_EQ(Read("/memory.swap.max"), "0");
  EXPECT_EQ(Read("/memory.oom.group"), "1");
  EXPECT_EQ(Read("/pids.max"), "99");
  record = group.Read();
  EXPECT_EQ(record.memory_limit, 64 * kMiB);
  EXPECT_EQ(record.memory_peak, 123456);
  EXPECT_EQ(record.oom_kills, 3);
  EXPECT_TRUE(record.memory_limit_hit);
  EXPECT_EQ(record.process_limit, 99);
  EXPECT_EQ(record.processes_refused, 7);
  // The host's killer strikes here too, without the group having reached its limit.
  Write("/memory.events", "max 0\noom 0\noom_kill 1\n");
  EXPECT_FALSE(group.Read().memory_limit_hit);
  EXPECT_THAT(group.JoinFiles(), ElementsAre(root_ + "/cgroup.procs"));
}

TEST_F(FakeKernel, LimitsOfVersionOne) {
  Write("/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/memory/memory.memsw.limit_in_bytes", "9223372036854771712\n");
  Write("/memory/memory.max_usage_in_bytes", "67100000\n");
  Write("/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
  Write("/pids/pids.max", "max\n");
  Write("/pids/pids.events", "max 0\n");
  const Cgroup group({root_ + "/memory", root_ + "/pids"});
  EXPECT_EQ(group.Read().memory_limit, 0) << "v1 has no word for no limit";
  ASSERT_TRUE(group.Limit({.memory_bytes = 64 * kMiB, .processes = 99}).ok());
  EXPECT_EQ(Read("/memory/memory.limit_in_bytes"), "67108864");
  EXPECT_EQ(Read("/memory/memory.memsw.limit_in_bytes"), "67108864");
  EXPECT_EQ(Read("/pids/pids.max"), "99");
  CgroupRecord record = group.Read();
  EXPECT_EQ(record.memory_limit, 64 * kMiB);
  EXPECT_EQ(record.memory_peak, 67100000);
  EXPECT_EQ(record.oom_kills, 1);
  EXPECT_TRUE(record.memory_limit_hit);
  EXPECT_EQ(record.process_limit, 99);
  EXPECT_EQ(record.processes_refused, 0);
  Write("/memory/memory.max_usage_in_bytes", "40000000\n");
  EXPECT_FALSE(group.Read().memory_limit_hit) << "the host's killer";
  Write("/memory/memory.memsw.max_usage_in_bytes", "67108864\n");
  EXPECT_TRUE(group.Read().memory_limit_hit) << "with what was in swap";
}

TEST_F(FakeKernel, UnknownLimitsAreNotSet) {
  Write("/memory.max", "max\n");
  Write("/pids.max", "max\n");
  ASSERT_TRUE(Cgroup({root_}).Limit({}).ok());
  EXPECT_EQ(Read("/memory.max"), "max\n");
  EXPECT_EQ(Read("/pids.max"), "max\n");
  EXPECT_TRUE(Cgroup().Limit({.memory_bytes = 1}).ok());
  EXPECT_TRUE(Cgroup().End(absl::ZeroDuration()));
  EXPECT_TRUE(Cgroup().Remove());
}

TEST_F(FakeKernel, TheUnifiedHierarchyKillsAtOnce) {
  Write("/cgroup.kill", "");
  Write("/pids.max", "99\n");
  Cgroup({root_}).Kill();
  EXPECT_EQ(Read("/cgroup.kill"), "1");
  EXPECT_EQ(Read("/pids.max"), "99\n");
  fs::remove(root_ + "/cgroup.kill");
  Cgroup({root_}).Kill();
  EXPECT_EQ(Read("/pids.max"), "0") << "nobody starts more while they are killed one by one";
}

TEST_F(FakeKernel, AloneInADelegatedGroupItMovesIntoALeaf) {
  Unified("/unit", absl::StrCat(getpid(), "\n"));
  const auto tree = Prepare();
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_EQ(tree->folder(), root_ + "/sys/fs/cgroup/unit");
  EXPECT_TRUE(tree->bounds_memory());
  EXPECT_TRUE(tree->bounds_processes());
  EXPECT_EQ(Read("/sys/fs/cgroup/unit/worker/cgroup.procs"), absl::StrCat(getpid()));
  EXPECT_EQ(Read("/sys/fs/cgroup/unit/cgroup.subtree_control"), "+memory +pids");
  tree->Release();
  EXPECT_EQ(Read("/sys/fs/cgroup/unit/cgroup.subtree_control"), "-pids");  // the last of three
}

// Such as by an earlier worker: then it is not this one's to take away.
TEST_F(FakeKernel, WhatIsEnabledStaysEnabled) {
  Unified("/unit/worker", "");
  Write("/sys/fs/cgroup/unit/cgroup.subtree_control", "cpu memory pids\n");
  const auto tree = Prepare();
  ASSERT_TRUE(tree.ok()) << tree.status();
  tree->Release();
  EXPECT_EQ(Read("/sys/fs/cgroup/unit/cgroup.subtree_control"), "cpu memory pids\n");
}

// Such as by a worker from before ranks had shares.
TEST_F(FakeKernel, SharesOfTheCoresAreAddedToWhatIsEnabled) {
  Unified("/unit/worker", "");
  Write("/sys/fs/cgroup/unit/cgroup.subtree_control", "memory pids\n");
  const auto tree = Prepare();
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_EQ(Read("/sys/fs/cgroup/unit/cgroup.subtree_control"), "+cpu");
  tree->Release();
  EXPECT_EQ(Read("/sys/fs/cgroup/unit/cgroup.subtree_control"), "-cpu");
}

TEST_F(FakeKernel, InTheLeafRanksLieBesideIt) {
  Unified("/unit/worker", "");
  const auto tree = Prepare();
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_EQ(tree->folder(), root_ + "/sys/fs/cgroup/unit");
  EXPECT_EQ(Read("/sys/fs/cgroup/unit/worker/cgroup.procs"), "") << "it is there already";
  EXPECT_EQ(Read("/sys/fs/cgroup/unit/cgroup.subtree_control"), "+memory +pids");
}

TEST_F(FakeKernel, NobodyElseIsMoved) {
  Unified("/unit", absl::StrCat(getpid(), "\n", getppid(), "\n"));
  const absl::Status status = Prepare().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("has processes of others"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("Delegate=yes"));
  EXPECT_EQ(Read("/sys/fs/cgroup/unit/worker/cgroup.procs"), "");
  EXPECT_EQ(Read("/sys/fs/cgroup/unit/cgroup.subtree_control"), "");
}

TEST_F(FakeKernel, WhatSystemdHasNotDelegatedIsSystemds) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can write to what was not delegated";
  Unified("/unit", absl::StrCat(getpid(), "\n"));
  fs::create_directories(root_ + "/run/systemd/system");
  const absl::Status status = Prepare().status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("has not delegated it"));
  EXPECT_EQ(Read("/sys/fs/cgroup/unit/cgroup.subtree_control"), "");
}

TEST_F(FakeKernel, WithoutControllersOrRightsItSaysWhy) {
  EXPECT_THAT(std::string(Prepare().status().message()), HasSubstr("no control groups"));
  Unified("/unit", absl::StrCat(getpid(), "\n"));
  Write("/sys/fs/cgroup/unit/cgroup.controllers", "hugetlb\n");
  EXPECT_THAT(std::string(Prepare().status().message()), HasSubstr("no control groups"));
  Write("/sys/fs/cgroup/unit/cgroup.controllers", "pids\n");
  const auto tree = Prepare();
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_FALSE(tree->bounds_memory());
  EXPECT_EQ(Read("/sys/fs/cgroup/unit/cgroup.subtree_control"), "+pids");
  fs::remove(root_ + "/sys/fs/cgroup/unit/cgroup.procs");
  EXPECT_THAT(std::string(Prepare().status().message()), HasSubstr("may not make control groups"));
}

// Then nothing would be bounded.
TEST_F(FakeKernel, SharesOfTheCoresAloneAreNoGroups) {
  Write("/proc/self/cgroup", "1:cpu:/\n");
  Write("/proc/self/mountinfo", "39 31 0:36 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n");
  Write("/sys/fs/cgroup/cpu/cgroup.procs", "");
  EXPECT_EQ(FindCgroupPlaces(root_).size(), 1U);
  EXPECT_THAT(std::string(Prepare().status().message()), HasSubstr("no control groups"));
}

TEST_F(FakeKernel, FindsVersionOneAlsoInContainersAndBesideAnEmptyUnifiedOne) {
  Write("/proc/self/cgroup",
        "9:name=systemd:/\n8:pids:/\n4:memory:/docker/1/a\n1:cpu,cpuacct:/\n0::/\n");
  Write("/proc/self/mountinfo",
        "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
        "35 31 0:32 /docker/1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
        "40 31 0:37 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1\n");
  Write("/sys/fs/cgroup/pids/cgroup.procs", "");
  Write("/sys/fs/cgroup/cpu/cgroup.procs", "");
  Write("/sys/fs/cgroup/unified/cgroup.controllers", "hugetlb\n");
  const std::vector<CgroupPlace> places = FindCgroupPlaces(root_);
  ASSERT_EQ(places.size(), 3U);
  EXPECT_EQ(places[0].folder, root_ + "/sys/fs/cgroup/pids");
  EXPECT_TRUE(places[0].processes && !places[0].memory && !places[0].unified);
  EXPECT_EQ(places[1].folder, root_ + "/sys/fs/cgroup/memory/a");
  EXPECT_TRUE(places[1].memory && !places[1].processes && !places[1].unified);
  EXPECT_EQ(places[2].folder, root_ + "/sys/fs/cgroup/cpu");
  EXPECT_TRUE(places[2].cores && !places[2].memory && !places[2].processes);
  Write("/proc/self/cgroup", "0::/../elsewhere\n");
  EXPECT_THAT(FindCgroupPlaces(root_), IsEmpty());
}

// What a real kernel does. Skipped where this process may make no groups.
class RealKernel : public testing::Test {
 protected:
  void SetUp() override {
    auto tree = CgroupTree::Prepare({.prefix = absl::StrCat("milepost-test-", getpid(), "-")});
    if (!tree.ok()) GTEST_SKIP() << tree.status();
    tree_.emplace(*std::move(tree));
  }
  ~RealKernel() override {
    if (!tree_) return;
    for (const Cgroup& group : tree_->Left()) {
      EXPECT_TRUE(group.End(absl::Seconds(30)));
      EXPECT_TRUE(group.Remove());
    }
  }

  static absl::StatusOr<Subprocess> Run(const Cgroup& group, const std::string& program,
                                        const std::string& text) {
    SpawnOptions options;
    options.argv = {program, "-c", text};
    options.out = Redirect::Null();
    options.err = Redirect::Null();
    options.cgroup_files = group.JoinFiles();
    return Subprocess::Spawn(std::move(options));
  }
  static bool Await(const std::function<bool()>& done) {
    const absl::Time give_up = absl::Now() + absl::Minutes(1);
    while (absl::Now() < give_up) {
      if (done()) return true;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return false;
  }

  std::optional<CgroupTree> tree_;
};

TEST_F(RealKernel, MoreMemoryThanTheLimitIsAnOomKill) {
  if (!tree_->bounds_memory()) GTEST_SKIP() << "no memory controller here";
  const auto group = tree_->Make("memory", {.memory_bytes = 48 * kMiB});
  ASSERT_TRUE(group.ok()) << group.status();
  // The last command keeps all of it; the shell, which outlives it, says so.
  auto process = Run(*group, "/bin/sh", "head -c 200000000 /dev/zero | tail -c 150000000; exit 5");
  ASSERT_TRUE(process.ok()) << process.status();
  ASSERT_TRUE(process->Wait(absl::Now() + absl::Minutes(1)).ok());
  const CgroupRecord record = group->Read();
  EXPECT_GE(record.oom_kills, 1);
  EXPECT_TRUE(record.memory_limit_hit);
  EXPECT_EQ(record.memory_limit, 48 * kMiB);
  // Linux has it since 5.19; v1 always had.
  if (record.memory_peak > 0) {
    EXPECT_GT(record.memory_peak, 24 * kMiB);
    EXPECT_LE(record.memory_peak, 48 * kMiB);
  }
}

// Bounded by its group's limit, and by its own clock. It never starts outside of a group.
constexpr char kForkBomb[] = R"(
import os, sys, time
if not any('milepost-' in line for line in open('/proc/self/cgroup')): sys.exit(9)
end = time.monotonic() + 20
while time.monotonic() < end:
    try:
        if os.fork() == 0: os.setsid()
    except OSError: pass
)";

TEST_F(RealKernel, AForkBombIsHeldAndEnded) {
  if (!tree_->bounds_processes()) GTEST_SKIP() << "no pids controller here";
  const auto group = tree_->Make("bomb", {.processes = 24});
  ASSERT_TRUE(group.ok()) << group.status();
  auto process = Run(*group, "/usr/bin/python3", kForkBomb);
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_TRUE(Await([&] { return group->Read().processes_refused > 100; }));
  EXPECT_EQ(group->Read().process_limit, 24);
  EXPECT_GT(group->Processes().size(), 10U);
  EXPECT_LE(group->Processes().size(), 24U);
  EXPECT_FALSE(group->Remove()) << "it has processes";
  EXPECT_TRUE(group->End(absl::Seconds(10)));
  EXPECT_THAT(group->Processes(), IsEmpty());
  EXPECT_TRUE(Await([&] { return group->Remove(); }));
  EXPECT_FALSE(fs::exists(group->folders()[0]));
}

TEST_F(RealKernel, AGroupHasOneShareOfTheCores) {
  const auto group = tree_->Make("share", {.processes = 8});
  ASSERT_TRUE(group.ok()) << group.status();
  const auto shares = [](const std::string& folder) {
    return fs::exists(folder + "/cpu.shares") || fs::exists(folder + "/cpu.weight");
  };
  const std::vector<std::string>& folders = group->folders();
  const auto folder = std::find_if(folders.begin(), folders.end(), shares);
  if (folder == folders.end()) GTEST_SKIP() << "no cpu controller here";
  auto process = Run(*group, "/bin/sh", "sleep 1000; true");
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_FALSE(Cgroup({*folder}).Processes().empty());
  EXPECT_TRUE(group->End(absl::Seconds(30)));
  EXPECT_TRUE(Await([&] { return group->Remove(); }));
}

TEST_F(RealKernel, GroupsOfTheSameNameAreTwoAndAreFoundAgain) {
  const auto one = tree_->Make("same", {.processes = 8});
  const auto two = tree_->Make("same", {.processes = 8});
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_NE(one->folders(), two->folders());
  EXPECT_EQ(tree_->Left().size(), 2U);
  EXPECT_TRUE(one->Remove());
  EXPECT_TRUE(one->Remove()) << "it is gone already";
  const std::vector<Cgroup> left = tree_->Left();
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(left[0].folders(), two->folders());
}

// Such as a container's, which a script of root may start.
TEST_F(RealKernel, GroupsThatAScriptMadeBelowItsOwnGoToo) {
  const auto group = tree_->Make("outer", {.processes = 8});
  ASSERT_TRUE(group.ok()) << group.status();
  std::vector<std::string> inner;
  for (const std::string& folder : group->folders()) inner.push_back(folder + "/inner");
  for (const std::string& folder : inner) ASSERT_TRUE(fs::create_directory(folder));
  auto process = Run(Cgroup(inner), "/bin/sh", "sleep 1000; true");
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_FALSE(group->Processes().empty());
  EXPECT_TRUE(group->End(absl::Seconds(30)));
  EXPECT_TRUE(Await([&] { return group->Remove(); }));
}

}  // namespace
}  // namespace milepost::worker
