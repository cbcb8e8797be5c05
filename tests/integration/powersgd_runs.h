// For tests: jobs whose gradients travel as factors, and whole runs of them.
#ifndef MILEPOST_TESTS_INTEGRATION_POWERSGD_RUNS_H_
#define MILEPOST_TESTS_INTEGRATION_POWERSGD_RUNS_H_

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <mutex>

#include "common/spec/validate.h"
#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {

struct PowerSgdCase {
  int ranks = 2;
  int rank = 4;
  int64_t start = 2;
  bool warm = true;
  v1::Precision precision = v1::PRECISION_FP32;
  v1::OptimizerSpec::Type optimizer = v1::OptimizerSpec::TYPE_ADAMW;
  int64_t micro = 1;
};

inline v1::JobSpec PowerSgdSpecOf(const TinyJob& job, const PowerSgdCase& c) {
  TinyOptions options{.ranks = c.ranks, .stage = 0, .precision = c.precision};
  options.micro_batch = c.micro;
  v1::JobSpec spec = job.Spec(options);
  v1::OptimizerSpec* optimizer = spec.mutable_train()->mutable_optimizer();
  const double lr = optimizer->lr();
  optimizer->Clear();
  optimizer->set_type(c.optimizer);
  optimizer->set_lr(lr);
  v1::PowerSgdSpec* powersgd = spec.mutable_train()->mutable_powersgd();
  powersgd->set_rank(c.rank);
  powersgd->set_start_step(c.start);
  powersgd->set_warm_start(c.warm);
  NormalizeJobSpec(&spec);
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  return spec;
}

inline const PowerSgdCase kPowerSgdCases[] = {
    {.ranks = 1},
    {},
    {.ranks = 4, .rank = 1, .start = 0},
    {.ranks = 3, .warm = false},
    {.precision = v1::PRECISION_BF16, .micro = 6},
    {.rank = 2, .optimizer = v1::OptimizerSpec::TYPE_MUON},
    {.optimizer = v1::OptimizerSpec::TYPE_LAMB},
    {.warm = false, .optimizer = v1::OptimizerSpec::TYPE_ADAMW_8BIT},
};

inline SessionOptions OnDefault(int) { return {}; }

// After so many steps; where `save_at` is given all save after that one too.
inline Snapshot TrainAndKeep(const v1::JobSpec& spec, int64_t steps, int64_t save_at = -1,
                             const OptionsOfRank& options = OnDefault) {
  Snapshot end, between;
  std::mutex mutex;
  RunRanks(
      spec,
      [&](int, TrainingSession& session) {
        ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
        while (session.step() < steps) {
          ASSERT_TRUE(session.Step(false).ok());
          if (session.step() == save_at) Save(session, between, mutex);
        }
        Save(session, end, mutex);
      },
      options);
  return end;
}

inline Snapshot RestoreAndKeep(const v1::JobSpec& spec, const Snapshot& from, int64_t steps,
                               const OptionsOfRank& options = OnDefault) {
  Snapshot end;
  std::mutex mutex;
  RunRanks(
      spec,
      [&](int, TrainingSession& session) {
        ASSERT_EQ(Restore(session, from), absl::OkStatus());
        while (session.step() < steps) ASSERT_TRUE(session.Step(false).ok());
        Save(session, end, mutex);
      },
      options);
  return end;
}

// A parameter is no number, so the step after this is skipped.
inline Snapshot Spoiled(Snapshot state) {
  EXPECT_EQ(state.tensors[0].kind(), "master");
  const float none = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(state.data[0].at(3), &none, sizeof(none));
  return state;
}

}  // namespace milepost::runtime

#endif  // MILEPOST_TESTS_INTEGRATION_POWERSGD_RUNS_H_
