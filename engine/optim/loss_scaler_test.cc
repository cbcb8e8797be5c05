// The floor and what a checkpoint keeps; the trace itself is held against torch's in tests/golden.
#include "engine/optim/loss_scaler.h"

#include <gtest/gtest.h>

#include "milepost/v1/job_spec.pb.h"

namespace milepost::optim {
namespace {

TEST(LossScaler, StopsAtItsFloorAndGrowsFromThere) {
  LossScaler scaler({.initial = 4, .growth_interval = 2, .floor = 1.5});
  EXPECT_FALSE(scaler.at_floor());
  for (const double expected : {2.0, 1.5, 1.5}) {
    scaler.Update(true);
    EXPECT_EQ(scaler.scale(), expected);
    EXPECT_EQ(scaler.at_floor(), expected == 1.5);
  }
  scaler.Update(false);
  EXPECT_EQ(scaler.clean_steps(), 1);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 3);
  EXPECT_EQ(scaler.clean_steps(), 0);
}

TEST(LossScaler, IsRestored) {
  const LossScaleOptions options{.growth_interval = 3};
  LossScaler scaler(options);
  scaler.Update(true);
  scaler.Update(false);
  scaler.Update(false);
  LossScaler again(options);
  again.Restore(scaler.scale(), scaler.clean_steps());
  again.Update(false);
  scaler.Update(false);
  EXPECT_EQ(again.scale(), scaler.scale());
  EXPECT_EQ(again.scale(), 65536);
  again.Restore(0.25, 0);
  EXPECT_EQ(again.scale(), 1) << "raised to the floor";
}

TEST(LossScaler, OptionsComeFromTheSpec) {
  v1::LossScaleSpec spec;
  spec.set_initial(8);
  spec.set_growth(3);
  spec.set_backoff(0.25);
  spec.set_growth_interval(7);
  spec.set_floor(2);
  const LossScaleOptions options = LossScaleFromSpec(spec);
  EXPECT_EQ(options.initial, 8);
  EXPECT_EQ(options.growth, 3);
  EXPECT_EQ(options.backoff, 0.25);
  EXPECT_EQ(options.growth_interval, 7);
  EXPECT_EQ(options.floor, 2);
}

}  // namespace
}  // namespace milepost::optim
