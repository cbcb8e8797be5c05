#include "tests/e2e/stepped_clock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/subprocess.h"

namespace milepost::e2e {
namespace {

constexpr absl::Duration kSoon = absl::Seconds(30);  // half of the longest wait

class SteppedClockTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string why = SteppedClocks::Unavailable();
    if (!why.empty()) GTEST_SKIP() << why;
  }
  ~SteppedClockTest() override { std::filesystem::remove_all(folder_); }

  Subprocess Probe(std::vector<std::string> argv, absl::Duration begin = absl::ZeroDuration()) {
    SpawnOptions options;
    options.argv = std::move(argv);
    options.argv.insert(options.argv.begin(), probe_);
    options.env = clocks_.Env(begin);
    options.out = Redirect::Pipe();
    auto process = Subprocess::Spawn(std::move(options));
    EXPECT_TRUE(process.ok()) << process.status();
    return *std::move(process);
  }
  static std::string Line(int fd) {
    std::string text;
    char byte = 0;
    while (read(fd, &byte, 1) == 1 && byte != '\n') text += byte;
    return text;
  }
  // Its wait has begun when this returns.
  Subprocess Waiting(const std::string& way, const std::string& seconds = "60") {
    Subprocess process = Probe({"wait", way, seconds});
    out_ = process.TakeOut();
    EXPECT_EQ(Line(out_.get()), "waiting");
    return process;
  }

  // What is between the line and the kernel's wait is over too.
  static void AwaitSleep(pid_t pid) {
    std::string state;
    for (const absl::Time end = absl::Now() + kSoon; state != "S" && absl::Now() < end;) {
      std::string number;
      std::string name;
      std::ifstream(absl::StrCat("/proc/", pid, "/stat")) >> number >> name >> state;
    }
    EXPECT_EQ(state, "S");
  }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "/stepped_clock_", getpid());
  const SteppedClocks clocks_{folder_};
  std::string probe_ = MILEPOST_CLOCK_PROBE;
  UniqueFd out_;
};

TEST_F(SteppedClockTest, EveryWayOfReadingTheWallClockIsStepped) {
  for (const std::string way : {"time", "gettimeofday", "absl", "chrono"}) {
    for (const absl::Duration step : {absl::Hours(30), -absl::Hours(30)}) {
      Subprocess probe = Probe({"now", way}, step);
      const UniqueFd out = probe.TakeOut();
      const double now = absl::ToDoubleSeconds(absl::Now() + step - absl::UnixEpoch());
      EXPECT_NEAR(std::stod(Line(out.get())), now, 60) << way;
    }
  }
}

TEST_F(SteppedClockTest, SteadyClocksAreNot) {
  Subprocess probe = Probe({"now", "steady"}, absl::Hours(30));
  const UniqueFd out = probe.TakeOut();
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  EXPECT_NEAR(std::stod(Line(out.get())), std::chrono::duration<double>(now).count(), 60);
}

TEST_F(SteppedClockTest, AStepForwardsEndsAWaitByTheWallClock) {
  for (const std::string way : {"absl", "std", "semaphore", "sleep"}) {
    Subprocess probe = Waiting(way);
    ASSERT_TRUE(clocks_.Step(probe.pid(), absl::Hours(1)));
    const auto end = probe.Wait(absl::Now() + kSoon);
    ASSERT_TRUE(end.ok()) << way << ": " << end.status();
    EXPECT_TRUE(end->success()) << way;
  }
}

TEST_F(SteppedClockTest, AStepBackwardsProlongsIt) {
  for (const std::string way : {"absl", "std", "semaphore", "sleep"}) {
    Subprocess probe = Waiting(way, "1");
    ASSERT_TRUE(clocks_.Step(probe.pid(), -absl::Hours(1)));
    EXPECT_FALSE(probe.Wait(absl::Now() + absl::Seconds(3)).ok()) << way;
    ASSERT_TRUE(clocks_.Step(probe.pid(), absl::ZeroDuration()));
    EXPECT_TRUE(probe.Wait(absl::Now() + kSoon).ok()) << way;
  }
}

TEST_F(SteppedClockTest, AWaitByASteadyClockTakesAsLongAsBefore) {
  Subprocess probe = Waiting("steady");
  ASSERT_TRUE(clocks_.Step(probe.pid(), absl::Hours(1)));
  EXPECT_FALSE(probe.Wait(absl::Now() + absl::Seconds(2)).ok());
}

TEST_F(SteppedClockTest, WaitsOfAbseilInOurBinariesAreSteady) {
  probe_ = MILEPOST_STEADY_CLOCK_PROBE;
  Subprocess first = Waiting("absl", "1");
  AwaitSleep(first.pid());
  ASSERT_TRUE(clocks_.Step(first.pid(), -absl::Hours(1)));
  EXPECT_TRUE(first.Wait(absl::Now() + kSoon).ok());
  Subprocess second = Waiting("absl");
  AwaitSleep(second.pid());
  ASSERT_TRUE(clocks_.Step(second.pid(), absl::Hours(1)));
  EXPECT_FALSE(second.Wait(absl::Now() + absl::Seconds(2)).ok());
}

TEST_F(SteppedClockTest, OurBinariesHaveThoseWaits) {
  for (const char* binary :
       {"milepost", "milepost-coordinator", "milepost-worker", "milepost-trainer"}) {
    SpawnOptions options;
    options.argv = {"/usr/bin/nm", "--dynamic", "--defined-only", "--demangle",
                    absl::StrCat(std::getenv("MILEPOST_BIN_DIR"), "/", binary)};
    options.out = Redirect::Pipe();
    auto process = Subprocess::Spawn(std::move(options));
    ASSERT_TRUE(process.ok()) << process.status();
    const UniqueFd out = process->TakeOut();
    std::string symbols;
    char bytes[4096];
    for (ssize_t n = 0; (n = read(out.get(), bytes, sizeof bytes)) > 0;) symbols.append(bytes, n);
    EXPECT_TRUE(process->Wait(absl::Now() + kSoon).ok());
    EXPECT_NE(symbols.find("synchronization_internal::Waiter::Wait"), std::string::npos) << binary;
  }
}

TEST_F(SteppedClockTest, OnlyProcessesThatWereStartedWithOneAreStepped) {
  EXPECT_FALSE(clocks_.Step(getpid(), absl::Hours(1)));
}

}  // namespace
}  // namespace milepost::e2e
