// Gradients that travel as factors on a device (device_training_test.cc says which), against the
// same runs on the CPU.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_job.h"
#include "tests/integration/device_runs.h"
#include "tests/integration/on_device.h"
#include "tests/integration/powersgd_runs.h"

namespace milepost::runtime {
namespace {

OptionsOfRank FactorDevices(const v1::JobSpec& spec, uint64_t seed = 1, bool capture = true) {
  return OnDevice(seed, capture, spec.resources().ranks());
}

TEST(DevicePowerSgd, TrainsAsOnTheCpu) {
  const TinyJob job;
  for (const PowerSgdCase& c : kPowerSgdCases) {
    SCOPED_TRACE(testing::Message() << c.ranks << " ranks, factors of " << c.rank);
    const v1::JobSpec spec = PowerSgdSpecOf(job, c);
    const Trained cpu = Train(spec, 6, OnCpu);
    const Trained device = Train(spec, 6, FactorDevices(spec));
    ExpectSame(device, cpu, c.precision == v1::PRECISION_FP32 ? kFp32Bar : kBf16Bar);
    const double error = LengthOf(cpu.state, "error");
    EXPECT_GT(error, 0);
    EXPECT_NEAR(LengthOf(device.state, "error"), error, 1e-2 * error);
  }
}

// Steps before the start and those from it on are captured apart.
TEST(DevicePowerSgd, CapturedStepsBeginToCompressWhenOthersDo) {
  const TinyJob job;
  const v1::JobSpec spec = PowerSgdSpecOf(job, {.start = 4});
  const Snapshot captured = TrainAndKeep(spec, 9, -1, FactorDevices(spec));
  EXPECT_GT(LengthOf(captured, "error"), 0);
  ExpectSameState(captured, TrainAndKeep(spec, 9, -1, FactorDevices(spec, 77, /*capture=*/false)));
  EXPECT_EQ(LengthOf(TrainAndKeep(spec, 4, -1, FactorDevices(spec)), "error"), 0);
}

TEST(DevicePowerSgd, GoesOnFromACheckpointToTheBit) {
  const TinyJob job;
  for (const PowerSgdCase& c :
       {PowerSgdCase{}, PowerSgdCase{.ranks = 3, .rank = 1, .warm = false}}) {
    SCOPED_TRACE(testing::Message() << c.ranks << " ranks, factors of " << c.rank);
    const v1::JobSpec spec = PowerSgdSpecOf(job, c);
    for (const int64_t at : {1, 4}) {  // before the start and after it
      const Snapshot undisturbed = TrainAndKeep(spec, 7, /*save_at=*/at, FactorDevices(spec));
      const Snapshot saved = TrainAndKeep(spec, at, -1, FactorDevices(spec));
      EXPECT_EQ(LengthOf(saved, "error") > 0, at > c.start);
      ExpectSameState(RestoreAndKeep(spec, saved, 7, FactorDevices(spec)), undisturbed);
    }
  }
}

// What a rank has left out is the mean of all from then on, on the device too.
TEST(DevicePowerSgd, SavingTwiceIsSavingOnce) {
  const TinyJob job;
  const v1::JobSpec spec = PowerSgdSpecOf(job, {.ranks = 3});
  Snapshot first, second;
  std::mutex mutex;
  RunRanks(
      spec,
      [&](int, TrainingSession& session) {
        ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
        while (session.step() < 4) ASSERT_TRUE(session.Step(false).ok());
        Save(session, first, mutex);
        Save(session, second, mutex);
      },
      FactorDevices(spec));
  EXPECT_GT(LengthOf(first, "error"), 0);
  ExpectSameState(second, first);
}

TEST(DevicePowerSgd, CheckpointsGoOnElsewhere) {
  const TinyJob job;
  const v1::JobSpec spec = PowerSgdSpecOf(job, {});
  const Snapshot on_cpu = TrainAndKeep(spec, 5);
  const Snapshot on_device = TrainAndKeep(spec, 5, -1, FactorDevices(spec));
  ExpectSameState(RestoreAndKeep(spec, on_cpu, 5, FactorDevices(spec)), on_cpu);
  ExpectSameState(RestoreAndKeep(spec, on_device, 5), on_device);
  const double want = RestoreAndKeep(spec, on_cpu, 8).state.train_loss();
  ExpectClose(RestoreAndKeep(spec, on_cpu, 8, FactorDevices(spec)).state.train_loss(), want,
              kFp32Bar, "from the CPU's");
  ExpectClose(RestoreAndKeep(spec, on_device, 8).state.train_loss(), want, kFp32Bar,
              "from the device's");
  const v1::JobSpec three = PowerSgdSpecOf(job, {.ranks = 3});
  ExpectClose(RestoreAndKeep(three, on_device, 8, FactorDevices(three)).state.train_loss(), want,
              kFp32Bar, "at three ranks");
}

TEST(DevicePowerSgd, ASkippedStepForgetsTheErrors) {
  const TinyJob job;
  for (const bool warm : {true, false}) {
    const v1::JobSpec spec = PowerSgdSpecOf(job, {.warm = warm});
    const Snapshot good = TrainAndKeep(spec, 4, -1, FactorDevices(spec));
    EXPECT_GT(LengthOf(good, "error"), 0);
    const Snapshot skipped = RestoreAndKeep(spec, Spoiled(good), 5, FactorDevices(spec));
    EXPECT_EQ(skipped.state.skipped_steps(), 1);
    EXPECT_EQ(LengthOf(skipped, "error"), 0);
    EXPECT_EQ(LengthOf(skipped, "factor"), 0);
  }
}

#if !defined(MILEPOST_ON_DEVICE)
TEST(DevicePowerSgd, MemoryIsAsPlanned) {
  const TinyJob job;
  for (const PowerSgdCase& c : kPowerSgdCases) ExpectPlannedMemory(PowerSgdSpecOf(job, c));
}
#endif

}  // namespace
}  // namespace milepost::runtime
