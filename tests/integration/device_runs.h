// Whole training runs, on a device and on the CPU, and how alike they have to be.
//
//   ExpectSame(Train(spec, OnDevice(/*seed=*/1)), Train(spec, OnCpu), kFp32Bar);
#ifndef MILEPOST_TESTS_INTEGRATION_DEVICE_RUNS_H_
#define MILEPOST_TESTS_INTEGRATION_DEVICE_RUNS_H_

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {

// The curves of both may differ by the order of sums alone.
inline constexpr double kFp32Bar = 1e-5;
inline constexpr double kBf16Bar = 2e-3;

struct Trained {
  std::vector<StepReport> reports;
  EvaluationReport evaluation;
  Snapshot state;
};

inline Trained Train(const v1::JobSpec& spec, int64_t steps, const OptionsOfRank& options,
                     const Snapshot* from = nullptr) {
  Trained run;
  std::mutex mutex;
  RunRanks(
      spec,
      [&](int rank, TrainingSession& session) {
        ASSERT_EQ(from == nullptr ? session.InitializeParameters() : Restore(session, *from),
                  absl::OkStatus());
        while (session.step() < steps) {
          auto report = session.Step(false);
          ASSERT_TRUE(report.ok()) << report.status();
          if (rank == 0) run.reports.push_back(*report);
        }
        auto evaluation = session.Evaluate();
        ASSERT_TRUE(evaluation.ok()) << evaluation.status();
        if (rank == 0) run.evaluation = *evaluation;
        Save(session, run.state, mutex);
      },
      options);
  return run;
}

inline SessionOptions OnCpu(int) { return {}; }

inline Trained Train(const v1::JobSpec& spec, const OptionsOfRank& options) {
  return Train(spec, spec.train().steps(), options);
}

inline void ExpectClose(double got, double want, double bar, const std::string& what) {
  if (!std::isfinite(want)) {  // of a step that overflows
    EXPECT_FALSE(std::isfinite(got)) << what;
    return;
  }
  EXPECT_LE(std::abs(got - want), bar * std::abs(want)) << what << ": " << got << ", " << want;
}

// `exact`: of the same run in fp32, where rounding alone moves a norm by more than the bar: then
// the device's must be as near to it as the CPU's, within a factor of two.
inline void ExpectNorm(double got, double want, const double* exact, double bar,
                       const std::string& what) {
  if (exact != nullptr && std::abs(got - *exact) <= 2 * std::abs(want - *exact)) return;
  ExpectClose(got, want, bar, what);
}

inline void ExpectSame(const Trained& device, const Trained& cpu, double bar,
                       const Trained* exact = nullptr) {
  ASSERT_FALSE(cpu.reports.empty());
  ASSERT_EQ(device.reports.size(), cpu.reports.size());
  for (size_t i = 0; i < cpu.reports.size(); ++i) {
    const StepReport& got = device.reports[i];
    const StepReport& want = cpu.reports[i];
    const std::string step = absl::StrCat("step ", i + 1);
    ExpectClose(got.train_loss, want.train_loss, bar, step);
    ExpectNorm(got.grad_norm, want.grad_norm,
               exact == nullptr ? nullptr : &exact->reports[i].grad_norm, 20 * bar,
               step + ", norm");
    EXPECT_EQ(got.skipped, want.skipped) << step;
    EXPECT_EQ(got.loss_scale, want.loss_scale) << step;
    EXPECT_EQ(got.lr, want.lr) << step;
  }
  ExpectClose(device.evaluation.loss, cpu.evaluation.loss, bar, "validation");
  EXPECT_EQ(device.evaluation.heads[0].targets, cpu.evaluation.heads[0].targets);
}

}  // namespace milepost::runtime

#endif  // MILEPOST_TESTS_INTEGRATION_DEVICE_RUNS_H_
