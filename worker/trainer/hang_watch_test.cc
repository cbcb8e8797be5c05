#include "worker/trainer/hang_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>

#include "absl/synchronization/notification.h"

namespace milepost::worker {
namespace {

using runtime::Activity;
using runtime::ActivityBoard;
using ::testing::HasSubstr;

const absl::Time kStart = absl::FromUnixSeconds(1000);

class HangJudgeTest : public testing::Test {
 protected:
  // Every second from `now_` on, for so long: the first hang.
  std::optional<Hang> Watch(absl::Duration time, bool aborting = false) {
    for (const absl::Time end = now_ + time; now_ < end; now_ += absl::Seconds(1)) {
      if (auto hang = judge_.Look(board_.Look(), now_, aborting)) return hang;
    }
    return std::nullopt;
  }

  absl::Time now_ = kStart;
  ActivityBoard board_;
  HangJudge judge_{absl::Minutes(10), /*on_gpu=*/true};
};

TEST_F(HangJudgeTest, DataThatDoesNotCome) {
  board_.Enter(Activity::kData, 40);
  EXPECT_FALSE(Watch(absl::Seconds(3)).has_value());
  board_.Enter(Activity::kMicroStep, 40);
  EXPECT_FALSE(Watch(absl::Seconds(30)).has_value());
  board_.Enter(Activity::kData, 41);
  EXPECT_FALSE(Watch(absl::Seconds(600)).has_value());
  const auto hang = Watch(absl::Seconds(5));
  ASSERT_TRUE(hang.has_value());
  EXPECT_EQ(hang->failure_class, v1::FAILURE_CLASS_DATA);
  EXPECT_THAT(hang->message, HasSubstr("step 41: no data has come for 601 s"));
}

TEST_F(HangJudgeTest, TheSameAgainIsNotTheSame) {
  for (int i = 0; i < 5; ++i) {
    board_.Enter(Activity::kData, 41);
    EXPECT_FALSE(Watch(absl::Seconds(599)).has_value());
  }
}

TEST_F(HangJudgeTest, ADeviceThatDoesNotAnswer) {
  board_.Enter(Activity::kUpdate, 7);
  EXPECT_FALSE(Watch(absl::Hours(1)).has_value()) << "it is the first";
  const auto hang = Watch(absl::Seconds(5));
  ASSERT_TRUE(hang.has_value());
  EXPECT_EQ(hang->failure_class, v1::FAILURE_CLASS_DEVICE);
  EXPECT_THAT(hang->message, HasSubstr("step 7: the reduction of gradients or the update"));
}

TEST_F(HangJudgeTest, WhatHasDeadlinesOfItsOwnMayTakeForEver) {
  board_.Enter(Activity::kOther, 7);
  EXPECT_FALSE(Watch(absl::Hours(20)).has_value());
}

// A rank whose state is on a slow disk is left alone as long as pieces of it come; one whose file
// system does not answer is not. Quick pieces before say nothing of the next.
TEST_F(HangJudgeTest, SettingUpMayTakeLongButGoesOn) {
  for (int piece = 0; piece < 5; ++piece) {
    board_.Enter(Activity::kSetUp, 0);
    EXPECT_FALSE(Watch(piece == 4 ? absl::Minutes(59) : absl::Seconds(2)).has_value()) << piece;
  }
  const auto hang = Watch(absl::Minutes(2));
  ASSERT_TRUE(hang.has_value());
  EXPECT_EQ(hang->failure_class, v1::FAILURE_CLASS_HOST);
  EXPECT_THAT(hang->message, HasSubstr("setting up hangs: nothing has come of it for 3601 s"));
}

// Micro-steps that take minutes are no hang until one takes 20 times as long.
TEST_F(HangJudgeTest, PatienceGrowsWithWhatIsUsual) {
  board_.Enter(Activity::kMicroStep, 1);
  EXPECT_FALSE(Watch(absl::Minutes(5)).has_value());
  board_.Enter(Activity::kMicroStep, 2);
  EXPECT_FALSE(Watch(absl::Minutes(99)).has_value());
  EXPECT_TRUE(Watch(absl::Minutes(3)).has_value());
}

// Others have waited for a minute, and the coordinator has told all to leave.
TEST_F(HangJudgeTest, OfRanksThatAreToLeaveTheOneThatHangsSaysWhy) {
  board_.Enter(Activity::kData, 41);
  EXPECT_FALSE(Watch(absl::Seconds(60)).has_value());
  const auto hang = Watch(absl::Seconds(10), /*aborting=*/true);
  ASSERT_TRUE(hang.has_value());
  EXPECT_EQ(hang->failure_class, v1::FAILURE_CLASS_DATA);
  EXPECT_EQ(now_ - kStart, absl::Seconds(66));
}

TEST_F(HangJudgeTest, OneThatHadJustBegunOrComputesIsNotTheCause) {
  board_.Enter(Activity::kData, 41);
  EXPECT_FALSE(Watch(absl::Seconds(25)).has_value());
  EXPECT_FALSE(Watch(absl::Seconds(100), /*aborting=*/true).has_value());
  judge_ = HangJudge(absl::Minutes(10), /*on_gpu=*/false);
  board_.Enter(Activity::kMicroStep, 41);
  EXPECT_FALSE(Watch(absl::Seconds(60)).has_value());
  EXPECT_FALSE(Watch(absl::Seconds(60), /*aborting=*/true).has_value());
}

TEST(HangWatchTest, TellsThatTheProcessIsAliveAndThatItHangs) {
  ActivityBoard board;
  board.Enter(Activity::kData, 3);
  std::atomic<int> alive{0};
  absl::Notification hung;
  Hang found;
  HangWatch watch(&board, {.patience = absl::ZeroDuration(),
                           .aborting = [] { return false; },
                           .alive = [&] { ++alive; },
                           .on_hang =
                               [&](const Hang& hang) {
                                 found = hang;
                                 hung.Notify();
                               }});
  ASSERT_TRUE(hung.WaitForNotificationWithTimeout(absl::Seconds(60)));
  EXPECT_GE(alive, 2);
  EXPECT_EQ(found.failure_class, v1::FAILURE_CLASS_DATA);
}

}  // namespace
}  // namespace milepost::worker
