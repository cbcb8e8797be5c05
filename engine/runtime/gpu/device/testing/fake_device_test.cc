#include "engine/runtime/gpu/device/testing/fake_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <future>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace milepost::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(1);

class FakeDeviceTest : public testing::Test {
 protected:
  void Start(uint64_t seed) {
    device_.emplace(seed);
    first_ = *device_->AddStream();
    second_ = *device_->AddStream();
    event_ = *device_->AddEvent();
  }
  Work Touch(const std::string& name, int byte, bool write) {
    const char* at = bytes_.data() + byte;
    return {
        .issue = [] { return absl::OkStatus(); }, .name = name, .accesses = {{at, at + 1, write}}};
  }
  absl::Status Drain() {
    const absl::Status status = device_->Synchronize(first_, kTimeout);
    return status.ok() ? device_->Synchronize(second_, kTimeout) : status;
  }

  std::array<char, 8> bytes_ = {};
  std::optional<FakeDevice> device_;
  StreamId first_ = 0;
  StreamId second_ = 0;
  EventId event_ = 0;
};

// What runs beside waits for work of another stream, which comes after it in any order but one.
TEST_F(FakeDeviceTest, WhatRunsBesideHoldsUpItsStreamAlone) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Start(seed);
    device_->SetBeside([](const std::string& name) { return name == "waits"; });
    std::promise<void> come;
    std::future<void> comes = come.get_future();
    Work waits = Touch("waits", 0, true);
    waits.issue = [&] {
      comes.wait();
      return absl::OkStatus();
    };
    Work comes_late = Touch("comes", 1, true);
    comes_late.issue = [&] {
      come.set_value();
      return absl::OkStatus();
    };
    ASSERT_TRUE(device_->Enqueue(first_, waits).ok());
    ASSERT_TRUE(device_->Enqueue(first_, Touch("behind", 0, true)).ok());
    ASSERT_TRUE(device_->Enqueue(second_, comes_late).ok());
    ASSERT_EQ(Drain(), absl::OkStatus());
    EXPECT_THAT(device_->trace(), ElementsAre("comes", "waits", "behind"));
  }
}

TEST_F(FakeDeviceTest, AnErrorBesideIsTheDevices) {
  Start(1);
  device_->SetBeside([](const std::string&) { return true; });
  Work fails = Touch("fails", 0, true);
  fails.issue = [] { return absl::AbortedError("gone"); };
  ASSERT_TRUE(device_->Enqueue(first_, fails).ok());
  EXPECT_EQ(device_->Synchronize(first_, kTimeout), absl::AbortedError("gone"));
  EXPECT_FALSE(device_->Enqueue(second_, Touch("later", 1, true)).ok());
}

TEST_F(FakeDeviceTest, OrdersAreThoseThatStreamsAndEventsAllow) {
  std::set<std::vector<std::string>> orders;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Start(seed);
    ASSERT_TRUE(device_->Enqueue(first_, Touch("a", 0, true)).ok());
    ASSERT_TRUE(device_->Record(event_, first_).ok());
    ASSERT_TRUE(device_->Enqueue(first_, Touch("b", 1, true)).ok());
    ASSERT_TRUE(device_->Wait(second_, event_).ok());
    ASSERT_TRUE(device_->Enqueue(second_, Touch("c", 0, false)).ok());
    ASSERT_EQ(Drain(), absl::OkStatus());
    orders.insert(device_->trace());
  }
  EXPECT_THAT(orders, ElementsAre(ElementsAre("a", "b", "c"), ElementsAre("a", "c", "b")));
}

// Found however lucky the order was.
TEST_F(FakeDeviceTest, NamesWorkThatNothingOrders) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Start(seed);
    ASSERT_TRUE(device_->Enqueue(first_, Touch("a", 0, true)).ok());
    ASSERT_TRUE(device_->Enqueue(second_, Touch("reads another byte", 1, false)).ok());
    const absl::Status status = device_->Enqueue(second_, Touch("c", 0, false));
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(status.message(), HasSubstr("nothing orders c after a"));
    EXPECT_EQ(Drain(), status) << "the first error stays";
  }
}

