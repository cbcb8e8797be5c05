// Claims that come to nothing. checkpoint_test.cc tries uploads against a service.
#include "worker/trainer/background_upload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace milepost::worker {
namespace {

using testing::HasSubstr;

// Nobody listens there, so what is submitted waits.
constexpr char kNowhere[] = "127.0.0.1:1";

absl::Time InTime() { return absl::Now() + absl::Seconds(30); }

class BackgroundUploadTest : public testing::Test {
 protected:
  void Submit(int64_t step) {
    ASSERT_TRUE(uploads_.Claim(step).ok());
    Upload upload;
    upload.layout = &layout_;
    upload.begin.set_step(step);
    uploads_.Submit(std::move(upload), /*final=*/false);
  }

  const state::StateLayout layout_ = {};
  BackgroundUpload uploads_{kNowhere, 1, {}};
};

TEST_F(BackgroundUploadTest, WhatWaitedIsLostWithAClaimThatIsGivenUp) {
  EXPECT_TRUE(uploads_.Wait(InTime()).ok()) << "nothing was submitted";
  Submit(5);
  EXPECT_TRUE(absl::IsDeadlineExceeded(uploads_.Wait(absl::InfinitePast())));
  ASSERT_TRUE(uploads_.Claim(6).ok());
  uploads_.GiveUp();
  EXPECT_THAT(uploads_.Wait(InTime()).message(), HasSubstr("step 5: the checkpoint was not saved"));
  EXPECT_THAT(uploads_.State().problem, HasSubstr("step 5: the checkpoint was not saved"));
  EXPECT_FALSE(uploads_.State().active);
}

TEST_F(BackgroundUploadTest, AClaimOfNothingThatIsGivenUpChangesNothing) {
  ASSERT_TRUE(uploads_.Claim(6).ok());
  uploads_.GiveUp();
  EXPECT_TRUE(uploads_.Wait(InTime()).ok());
  EXPECT_EQ(uploads_.State().problem, "");
}

TEST_F(BackgroundUploadTest, AfterWithdrawingNothingIsClaimedAndWhatWaitsGoesOn) {
  Submit(5);
  uploads_.Withdraw();
  EXPECT_TRUE(uploads_.State().active) << "it was not claimed";
  EXPECT_TRUE(absl::IsCancelled(uploads_.Claim(6)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(uploads_.Wait(absl::InfinitePast())));
}

// Copies need no coordinator. They are made once, however often the upload begins.
TEST_F(BackgroundUploadTest, CopiesMayBeAllThatIsMade) {
  int copies = 0;
  const auto submit = [&](int64_t step, bool durable, const absl::Status& copied) {
    ASSERT_TRUE(uploads_.Claim(step).ok());
    Upload upload;
    upload.layout = &layout_;
    upload.begin.set_step(step);
    upload.durable = durable;
    upload.copy = [&copies, copied] {
      ++copies;
      return copied;
    };
    uploads_.Submit(std::move(upload), /*final=*/true);
  };
  submit(5, /*durable=*/false, absl::OkStatus());
  EXPECT_TRUE(uploads_.Wait(InTime()).ok());
  EXPECT_FALSE(uploads_.State().active);
  EXPECT_EQ(uploads_.State().committed_step, -1);
  submit(6, /*durable=*/false, absl::ResourceExhaustedError("no memory is left there"));
  EXPECT_THAT(uploads_.Wait(InTime()).message(), HasSubstr("no memory"));
  EXPECT_THAT(uploads_.State().problem, HasSubstr("no memory"));
  EXPECT_FALSE(uploads_.State().durable);
  submit(7, /*durable=*/true, absl::OkStatus());
  EXPECT_TRUE(absl::IsDeadlineExceeded(uploads_.Wait(absl::InfinitePast())));
  ASSERT_TRUE(uploads_.Claim(8).ok());
  EXPECT_EQ(copies, 3) << "a claim waits for the copies";
  EXPECT_TRUE(uploads_.gave_way());
  uploads_.GiveUp();
}

TEST_F(BackgroundUploadTest, CancellingEndsAWait) {
  Submit(5);
  std::thread canceller([this] { uploads_.Cancel(); });
  EXPECT_TRUE(absl::IsCancelled(uploads_.Wait(absl::InfiniteFuture())));
  canceller.join();
}

}  // namespace
}  // namespace milepost::worker
