// Times of a small program on the fake device, whose ops take as many seconds as they are told to.
#include "engine/runtime/gpu/device/piece_timer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/runtime/gpu/device/device_executor.h"
#include "engine/runtime/gpu/device/testing/fake_device.h"

namespace milepost::runtime {
namespace {

using graph::OpKind;
using graph::Phase;
using plan::Stream;
using plan::When;
using testing::HasSubstr;

constexpr absl::Duration kPieceTimeout = absl::Seconds(1);
constexpr double kNear = 1e-9;

class NoOps : public Backend {
 public:
  absl::StatusOr<BoundOp> Bind(const plan::StepPlan&, const plan::Program&,
                               const plan::PlannedOp&) override {
    return BoundOp([](const StepContext&) { return absl::OkStatus(); });
  }
};

class PieceTimerTest : public testing::TestWithParam<uint64_t> {
 protected:
  PieceTimerTest() : device_(GetParam()) {
    device_.SetCost([this](const std::string& name) {
      for (const auto& [op, seconds] : seconds_) {
        if (absl::StartsWith(name, absl::StrCat("op ", op, " "))) return seconds;
      }
      return 0.0;
    });
  }
  // Returns its index.
  int32_t Add(double seconds, OpKind kind, Phase phase, Stream stream,
              std::vector<int32_t> waits = {}, When when = When::kEveryMicroStep) {
    const auto index = static_cast<int32_t>(plan_.train.ops.size());
    plan::PlannedOp op;
    op.op.kind = kind;
    op.op.phase = phase;
    op.stream = stream;
    op.wait_for = std::move(waits);
    op.when = when;
    op.flops = 10;
    plan_.train.ops.push_back(op);
    seconds_[index] = seconds;
    return index;
  }
  void AddSharded() {
    const int32_t gather =
        Add(5, OpKind::kGatherParameters, Phase::kForward, Stream::kCommunication);
    Add(1, OpKind::kEmbedding, Phase::kForward, Stream::kCompute);
    Add(2, OpKind::kLinear, Phase::kForward, Stream::kCompute, {gather});
    Add(3, OpKind::kLinear, Phase::kForward, Stream::kCompute);
    Add(4, OpKind::kLinear, Phase::kRecompute, Stream::kCompute);
    const int32_t gradient =
        Add(6, OpKind::kLinearBackwardWeight, Phase::kBackward, Stream::kCompute);
    const int32_t reduce = Add(7, OpKind::kReduceGradients, Phase::kBackward,
                               Stream::kCommunication, {gradient}, When::kLastMicroStep);
    Add(2.5, OpKind::kEmbeddingBackward, Phase::kBackward, Stream::kCompute);
    const int32_t norm =
        Add(0.5, OpKind::kGradNorm, Phase::kUpdate, Stream::kCompute, {reduce}, When::kUpdate);
    Add(1.5, OpKind::kReduceScalars, Phase::kUpdate, Stream::kCommunication, {norm}, When::kUpdate);
    Add(8, OpKind::kOptimizer, Phase::kUpdate, Stream::kCompute, {}, When::kUpdate);
  }
  std::unique_ptr<DeviceExecutor> Executor() {
    const DeviceStreams streams = *DeviceStreams::Add(device_);
    return *DeviceExecutor::Create(plan_, plan_.train, &backend_, &device_, streams, nullptr);
  }
  absl::Status RunAll(DeviceExecutor& executor, PieceTimer& timer) {
    for (const Section section : {Section::kMicroStep, Section::kReduce, Section::kUpdate}) {
      if (absl::Status status = executor.Run(section, {}, &timer); !status.ok()) return status;
    }
    return executor.Synchronize(kPieceTimeout);
  }
  void ExpectSharded(const StreamTimes& times, double runs) {
    EXPECT_NEAR(times.forward, runs * (1 + 2 + 3), kNear);
    EXPECT_NEAR(times.backward, runs * (4 + 6 + 2.5), kNear);
    EXPECT_NEAR(times.update, runs * (0.5 + 8), kNear);
    EXPECT_NEAR(times.communication, runs * (5 + 7 + 1.5), kNear);
    // The second op for the gather, the norm for the rest of the reduction, and the join behind it
    // for the scalars.
    EXPECT_NEAR(times.exposed, runs * (4 + 4.5 + 1.5), kNear);
  }

