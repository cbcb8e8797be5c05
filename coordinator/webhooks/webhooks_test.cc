#include "coordinator/webhooks/receiver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/proto_time.h"
#include "coordinator/webhooks/courier.h"
#include "coordinator/webhooks/webhook_file.h"

namespace milepost::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSecret[] = "0123456789abcdef";

class CourierTest : public ::testing::Test {
 protected:
  CourierTest() {
    options_.done = [this](uint64_t number) {
      absl::MutexLock lock(&mutex_);
      done_.push_back(number);
    };
    options_.first_pause = absl::Milliseconds(2);
    options_.longest_pause = absl::Milliseconds(10);
  }
  static NumberedDelivery Delivery(uint64_t number, absl::Time made = absl::Now(),
                                   const std::string& webhook = "w") {
    NumberedDelivery delivery = {number, {}};
    delivery.delivery.set_webhook(webhook);
    delivery.delivery.set_body(absl::StrCat("{\"n\":", number, "}"));
    *delivery.delivery.mutable_create_time() = ToProto(made);
    return delivery;
  }
  std::vector<uint64_t> AwaitDone(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&]()
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_.size() >= count; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(20)));
    return done_;
  }

  CourierOptions options_;
  absl::Mutex mutex_;
  std::vector<uint64_t> done_ ABSL_GUARDED_BY(mutex_);
  std::vector<Received> received_;  // the receiver's alone until it is gone
};

TEST_F(CourierTest, DeliversInOrderWithASignature) {
  {
    Receiver receiver([&](const Received& one) {
      received_.push_back(one);
      return 204;
    });
    Courier courier({{"w", receiver.Url(), kSecret, {}, {}}}, options_);
    for (uint64_t number = 1; number <= 3; ++number) courier.Send(Delivery(number));
    EXPECT_THAT(AwaitDone(3), ElementsAre(1, 2, 3));
  }
  ASSERT_EQ(received_.size(), 3u);
  EXPECT_EQ(received_[0].path, "POST /hook");
  EXPECT_EQ(received_[1].delivery, "2");
  EXPECT_EQ(received_[1].body, "{\"n\":2}");
  const std::vector<std::string> parts = absl::StrSplit(received_[1].signature, ",v1=");
  ASSERT_EQ(parts.size(), 2u);
  ASSERT_TRUE(absl::StartsWith(parts[0], "t="));
  const std::string time = parts[0].substr(2);
  EXPECT_EQ(parts[1], HmacSha256Hex(kSecret, time + "." + received_[1].body));
}

