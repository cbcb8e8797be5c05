#include "common/message_channel.h"

#include <gtest/gtest.h>

#include <sys/socket.h>

#include <optional>
#include <thread>

#include "milepost/v1/job.pb.h"

namespace milepost {
namespace {

v1::Progress AtStep(int64_t step) {
  v1::Progress progress;
  progress.set_step(step);
  return progress;
}

class MessageChannelTest : public testing::Test {
 protected:
  void SetUp() override {
    auto pair = MessageChannel::CreatePair();
    ASSERT_TRUE(pair.ok());
    a_.emplace(std::move(pair->first));
    b_.emplace(std::move(pair->second));
  }
  std::optional<MessageChannel> a_, b_;
};

TEST_F(MessageChannelTest, KeepsMessageBoundariesEmptyOnesToo) {
  ASSERT_TRUE(a_->Send(AtStep(1), absl::InfinitePast()).ok());
  ASSERT_TRUE(a_->Send(v1::Progress(), absl::InfinitePast()).ok());
  ASSERT_TRUE(a_->Send(AtStep(3), absl::InfinitePast()).ok());
  a_.reset();
  v1::Progress progress;
  ASSERT_TRUE(b_->Receive(&progress, absl::InfinitePast()).ok());
  EXPECT_EQ(progress.step(), 1);
  ASSERT_TRUE(b_->Receive(&progress, absl::InfinitePast()).ok());
  EXPECT_EQ(progress.step(), 0);
  ASSERT_TRUE(b_->Receive(&progress, absl::InfinitePast()).ok());
  EXPECT_EQ(progress.step(), 3);
  EXPECT_EQ(b_->Receive(&progress, absl::InfinitePast()).code(), absl::StatusCode::kOutOfRange);
}

TEST_F(MessageChannelTest, SendingNeverBlocksWhenToldSo) {
  int sent = 0;
  absl::Status status;
  while ((status = a_->Send(AtStep(sent), absl::InfinitePast())).ok()) ++sent;
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GT(sent, 10);
  v1::Progress progress;
  for (int i = 0; i < sent; ++i) {
    ASSERT_TRUE(b_->Receive(&progress, absl::InfinitePast()).ok());
    EXPECT_EQ(progress.step(), i);
  }
  EXPECT_EQ(b_->Receive(&progress, absl::InfinitePast()).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(MessageChannelTest, ReceiveWaits) {
  std::thread sender([&] { (void)a_->Send(AtStep(7), absl::InfiniteFuture()); });
  v1::Progress progress;
  EXPECT_TRUE(b_->Receive(&progress, absl::Now() + absl::Seconds(30)).ok());
  EXPECT_EQ(progress.step(), 7);
  sender.join();
}

TEST_F(MessageChannelTest, AClosedEndIsAStatusNotASignal) {
  b_.reset();
  EXPECT_EQ(a_->Send(AtStep(1), absl::InfinitePast()).code(), absl::StatusCode::kUnavailable);
}

TEST_F(MessageChannelTest, RefusesTooLongAndMalformedMessages) {
  v1::LogLine line;
  line.set_text(std::string(MessageChannel::kMaxBytes, 'x'));
  EXPECT_EQ(a_->Send(line, absl::InfinitePast()).code(), absl::StatusCode::kInvalidArgument);
  line.set_text("\xff\xff");
  ASSERT_EQ(send(a_->fd(), "\xff\xff\xff", 4, 0), 4);
  v1::Progress progress;
  EXPECT_EQ(b_->Receive(&progress, absl::InfinitePast()).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace milepost
