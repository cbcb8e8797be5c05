#include "tests/e2e/link_plan.h"

#include <gtest/gtest.h>

#include <random>

namespace milepost::e2e {
namespace {

constexpr int kPackets = 100'000;

TEST(LinkPlanTest, ACleanLinkPassesEverythingAtOnce) {
  for (const uint64_t random : {uint64_t{0}, ~uint64_t{0}}) {
    const PacketFate fate = Decide(LinkPlan(), absl::Seconds(1), random);
    EXPECT_FALSE(fate.dropped);
    EXPECT_EQ(fate.delay, absl::ZeroDuration());
  }
}

TEST(LinkPlanTest, LosesThePartThatItSays) {
  std::mt19937_64 random(1);
  int dropped = 0;
  for (int i = 0; i < kPackets; ++i) {
    dropped += Decide({.loss = 0.1}, absl::ZeroDuration(), random()).dropped ? 1 : 0;
  }
  EXPECT_NEAR(dropped, kPackets / 10, 500);
  EXPECT_TRUE(Decide({.loss = 1}, absl::ZeroDuration(), ~uint64_t{0}).dropped);
}

TEST(LinkPlanTest, DelaysByTheDelayAndUpToTheJitterWhateverIsLost) {
  const LinkPlan plan = {
      .loss = 0.5, .delay = absl::Milliseconds(5), .jitter = absl::Milliseconds(20)};
  std::mt19937_64 random(1);
  absl::Duration least = absl::InfiniteDuration(), most;
  for (int i = 0; i < kPackets; ++i) {
    const PacketFate fate = Decide(plan, absl::ZeroDuration(), random());
    if (fate.dropped) continue;
    least = std::min(least, fate.delay);
    most = std::max(most, fate.delay);
  }
  EXPECT_GE(least, absl::Milliseconds(5));
  EXPECT_LT(least, absl::Milliseconds(6));
  EXPECT_GT(most, absl::Milliseconds(24));
  EXPECT_LT(most, absl::Milliseconds(25));
}

TEST(LinkPlanTest, IsDownAtTheBeginningOfEachPeriod) {
  const LinkPlan plan = {.period = absl::Seconds(1), .down = absl::Milliseconds(300)};
  for (const int64_t period : {0, 1, 7}) {
    const absl::Duration begin = absl::Seconds(period);
    EXPECT_TRUE(Decide(plan, begin, 1).dropped);
    EXPECT_TRUE(Decide(plan, begin + absl::Milliseconds(299), 1).dropped);
    EXPECT_FALSE(Decide(plan, begin + absl::Milliseconds(300), 1).dropped);
    EXPECT_FALSE(Decide(plan, begin + absl::Milliseconds(999), 1).dropped);
  }
}

TEST(LinkPlanTest, NothingPassesACutLink) {
  for (int64_t millis = 0; millis < 5000; ++millis) {
    EXPECT_TRUE(Decide(CutLink(), absl::Milliseconds(millis), 1).dropped);
  }
}

TEST(LinkPlanTest, SaysWhatItIs) {
  EXPECT_EQ(LinkPlan().ToString(), "clean");
  EXPECT_EQ(CutLink().ToString(), "cut");
  const LinkPlan plan = {
      .loss = 0.1, .delay = absl::Milliseconds(5), .jitter = absl::Milliseconds(20)};
  EXPECT_EQ(plan.ToString(), "loss 10%, delay 5ms, jitter 20ms");
}

}  // namespace
}  // namespace milepost::e2e
