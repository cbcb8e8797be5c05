// Whatever a worker sends, what is kept of it is little.
#include "coordinator/desks/worker_limits.h"

#include <gmock/gmock.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace milepost::coordinator {
namespace {

using ::testing::HasSubstr;

v1::Hello TwoSlots() {
  v1::Hello hello;
  hello.set_worker_id("a");
  hello.set_incarnation(1);
  for (int i = 0; i < 2; ++i) {
    hello.add_slots()->set_index(i);
    hello.mutable_slots(i)->set_device(v1::DEVICE_KIND_CPU);
  }
  return hello;
}

TEST(WorkerLimits, AHelloHasRanksForItsSlots) {
  v1::Hello hello = TwoSlots();
  for (int i = 0; i < 2 * 4 + 64; ++i) hello.add_ranks()->set_rank(i);
  EXPECT_EQ(CheckHello(hello), absl::OkStatus());
  hello.add_ranks();
  EXPECT_THAT(CheckHello(hello).message(), HasSubstr("ranks: at most 72 of 2 slots, not 73"));
}

TEST(WorkerLimits, APoolHasANameThatAJobCanAskFor) {
  v1::Hello hello = TwoSlots();
  (*hello.mutable_labels())["rack"] = "row 7";
  (*hello.mutable_labels())["pool"] = "a100-80.new_1";
  EXPECT_EQ(CheckHello(hello), absl::OkStatus());
  (*hello.mutable_labels())["pool"] = "a 100";
  EXPECT_THAT(CheckHello(hello).message(), HasSubstr("labels: pool is what jobs name"));
}

TEST(WorkerLimits, LongTextsAndListsAreCut) {
  const std::string text(1 << 20, 'x');
  v1::WorkerMessage message;
  v1::Progress* progress = message.mutable_progress()->mutable_progress();
  progress->set_restored_from(text);
  progress->set_checkpoint_problem(text);
  progress->mutable_data()->set_first_damage(text);
  for (int i = 0; i < 10'000; ++i) progress->add_validation_heads()->set_name(text.substr(0, 300));
  BoundWorkerMessage(&message);
  EXPECT_LT(message.ByteSizeLong(), 16 << 10);
  EXPECT_EQ(progress->validation_heads_size(), 16);
  EXPECT_EQ(progress->checkpoint_problem().size(), 4096U);

  message.mutable_leaving()->set_reason(text);
  BoundWorkerMessage(&message);
  EXPECT_EQ(message.leaving().reason().size(), 256U);
  message.mutable_health_report()->set_problem(text);
  BoundWorkerMessage(&message);
  EXPECT_EQ(message.health_report().problem().size(), 4096U);
  for (int i = 0; i < 5000; ++i) {
    message.mutable_heartbeat()->add_devices()->add_throttling(text.substr(0, 300));
  }
  BoundWorkerMessage(&message);
  EXPECT_EQ(message.heartbeat().devices_size(), 1024);
  EXPECT_EQ(message.heartbeat().devices(7).throttling(0).size(), 256U);
}

TEST(WorkerLimits, FieldsThatAreNotKnownAreDropped) {
  v1::WorkerMessage message;
  v1::Progress* progress = message.mutable_progress()->mutable_progress();
  progress->set_step(1);
  progress->GetReflection()->MutableUnknownFields(progress)->AddLengthDelimited(
      9999, std::string(1 << 20, 'x'));
  BoundWorkerMessage(&message);
  EXPECT_LT(message.ByteSizeLong(), 100U);
}

TEST(WorkerLimits, TimesThatAreNoneAreDropped) {
  v1::RankReport report;
  report.mutable_time()->set_seconds(std::numeric_limits<int64_t>::max());
  report.mutable_progress()->mutable_time()->set_nanos(-1);
  report.mutable_progress()->mutable_first_step_time()->set_seconds(1'800'000'000);
  BoundWorkerMessage(&report);
  EXPECT_FALSE(report.has_time());
  EXPECT_FALSE(report.progress().has_time());
  EXPECT_EQ(report.progress().first_step_time().seconds(), 1'800'000'000);
}

TEST(WorkerLimits, WhatIsUsualStaysAsItIs) {
  v1::WorkerMessage message;
  *message.mutable_hello() = TwoSlots();
  message.mutable_hello()->set_driver("580.159");
  message.mutable_hello()->mutable_labels()->insert({"rack", "r1"});
  message.mutable_hello()->add_ranks()->set_message(std::string(4000, 'm'));
  const std::string before = message.ShortDebugString();
  BoundWorkerMessage(&message);
  EXPECT_EQ(message.ShortDebugString(), before);
}

}  // namespace
}  // namespace milepost::coordinator
