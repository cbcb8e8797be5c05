#include "coordinator/rpc/call_watch.h"

#include <gtest/gtest.h>

namespace milepost::coordinator {
namespace {

class CallWatchTest : public ::testing::Test {
 protected:
  CallWatch watch_{/*with_thread=*/false};
  const absl::Time now_ = absl::FromUnixSeconds(1000);
  bool holds_ = true;
  int cancelled_ = 0;
  const uint64_t id_ =
      watch_.Begin({.holds = [this] { return holds_; }, .cancel = [this] { ++cancelled_; }});
};

TEST_F(CallWatchTest, WhoIsNotLetInAnyMoreIsCutAfterAMoment) {
  watch_.Sweep(now_);
  holds_ = false;
  watch_.Sweep(now_);
  EXPECT_EQ(cancelled_, 0) << "it may end by itself, and say why";
  watch_.Sweep(now_ + CallWatch::kGrace);
  watch_.Sweep(now_ + 2 * CallWatch::kGrace);
  EXPECT_EQ(cancelled_, 1);
}

TEST_F(CallWatchTest, AReaderThatDoesNotReadIsCut) {
  watch_.Writing(id_, now_);
  watch_.Sweep(now_ + CallWatch::kLongestWrite - absl::Seconds(1));
  watch_.Written(id_);
  watch_.Sweep(now_ + 2 * CallWatch::kLongestWrite);
  EXPECT_EQ(cancelled_, 0) << "slow, not stalled; and one that waits for news is neither";
  watch_.Writing(id_, now_);
  watch_.Sweep(now_ + CallWatch::kLongestWrite);
  EXPECT_EQ(cancelled_, 1);
}

TEST_F(CallWatchTest, WhatIsOverIsLeftAlone) {
  holds_ = false;
  watch_.Writing(id_, now_);
  watch_.End(id_);
  watch_.Sweep(now_ + absl::Hours(1));
  EXPECT_EQ(cancelled_, 0);
}

}  // namespace
}  // namespace milepost::coordinator
