#include "worker/script/script_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/exit_codes.h"

namespace milepost::worker {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30;

TrainerExit Failed(v1::FailureClass failure_class = v1::FAILURE_CLASS_SCRIPT) {
  return {kExitError, failure_class, "the script ended: exit code 1", /*with_last_line=*/true};
}

constexpr CgroupRecord kOom = {
    .memory_limit = 2 * kGiB, .memory_peak = 2 * kGiB, .oom_kills = 1, .memory_limit_hit = true};

// Its data loader was killed; what it then said of it is not the cause.
TEST(ScriptLimitsTest, AnOomKillIsTheCauseHoweverItEnded) {
  const TrainerExit exit = NamedByLimits(Failed(), kOom);
  EXPECT_EQ(exit.code, kExitOutOfMemory);
  EXPECT_EQ(exit.failure_class, v1::FAILURE_CLASS_OUT_OF_MEMORY);
  EXPECT_EQ(
      exit.message,
      "out of memory: the kernel killed 1 process of this rank, which may use 2.0 GiB of host "
      "memory and had used 2.0 GiB at most: have it use less, or its slot have more "
      "(--memory-bytes and --slots of the worker); the script ended: exit code 1");
  EXPECT_TRUE(exit.with_last_line);
  EXPECT_EQ(NamedByLimits(Failed(v1::FAILURE_CLASS_OUT_OF_MEMORY), kOom).message, exit.message);
}

TEST(ScriptLimitsTest, WithoutAPeakItSaysWhatItKnows) {
  CgroupRecord used = kOom;
  used.memory_peak = 0;
  used.memory_limit = int64_t{64} << 20;
  used.oom_kills = 3;
  const TrainerExit exit = NamedByLimits(Failed(), used);
  EXPECT_THAT(exit.message, HasSubstr("killed 3 processes of this rank, which may use 64.0 MiB"));
  EXPECT_THAT(exit.message, Not(HasSubstr("at most")));
}

TEST(ScriptLimitsTest, TheHostsLackIsNotTheRanksLimit) {
  CgroupRecord used = kOom;
  used.memory_limit_hit = false;
  used.memory_peak = kGiB;
  const TrainerExit exit = NamedByLimits(Failed(), used);
  EXPECT_EQ(exit.failure_class, v1::FAILURE_CLASS_OUT_OF_MEMORY);
  EXPECT_THAT(exit.message, HasSubstr("host or container had no memory left; it had used 1.0 GiB"));
  EXPECT_THAT(exit.message, Not(HasSubstr("may use")));
}

TEST(ScriptLimitsTest, RefusedProcessesAreNamed) {
  const TrainerExit exit = NamedByLimits(Failed(), {.process_limit = 64, .processes_refused = 2});
  EXPECT_EQ(exit.failure_class, v1::FAILURE_CLASS_SCRIPT);
  EXPECT_EQ(exit.code, kExitError);
  EXPECT_THAT(exit.message, HasSubstr("may have 64 processes and threads (--script-processes"));
  EXPECT_THAT(exit.message, HasSubstr("; the script ended: exit code 1"));
}

TEST(ScriptLimitsTest, OtherEndsStayAsTheyAre) {
  CgroupRecord used = kOom;
  used.processes_refused = 1;
  EXPECT_EQ(NamedByLimits({}, used).code, kExitOk);
  EXPECT_EQ(NamedByLimits({}, used).message, "");
  EXPECT_EQ(NamedByLimits({.code = kExitStopped}, used).code, kExitStopped);
  const TrainerExit lost = {kExitPeerLost, v1::FAILURE_CLASS_NETWORK, "another rank is lost"};
  EXPECT_EQ(NamedByLimits(lost, used).message, lost.message);
  EXPECT_EQ(NamedByLimits(lost, used).code, kExitPeerLost);
  EXPECT_EQ(NamedByLimits(Failed(), {}).message, Failed().message);
}

}  // namespace
}  // namespace milepost::worker
