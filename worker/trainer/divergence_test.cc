#include "worker/trainer/divergence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace milepost::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

runtime::StepReport Good(int64_t step) {
  runtime::StepReport report;
  report.step = step;
  report.train_loss = 2.5 * static_cast<double>(step);
  report.grad_norm = 100 * static_cast<double>(step);
  report.lr = 50;
  return report;
}

runtime::StepReport Skipped(int64_t step, double scale = 0, bool at_floor = false) {
  runtime::StepReport report = Good(step);
  report.train_loss = report.grad_norm = kNan;
  report.skipped = true;
  report.loss_scale = scale;
  report.loss_scale_at_floor = at_floor;
  return report;
}

TEST(DivergenceWatchTest, SoManySkippedStepsInOrderAreTheEnd) {
  DivergenceWatch watch(3);
  int64_t step = 0;
  for (int series = 0; series < 5; ++series) {  // others in between: it recovers
    EXPECT_TRUE(watch.Step(Good(++step)).ok());
    EXPECT_FALSE(watch.suspicious());
    EXPECT_TRUE(watch.Step(Skipped(++step)).ok());
    EXPECT_TRUE(watch.Step(Skipped(++step)).ok());
    EXPECT_TRUE(watch.suspicious());
  }
  const absl::Status end = watch.Step(Skipped(++step));
  EXPECT_EQ(end.code(), absl::StatusCode::kFailedPrecondition);
  // What the loss and the norm were, and what they became.
  EXPECT_THAT(
      end.message(),
      AllOf(HasSubstr("3 steps in order were skipped"), HasSubstr("step 16: loss nan"),
            HasSubstr("step 13: loss 32.5, norm 1300"), HasSubstr("learning rate 50"),
            HasSubstr("step 7:"), Not(HasSubstr("step 4:")), HasSubstr("train.optimizer.lr")));
}

TEST(DivergenceWatchTest, WhatTheLossScaleMayMendDoesNotCount) {
  DivergenceWatch watch(2);
  const auto overflow = [](int64_t step, double scale, bool at_floor) {
    runtime::StepReport report = Skipped(step, scale, at_floor);
    report.train_loss = 5;
    return report;
  };
  int64_t step = 0;
  double scale = 65536;
  for (; scale > 1; scale /= 2) {
    EXPECT_TRUE(watch.Step(overflow(++step, scale, scale == 2)).ok()) << scale;
    EXPECT_FALSE(watch.suspicious());
  }
  EXPECT_TRUE(watch.Step(overflow(++step, 1, true)).ok());
  EXPECT_THAT(watch.Step(overflow(++step, 1, true)).message(), HasSubstr("loss scale 1"));
}

// The loss is that of the forward, which knows no scale.
TEST(DivergenceWatchTest, ALossThatIsNoNumberIsNotTheScalesDoing) {
  DivergenceWatch watch(2);
  EXPECT_TRUE(watch.Step(Skipped(1, 65536)).ok());
  EXPECT_TRUE(watch.suspicious());
  EXPECT_FALSE(watch.Step(Skipped(2, 32768)).ok());
}

TEST(DivergenceWatchTest, ZeroIsAnyNumber) {
  DivergenceWatch watch(0);
  for (int step = 1; step < 1000; ++step) ASSERT_TRUE(watch.Step(Skipped(step)).ok());
}

TEST(CheckFinalLossTest, ALossThatIsNoNumberIsNoSuccess) {
  v1::TrainerState state;
  state.set_step(60);
  state.set_skipped_steps(7);
  state.set_train_loss(1.5);
  state.set_validation_loss(kNan);  // none was computed
  EXPECT_TRUE(CheckFinalLoss(state).ok());
  state.set_validation_step(50);
  EXPECT_TRUE(CheckFinalLoss(state).ok());
  state.set_validation_step(60);
  EXPECT_THAT(CheckFinalLoss(state).message(), HasSubstr("a validation loss of nan"));
  state.set_validation_loss(2);
  EXPECT_TRUE(CheckFinalLoss(state).ok());
  state.set_train_loss(std::numeric_limits<double>::infinity());
  EXPECT_THAT(CheckFinalLoss(state).message(),
              AllOf(HasSubstr("60, has a training loss of inf"), HasSubstr("7 steps of all")));
}

}  // namespace
}  // namespace milepost::worker
