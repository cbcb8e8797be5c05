#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/optim/batch.h"
#include "engine/optim/optimizer.h"
#include "engine/optim/schedule.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::optim {
namespace {

using ::testing::HasSubstr;

TEST(ScheduleTest, WarmsUpFromTheFirstStepToThePeak) {
  const Schedule s = {Schedule::Type::kCosine, 8e-4, 4, 100, 0.1};
  EXPECT_DOUBLE_EQ(s.LrAt(0), 2e-4);
  EXPECT_DOUBLE_EQ(s.LrAt(1), 4e-4);
  EXPECT_DOUBLE_EQ(s.LrAt(2), 6e-4);
  EXPECT_EQ(s.LrAt(3), 8e-4);
  EXPECT_LT(s.LrAt(4), 8e-4);
}

TEST(ScheduleTest, EndsAtExactlyTheFinalRatio) {
  for (const auto type : {Schedule::Type::kLinear, Schedule::Type::kCosine}) {
    for (const int64_t warmup : {0, 1, 10}) {
      const Schedule s = {type, 1e-3, warmup, 101, 0.1};
      EXPECT_EQ(s.LrAt(std::max<int64_t>(warmup - 1, 0)), 1e-3);
      EXPECT_EQ(s.LrAt(100), 1e-3 * 0.1);
      EXPECT_EQ(s.LrAt(5000), s.LrAt(100));
      for (int64_t step = warmup + 1; step <= 100; ++step) {
        EXPECT_LT(s.LrAt(step), s.LrAt(step - 1)) << step;
      }
    }
  }
}

TEST(ScheduleTest, Shapes) {
  const Schedule cosine = {Schedule::Type::kCosine, 1.0, 0, 101, 0.2};
  EXPECT_DOUBLE_EQ(cosine.LrAt(50), 0.2 + 0.8 * 0.5);
  EXPECT_DOUBLE_EQ(cosine.LrAt(25), 0.2 + 0.8 * (1 + std::sqrt(0.5)) / 2);
  const Schedule linear = {Schedule::Type::kLinear, 1.0, 0, 101, 0.2};
  EXPECT_DOUBLE_EQ(linear.LrAt(25), 0.8);
  const Schedule constant = {Schedule::Type::kConstant, 1.0, 10, 101, 0.2};
  EXPECT_DOUBLE_EQ(constant.LrAt(4), 0.5);
  EXPECT_EQ(constant.LrAt(10), 1.0);
  EXPECT_EQ(constant.LrAt(100), 1.0);
}

// peak * sqrt(warmup / step), steps counted from 1 ("Attention is all you need", without its
// scale).
TEST(ScheduleTest, InverseSquareRoot) {
  const Schedule s = {Schedule::Type::kInverseSqrt, 2e-3, 100, 100000, 0};
  EXPECT_DOUBLE_EQ(s.LrAt(49), 1e-3);
  EXPECT_DOUBLE_EQ(s.LrAt(99), 2e-3);
  EXPECT_DOUBLE_EQ(s.LrAt(399), 1e-3);
  EXPECT_DOUBLE_EQ(s.LrAt(9999), 2e-4);
  for (int64_t step = 100; step < 2000; step += 7) {
    // As PyTorch's LambdaLR would be given it: min((k+1) w^-1.5, (k+1)^-0.5) normalised to the
    // peak.
    const double k = static_cast<double>(step + 1);
    const double noam = std::min(k * std::pow(100, -1.5), std::pow(k, -0.5)) * std::sqrt(100.0);
    EXPECT_NEAR(s.LrAt(step), 2e-3 * noam, 1e-16) << step;
  }
  const Schedule none = {Schedule::Type::kInverseSqrt, 1.0, 0, 100, 0};
  EXPECT_EQ(none.LrAt(0), 1.0);
  EXPECT_DOUBLE_EQ(none.LrAt(3), 0.5);
  const Schedule least = {Schedule::Type::kInverseSqrt, 1.0, 4, 100, 0.25};
  EXPECT_DOUBLE_EQ(least.LrAt(15), 0.5);
  EXPECT_DOUBLE_EQ(least.LrAt(90), 0.25);
}

TEST(ScheduleTest, WarmupStableDecay) {
  // 4 steps up, the peak up to the 6th, 4 steps down: written out by hand.
  const Schedule s = {Schedule::Type::kWarmupStableDecay, 8e-4, 4, 10, 0.5, 4};
  const double expected[] = {2e-4, 4e-4, 6e-4, 8e-4, 8e-4, 8e-4, 7e-4, 6e-4, 5e-4, 4e-4};
  for (int64_t step = 0; step < 10; ++step) EXPECT_NEAR(s.LrAt(step), expected[step], 1e-18);
  EXPECT_EQ(s.LrAt(12), 4e-4);
  // All decay: the linear schedule. None: constant after warm-up.
  const Schedule all = {Schedule::Type::kWarmupStableDecay, 1.0, 3, 50, 0.1, 47};
  const Schedule linear = {Schedule::Type::kLinear, 1.0, 3, 50, 0.1};
  const Schedule no_decay = {Schedule::Type::kWarmupStableDecay, 1.0, 3, 50, 0.1, 0};
  for (int64_t step = 0; step < 50; ++step) {
    EXPECT_EQ(all.LrAt(step), linear.LrAt(step)) << step;
    EXPECT_EQ(no_decay.LrAt(step), step < 2 ? (step + 1) / 3.0 : 1.0) << step;
  }
  const Schedule one = {Schedule::Type::kWarmupStableDecay, 1.0, 0, 1, 0.1, 0};
  EXPECT_EQ(one.LrAt(0), 1.0);
}

TEST(ScheduleTest, ShortRunsStayFinite) {
  EXPECT_EQ((Schedule{Schedule::Type::kCosine, 1.0, 0, 1, 0.1}.LrAt(0)), 1.0);
  EXPECT_EQ((Schedule{Schedule::Type::kCosine, 1.0, 3, 3, 0.1}.LrAt(2)), 1.0);
  EXPECT_DOUBLE_EQ((Schedule{Schedule::Type::kLinear, 1.0, 8, 4, 0.1}.LrAt(3)), 0.5);
  EXPECT_DOUBLE_EQ((Schedule{Schedule::Type::kLinear, 1.0, 1, 2, 0.1}.LrAt(1)), 0.1);
}

TEST(ScheduleTest, ComesFromTheSpec) {
  v1::TrainSpec spec;
  spec.set_steps(50);
  spec.mutable_optimizer()->set_lr(0.5);
  spec.mutable_schedule()->set_type(v1::ScheduleSpec::TYPE_LINEAR);
  spec.mutable_schedule()->set_warmup_steps(5);
  spec.mutable_schedule()->set_final_lr_ratio(0.25);
  const Schedule s = ScheduleFromSpec(spec);
  EXPECT_EQ(s.type, Schedule::Type::kLinear);
  spec.mutable_schedule()->set_decay_steps(7);
  spec.mutable_schedule()->set_type(v1::ScheduleSpec::TYPE_WARMUP_STABLE_DECAY);
  EXPECT_EQ(ScheduleFromSpec(spec).type, Schedule::Type::kWarmupStableDecay);
  EXPECT_EQ(ScheduleFromSpec(spec).decay_steps, 7);
  spec.mutable_schedule()->set_type(v1::ScheduleSpec::TYPE_INVERSE_SQRT);
  EXPECT_EQ(ScheduleFromSpec(spec).type, Schedule::Type::kInverseSqrt);
  EXPECT_EQ(s.LrAt(4), 0.5);
  EXPECT_EQ(s.LrAt(49), 0.125);
}

TEST(BatchTest, AnyTwoDeriveTheThird) {
  const BatchTriple expected = {64, 8, 4};
  EXPECT_EQ(*DeriveBatch({.global = 64, .micro = 8}, 2), expected);
  EXPECT_EQ(*DeriveBatch({.global = 64, .accumulation = 4}, 2), expected);
  EXPECT_EQ(*DeriveBatch({.micro = 8, .accumulation = 4}, 2), expected);
  EXPECT_EQ(*DeriveBatch({.global = 64, .micro = 8, .accumulation = 4}, 2), expected);
}

TEST(BatchTest, OneAloneIsCompleted) {
  EXPECT_EQ(*DeriveBatch({.micro = 8}, 2), (BatchTriple{16, 8, 1}));
  EXPECT_EQ(*DeriveBatch({.accumulation = 3}, 2), (BatchTriple{6, 1, 3}));
  EXPECT_EQ(*DeriveBatch({.global = 12}, 3), (BatchTriple{12, 4, 1}));
}

TEST(BatchTest, ContradictionsNameTheNearestValidValues) {
  struct Case {
    BatchRequest request;
    int64_t ranks;
    const char* message;
  };
  const Case cases[] = {
      {{}, 2, "give two of"},
      {{.global = 60, .micro = 8},
       2,
       "60 is not a multiple of micro 8 x 2 ranks = 16; use train.batch.global: 48 or 64, or "
       "train.batch.micro: 6 or 10"},
      {{.global = 7, .micro = 8}, 1, "use train.batch.global: 8, or train.batch.micro: 7"},
      {{.global = 9, .accumulation = 2},
       2,
       "9 is not a multiple of accumulation 2 x 2 ranks = 4; use train.batch.global: 8 or 12"},
      {{.global = 63, .micro = 8, .accumulation = 4},
       2,
       "global 63 is not micro 8 x accumulation 4 x 2 ranks = 64"},
      {{.global = 5}, 1, ""},
      {{.micro = 0, .accumulation = 4}, 2, "train.batch.micro: 0; expected 1 to"},
      {{.global = -4, .accumulation = 4}, 2, "train.batch.global: -4"},
      {{.micro = 1 << 20, .accumulation = 1 << 20}, 2, "at most 1048576"},
  };
  for (const Case& c : cases) {
    const auto result = DeriveBatch(c.request, c.ranks);
    if (*c.message == '\0') {
      EXPECT_TRUE(result.ok());
      continue;
    }
    EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << c.message;
    EXPECT_THAT(result.status().message(), HasSubstr(c.message));
  }
}

// What an error suggests must work.
TEST(BatchTest, ResultsAlwaysMultiplyOut) {
  for (int64_t global = 1; global <= 40; ++global) {
    for (int64_t micro = 1; micro <= 9; ++micro) {
      for (int64_t ranks = 1; ranks <= 4; ++ranks) {
        const auto result = DeriveBatch({.global = global, .micro = micro}, ranks);
        EXPECT_EQ(result.ok(), global % (micro * ranks) == 0);
        if (!result.ok()) continue;
        EXPECT_EQ(result->micro * result->accumulation * ranks, global);
        EXPECT_EQ(result->micro, micro);
      }
    }
  }
}

TEST(ClipTest, ScalesDownOnly) {
  const ClipResult below = ClipByNorm(0.25, 1.0);
  EXPECT_EQ(below.norm, 0.5);
  EXPECT_EQ(below.scale, 1.0);
  EXPECT_EQ(below.clipped_norm, 0.5);
  const ClipResult above = ClipByNorm(100.0, 1.0);
  EXPECT_EQ(above.norm, 10.0);
  EXPECT_DOUBLE_EQ(above.scale, 1.0 / (10.0 + 1e-6));
  EXPECT_NEAR(above.clipped_norm, 1.0, 1e-6);
  EXPECT_EQ(ClipByNorm(100.0, 0).scale, 1.0) << "0 turns clipping off";
  EXPECT_EQ(ClipByNorm(0, 1.0).scale, 1.0);
}

TEST(ClipTest, NonFiniteNormsNeverScale) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {infinity, std::nan(""), -1.0}) {
    for (const double max_norm : {0.0, 1.0}) {
      const ClipResult result = ClipByNorm(bad, max_norm);
      EXPECT_FALSE(result.finite) << bad;
      EXPECT_EQ(result.scale, 1.0);
    }
  }
}

TEST(OptimizerHyperTest, ComesFromTheSpec) {
  v1::OptimizerSpec spec;
  spec.set_beta1(0.8);
  spec.set_beta2(0.7);
  spec.set_epsilon(1e-6);
  spec.set_weight_decay(0.3);
  spec.set_momentum(0.6);
  const OptimizerHyper hyper = HyperFromSpec(spec);
  EXPECT_EQ(hyper.beta1, 0.8);
  EXPECT_EQ(hyper.beta2, 0.7);
  EXPECT_EQ(hyper.epsilon, 1e-6);
  EXPECT_EQ(hyper.weight_decay, 0.3);
  EXPECT_EQ(hyper.momentum, 0.6);
}

}  // namespace
}  // namespace milepost::optim