  FakeDevice device_;
  NoOps backend_;
  plan::StepPlan plan_;
  std::map<int32_t, double> seconds_;
  StreamTimes times_;
  std::vector<OpKindTime> ops_;
};

TEST_P(PieceTimerTest, SaysWhereTheTimeWent) {
  AddSharded();
  const auto executor = Executor();
  PieceTimer timer(&device_, &plan_.train);
  for (int run = 1; run <= 3; ++run) {
    timer.Restart(/*by_op=*/false);
    ASSERT_EQ(RunAll(*executor, timer), absl::OkStatus());
    ASSERT_EQ(timer.Read(1, &times_, &ops_), absl::OkStatus());
    ExpectSharded(times_, run);
  }
  EXPECT_TRUE(ops_.empty());
}

TEST_P(PieceTimerTest, EveryLaunchOfAGraphIsTimed) {
  AddSharded();
  const auto executor = Executor();
  PieceTimer timer(&device_, &plan_.train);
  timer.Restart(/*by_op=*/false);
  const auto graph =
      executor->Capture({Section::kMicroStep, Section::kReduce, Section::kUpdate}, {}, &timer);
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (int launch = 1; launch <= 2; ++launch) {
    ASSERT_EQ(executor->Launch(*graph), absl::OkStatus());
    ASSERT_EQ(executor->Synchronize(kPieceTimeout), absl::OkStatus());
    ASSERT_EQ(timer.Read(1, &times_, &ops_), absl::OkStatus());
    ExpectSharded(times_, launch);
  }
  seconds_[1] = 2;  // of the next launch alone
  ASSERT_EQ(executor->Launch(*graph), absl::OkStatus());
  ASSERT_EQ(executor->Synchronize(kPieceTimeout), absl::OkStatus());
  StreamTimes last;
  ASSERT_EQ(timer.Read(1, &last, &ops_), absl::OkStatus());
  EXPECT_NEAR(last.forward, 2 + 2 + 3, kNear);
  EXPECT_NEAR(last.exposed, 3 + 4.5 + 1.5, kNear);
}

TEST_P(PieceTimerTest, ByOpEachHasItsTime) {
  AddSharded();
  const auto executor = Executor();
  PieceTimer timer(&device_, &plan_.train);
  timer.Restart(/*by_op=*/true);
  ASSERT_EQ(RunAll(*executor, timer), absl::OkStatus());
  ASSERT_EQ(timer.Read(2, &times_, &ops_), absl::OkStatus());
  ExpectSharded(times_, 2);
  const auto of = [&](OpKind kind, Phase phase) {
    for (const OpKindTime& time : ops_) {
      if (time.kind == kind && time.phase == phase) return time;
    }
    return OpKindTime{};
  };
  const OpKindTime linear = of(OpKind::kLinear, Phase::kForward);
  EXPECT_EQ(linear.runs, 4);
  EXPECT_NEAR(linear.seconds, 2 * (2 + 3), kNear);
  EXPECT_NEAR(linear.flops, 40, kNear);
  EXPECT_NEAR(of(OpKind::kLinear, Phase::kRecompute).seconds, 8, kNear);
  EXPECT_NEAR(of(OpKind::kOptimizer, Phase::kUpdate).seconds, 16, kNear);
  EXPECT_NEAR(of(OpKind::kReduceGradients, Phase::kBackward).seconds, 14, kNear);
}

// A step of one rank: four stamps, however many ops.
TEST_P(PieceTimerTest, OneStreamHasFewStamps) {
  for (const auto& [phase, when] : {std::pair(Phase::kForward, When::kEveryMicroStep),
                                    std::pair(Phase::kBackward, When::kEveryMicroStep),
                                    std::pair(Phase::kUpdate, When::kUpdate)}) {
    for (int i = 0; i < 5; ++i) Add(1, OpKind::kLinear, phase, Stream::kCompute, {}, when);
  }
  const auto executor = Executor();
  PieceTimer timer(&device_, &plan_.train);
  timer.Restart(/*by_op=*/false);
  ASSERT_EQ(RunAll(*executor, timer), absl::OkStatus());
  ASSERT_EQ(timer.Read(1, &times_, &ops_), absl::OkStatus());
  EXPECT_NEAR(times_.forward, 5, kNear);
  EXPECT_NEAR(times_.backward, 5, kNear);
  EXPECT_NEAR(times_.update, 5, kNear);
  EXPECT_NEAR(times_.exposed + times_.communication, 0, kNear);
  EXPECT_EQ(*device_.AddTimer(), 4);
}

TEST_P(PieceTimerTest, WhatNobodyHasWaitedForIsNotRead) {
  AddSharded();
  const auto executor = Executor();
  PieceTimer timer(&device_, &plan_.train);
  timer.Restart(/*by_op=*/false);
  ASSERT_EQ(executor->Run(Section::kMicroStep, {}, &timer), absl::OkStatus());
  ASSERT_EQ(executor->Run(Section::kReduce, {}, &timer), absl::OkStatus());
  const absl::Status status = timer.Read(1, &times_, &ops_);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("nobody has waited"));
}

INSTANTIATE_TEST_SUITE_P(Orders, PieceTimerTest, testing::Values(1, 2, 3));

}  // namespace
}  // namespace milepost::runtime