TEST_F(FakeDeviceTest, WhatTheHostHasWaitedForIsBeforeAllThatFollows) {
  Start(3);
  ASSERT_TRUE(device_->Enqueue(first_, Touch("a", 0, true)).ok());
  ASSERT_TRUE(device_->Enqueue(second_, Touch("beside it", 1, true)).ok());
  ASSERT_TRUE(device_->Synchronize(first_, kTimeout).ok());
  EXPECT_TRUE(device_->Enqueue(second_, Touch("c", 0, true)).ok());
  EXPECT_FALSE(device_->Enqueue(first_, Touch("d", 1, false)).ok()) << "not waited for";
}

TEST_F(FakeDeviceTest, AnEventIsItsLatestRecord) {
  Start(3);
  ASSERT_TRUE(device_->Wait(second_, event_).ok()) << "never recorded: no wait";
  ASSERT_TRUE(device_->Record(event_, first_).ok());
  ASSERT_TRUE(device_->Enqueue(first_, Touch("a", 0, true)).ok());
  ASSERT_TRUE(device_->Wait(second_, event_).ok());
  EXPECT_FALSE(device_->Enqueue(second_, Touch("c", 0, true)).ok()) << "recorded before a";
}

TEST_F(FakeDeviceTest, GraphsRunBetweenWhatIsBeforeAndWhatFollows) {
  std::set<std::vector<std::string>> orders;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Start(seed);
    const EventId back = *device_->AddEvent();
    ASSERT_TRUE(device_->BeginCapture(first_).ok());
    ASSERT_TRUE(device_->Record(event_, first_).ok());
    ASSERT_TRUE(device_->Wait(second_, event_).ok());
    ASSERT_TRUE(device_->Enqueue(first_, Touch("f", 1, true)).ok());
    ASSERT_TRUE(device_->Enqueue(second_, Touch("s", 2, true)).ok());
    ASSERT_TRUE(device_->Record(back, second_).ok());
    ASSERT_TRUE(device_->Wait(first_, back).ok());
    const auto graph = device_->EndCapture(first_);
    ASSERT_TRUE(graph.ok()) << graph.status();
    EXPECT_THAT(device_->trace(), ElementsAre());
    ASSERT_TRUE(device_->Enqueue(first_, Touch("before", 2, true)).ok());
    ASSERT_TRUE(device_->Launch(*graph, first_).ok());
    ASSERT_TRUE(device_->Enqueue(first_, Touch("after", 2, true)).ok());
    ASSERT_EQ(Drain(), absl::OkStatus());
    orders.insert(device_->trace());
  }
  EXPECT_THAT(orders, ElementsAre(ElementsAre("before", "f", "s", "after"),
                                  ElementsAre("before", "s", "f", "after")));
}

TEST_F(FakeDeviceTest, RefusesCapturesThatCudaRefuses) {
  Start(1);
  EXPECT_FALSE(device_->EndCapture(first_).ok());
  Start(1);
  ASSERT_TRUE(device_->BeginCapture(first_).ok());
  EXPECT_FALSE(device_->Synchronize(second_, kTimeout).ok());
  Start(1);
  ASSERT_TRUE(device_->BeginCapture(first_).ok());
  ASSERT_TRUE(device_->Record(event_, first_).ok());
  ASSERT_TRUE(device_->Wait(second_, event_).ok());
  ASSERT_TRUE(device_->Enqueue(second_, Touch("s", 2, true)).ok());
  EXPECT_THAT(device_->EndCapture(first_).status().message(),
              HasSubstr("nothing waits for its last work, s"));
  Start(1);
  ASSERT_TRUE(device_->BeginCapture(first_).ok());
  ASSERT_TRUE(device_->Record(event_, first_).ok());
  ASSERT_TRUE(device_->EndCapture(first_).ok());
  ASSERT_TRUE(device_->BeginCapture(first_).ok());
  EXPECT_THAT(device_->Wait(first_, event_).message(), HasSubstr("a capture that has ended"));
  Start(1);
  ASSERT_TRUE(device_->Enqueue(second_, Touch("s", 2, true)).ok());
  ASSERT_TRUE(device_->Record(event_, second_).ok());
  ASSERT_TRUE(device_->BeginCapture(first_).ok());
  EXPECT_THAT(device_->Wait(first_, event_).message(), HasSubstr("outside of the capture"));
}

}  // namespace
}  // namespace milepost::runtime
