#include "worker/agent/rank_containers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/steady_time.h"

namespace milepost::worker {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

namespace fs = std::filesystem;

// With a program in podman's place.
class RankContainersTest : public testing::Test {
 protected:
  RankContainersTest() {
    std::string pattern = testing::TempDir() + "rank_containers_XXXXXX";
    dir_ = mkdtemp(pattern.data());
    fs::create_directory(dir_ + "/bin");
    setenv("PATH", absl::StrCat(dir_, "/bin:/usr/bin:/bin").c_str(), 1);
    setenv("AT", dir_.c_str(), 1);
    Podman("");
  }
  ~RankContainersTest() override { fs::remove_all(dir_); }

  void Podman(const std::string& shell) const {
    const std::string program = dir_ + "/bin/podman";
    std::ofstream(program) << "#!/bin/sh\necho \"$*\" >> $AT/calls\n" << shell;
    fs::permissions(program, fs::perms::owner_all);
  }
  std::string TextOf(const char* name) const {
    std::ifstream file(dir_ + "/" + name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // `least`: no sweep is told an earlier time.
  static void SweepUntilDone(RankContainers& containers, absl::Time least = absl::InfinitePast()) {
    const absl::Time give_up = SteadyNow() + absl::Minutes(1);
    while (containers.Sweep(std::max(least, SteadyNow())) != absl::InfiniteFuture()) {
      ASSERT_LT(SteadyNow(), give_up);
      absl::SleepFor(absl::Milliseconds(2));
    }
  }

  std::string dir_;
  const RankKey key_ = {"jobs/7", 2, 0};
};

TEST_F(RankContainersTest, AContainerIsRemovedAfterItsRank) {
  RankContainers containers(dir_);
  const std::string name = containers.Make(key_);
  EXPECT_THAT(name, StartsWith("milepost-"));
  EXPECT_THAT(name, testing::EndsWith("-jobs-7-2-0"));
  EXPECT_EQ(containers.Sweep(SteadyNow()), absl::InfiniteFuture()) << "the rank runs";
  EXPECT_EQ(TextOf("calls"), "");
  EXPECT_EQ(TextOf("rank-containers"), name + "\n");
  containers.Ended(key_);
  SweepUntilDone(containers);
  EXPECT_THAT(TextOf("calls"), HasSubstr(absl::StrCat(" rm --force --ignore --time=0 -- ", name)));
  EXPECT_EQ(TextOf("rank-containers"), "");
}

TEST_F(RankContainersTest, PodmanThatHangsIsGivenUpAndTriedAgain) {
  Podman("[ -e $AT/tried ] && exit 0; touch $AT/tried; exec sleep 1000\n");
  RankContainers containers(dir_);
  containers.Make(key_);
  containers.Ended(key_);
  const absl::Time began = SteadyNow();
  while (!fs::exists(dir_ + "/tried") && SteadyNow() < began + absl::Minutes(1)) {
    EXPECT_NE(containers.Sweep(began), absl::InfiniteFuture());
    absl::SleepFor(absl::Milliseconds(2));
  }
  absl::Time now = began;
  for (int i = 0; i < 2; ++i) now = containers.Sweep(now + absl::Minutes(2));
  SweepUntilDone(containers, now);
  EXPECT_EQ(TextOf("rank-containers"), "");
}

// As after the coordinator has begun anew.
TEST_F(RankContainersTest, ANameThatIsGivenAgainIsNotRemoved) {
  RankContainers containers(dir_);
  const std::string name = containers.Make(key_);
  containers.Ended(key_);
  EXPECT_EQ(containers.Make(key_), name);
  EXPECT_EQ(containers.Sweep(SteadyNow()), absl::InfiniteFuture());
  EXPECT_EQ(TextOf("calls"), "");
}

TEST_F(RankContainersTest, AWorkerThatLeavesWaitsForPodman) {
  Podman("[ -e $AT/tried ] && exit 0; touch $AT/tried; exit 2\n");
  RankContainers containers(dir_);
  containers.Make(key_);
  containers.Ended(key_);
  containers.AwaitRemoved();
  EXPECT_EQ(TextOf("rank-containers"), "");
}

TEST_F(RankContainersTest, WhatCannotBeRemovedYetIsTriedAgain) {
  Podman("[ -e $AT/tried ] && exit 0; touch $AT/tried; exit 2\n");
  RankContainers containers(dir_);
  containers.Make(key_);
  containers.Ended(key_);
  SweepUntilDone(containers);
  EXPECT_EQ(TextOf("rank-containers"), "");
}

TEST_F(RankContainersTest, TheNextWorkerRemovesWhatAKilledOneLeft) {
  const std::string name = RankContainers(dir_).Make(key_);
  std::ofstream(dir_ + "/rank-containers", std::ios::app) << "somebody-elses\n";
  RankContainers next(dir_);
  SweepUntilDone(next);
  EXPECT_THAT(TextOf("calls"), HasSubstr(name));
  EXPECT_THAT(TextOf("calls"), testing::Not(HasSubstr("somebody")));
  EXPECT_EQ(TextOf("rank-containers"), "");
}

TEST_F(RankContainersTest, WithoutPodmanThereIsNothingToRemove) {
  RankContainers containers(dir_);
  containers.Make(key_);
  setenv("PATH", dir_.c_str(), 1);
  containers.Ended(key_);
  SweepUntilDone(containers);
  EXPECT_EQ(TextOf("rank-containers"), "");
}

}  // namespace
}  // namespace milepost::worker