// RFC 4231, test case 2.
TEST_F(CourierTest, SignaturesAreHmacSha256) {
  EXPECT_EQ(HmacSha256Hex("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST_F(CourierTest, TriesAgainUntilItIsTaken) {
  {
    Receiver receiver([&](const Received& one) {
      received_.push_back(one);
      const size_t tries = received_.size();
      return tries == 1 ? 500 : tries == 2 ? 302 : tries == 3 ? 0 : 200;
    });
    Courier courier({{"w", receiver.Url(), kSecret, {}, {}}}, options_);
    courier.Send(Delivery(7));
    courier.Send(Delivery(8));
    EXPECT_THAT(AwaitDone(2), ElementsAre(7, 8));
  }
  ASSERT_EQ(received_.size(), 5u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(received_[i].delivery, "7");
  EXPECT_EQ(received_[4].delivery, "8");
}

TEST_F(CourierTest, GivesUpAfterItsPatience) {
  Courier courier({{"w", "http://127.0.0.1:1/none", kSecret, {}, {}}}, options_);
  courier.Send(Delivery(1, absl::Now() - absl::Hours(25)));
  EXPECT_THAT(AwaitDone(1), ElementsAre(1));
  courier.Send(Delivery(2, absl::Now(), "of a file before"));
  EXPECT_THAT(AwaitDone(2), ElementsAre(1, 2));
}

// What its receiver does not want, however often it is sent, does not hold up the others.
TEST_F(CourierTest, GivesUpWhatIsRefusedAFewTimes) {
  {
    Receiver receiver([&](const Received& one) {
      received_.push_back(one);
      return one.delivery == "1" ? 413 : 200;
    });
    Courier courier({{"w", receiver.Url(), kSecret, {}, {}}}, options_);
    courier.Send(Delivery(1));
    courier.Send(Delivery(2));
    EXPECT_THAT(AwaitDone(2), ElementsAre(1, 2));
  }
  ASSERT_EQ(received_.size(), 6u);
  EXPECT_EQ(received_[4].delivery, "1");
  EXPECT_EQ(received_[5].delivery, "2");
}

TEST_F(CourierTest, GoesOnWhenItIsToldToComeBackLater) {
  {
    Receiver receiver([&](const Received& one) {
      received_.push_back(one);
      const size_t tries = received_.size();
      return tries <= 4 ? 429 : tries <= 8 ? 404 : tries <= 12 ? 403 : 200;
    });
    Courier courier({{"w", receiver.Url(), kSecret, {}, {}}}, options_);
    courier.Send(Delivery(1));
    EXPECT_THAT(AwaitDone(1), ElementsAre(1));
  }
  EXPECT_EQ(received_.size(), 13u);
}

TEST_F(CourierTest, WaitsForNoMoreThanItMay) {
  options_.most_waiting = 3;
  options_.first_pause = absl::Hours(1);
  options_.longest_pause = absl::Hours(1);
  Courier courier({{"w", "http://127.0.0.1:1/none", kSecret, {}, {}}}, options_);
  for (uint64_t number = 1; number <= 5; ++number) courier.Send(Delivery(number));
  EXPECT_THAT(AwaitDone(2), ElementsAre(2, 3));  // 1 is under way
}

TEST_F(CourierTest, StopsAtOnceAndDeliversNothingMore) {
  Receiver receiver([&](const Received&) { return 500; });
  options_.first_pause = absl::Hours(1);
  Courier courier({{"w", receiver.Url(), kSecret, {}, {}}}, options_);
  courier.Send(Delivery(1));
  courier.Stop();
  absl::MutexLock lock(&mutex_);
  EXPECT_TRUE(done_.empty());
}

std::string Problem(const std::string& text) {
  const auto webhooks = ParseWebhooks(text, "hooks.yaml");
  EXPECT_FALSE(webhooks.ok()) << text;
  return std::string(webhooks.status().message());
}

TEST(WebhookFileTest, IsRead) {
  const auto webhooks = ParseWebhooks(
      "webhooks:\n- name: team\n  url: https://example.org/x?key=1\n  secret: 0123456789abcdef\n"
      "  projects: [vision, speech]\n  states: [failed]\n",
      "hooks.yaml");
  ASSERT_TRUE(webhooks.ok()) << webhooks.status();
  ASSERT_EQ(webhooks->size(), 1u);
  v1::Job job;
  job.set_project("vision");
  job.set_state(v1::JOB_STATE_FAILED);
  EXPECT_TRUE(Wants((*webhooks)[0], job));
  job.set_state(v1::JOB_STATE_SUCCEEDED);
  EXPECT_FALSE(Wants((*webhooks)[0], job));
  EXPECT_TRUE(Wants(Webhook{}, job));
  job.set_state(v1::JOB_STATE_FAILED);
  job.clear_project();
  EXPECT_FALSE(Wants((*webhooks)[0], job));
}

TEST(WebhookFileTest, SaysWhatIsWrongAndNoSecret) {
  const std::string good = "  url: http://x\n  secret: 0123456789abcdef\n";
  EXPECT_THAT(Problem(""), HasSubstr("expected a list `webhooks:`"));
  EXPECT_THAT(Problem("hooks: []"), HasSubstr("hooks.yaml:1"));
  EXPECT_THAT(Problem("webhooks:\n- name: a b\n" + good), HasSubstr("hooks.yaml:2: name"));
  EXPECT_THAT(Problem("webhooks:\n- name: a\n  url: ftp://x\n  secret: 0123456789abcdef\n"),
              HasSubstr("url"));
  for (const char* url : {"http://", "https:///path", "http://:80/", "http://x:/", "http://x:0",
                          "http://x:99999/y", "http://u@:1/", "http://[::1]:/"}) {
    EXPECT_THAT(Problem(absl::StrCat("webhooks:\n- name: a\n  url: '", url,
                                     "'\n  secret: 0123456789abcdef\n")),
                HasSubstr("url: expected https://HOST"))
        << url;
  }
  for (const char* url :
       {"http://x:80", "https://[::1]/", "http://[::1]:8080?q", "http://u:p@x/"}) {
    const auto taken = ParseWebhooks(
        absl::StrCat("webhooks:\n- name: a\n  url: '", url, "'\n  secret: 0123456789abcdef\n"),
        "hooks.yaml");
    EXPECT_TRUE(taken.ok()) << url << taken.status();
  }
  EXPECT_THAT(Problem("webhooks:\n- name: a\n  url: http://x\n  secret: hunter2\n"),
              ::testing::AllOf(HasSubstr("secret"), Not(HasSubstr("hunter2"))));
  EXPECT_THAT(Problem("webhooks:\n- name: a\n" + good + "  states: [running]\n"),
              HasSubstr("states"));
  EXPECT_THAT(Problem("webhooks:\n- name: a\n" + good + "  sekret: hunter2\n"),
              Not(HasSubstr("hunter2")));
  EXPECT_THAT(Problem("webhooks:\n- name: a\n" + good + "- name: a\n" + good),
              HasSubstr("another one has it"));
}

TEST(WebhookFileTest, TheBodyTellsHowTheJobEnded) {
  v1::Job job;
  job.set_name("jobs/7");
  job.set_state(v1::JOB_STATE_FAILED);
  job.set_reason(v1::JOB_REASON_BUDGET_EXHAUSTED);
  job.mutable_spec()->set_name("gpt");
  job.mutable_spec()->mutable_data()->set_train("/secret/path");
  (*job.mutable_labels())["team"] = "vision";
  job.mutable_progress()->set_step(12);
  job.mutable_first_failure()->set_message("a \"quoted\" line");
  job.mutable_first_failure()->add_last_lines("what the rank printed");
  const std::string body = WebhookBody(job);
  EXPECT_THAT(body, HasSubstr(R"("event":"job.ended")"));
  EXPECT_THAT(body, HasSubstr(R"("name":"jobs/7")"));
  EXPECT_THAT(body, HasSubstr(R"("state":"FAILED")"));
  EXPECT_THAT(body, HasSubstr(R"("labels":{"team":"vision"})"));
  EXPECT_THAT(body, HasSubstr(R"("step":12)"));
  EXPECT_THAT(body, HasSubstr(R"("message":"a \"quoted\" line")"));
  EXPECT_THAT(body, Not(HasSubstr("/secret/path")));
  EXPECT_THAT(body, Not(HasSubstr("what the rank printed")));
}

}  // namespace
}  // namespace milepost::coordinator
