// State out of N ranks and into M: the trajectory goes on as if nothing had happened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <vector>

#include "absl/strings/match.h"
#include "engine/runtime/session/parameter_store.h"
#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_job.h"
#include "engine/state/layout.h"

namespace milepost::runtime {
namespace {

using ::testing::HasSubstr;

Snapshot TrainAndSave(const v1::JobSpec& spec, int64_t steps) {
  Snapshot snapshot;
  std::mutex mutex;
  RunRanks(spec, [&](int, TrainingSession& session) {
    ASSERT_TRUE(session.InitializeParameters().ok());
    while (session.step() < steps) ASSERT_TRUE(session.Step(false).ok());
    Save(session, snapshot, mutex);
  });
  return snapshot;
}

Snapshot RestoreTrainAndSave(const v1::JobSpec& spec, const Snapshot& from, int64_t steps) {
  Snapshot snapshot;
  std::mutex mutex;
  RunRanks(spec, [&](int, TrainingSession& session) {
    ASSERT_EQ(Restore(session, from), absl::OkStatus());
    while (session.step() < steps) ASSERT_TRUE(session.Step(false).ok());
    Save(session, snapshot, mutex);
  });
  return snapshot;
}

std::vector<double> RestoreAndTrain(const v1::JobSpec& spec, const Snapshot& snapshot) {
  std::vector<double> losses;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    ASSERT_EQ(Restore(session, snapshot), absl::OkStatus());
    while (session.step() < spec.train().steps()) {
      auto report = session.Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      if (rank == 0) losses.push_back(report->train_loss);
    }
  });
  return losses;
}

TEST(Resume, HybridRanksShareTheSaving) {
  TinyJob job;
  for (int group : {2, 3}) {
    TinyOptions options{.ranks = 6, .stage = 3, .group = group};
    options.micro_batch = 1;
    const Snapshot snapshot = TrainAndSave(job.Spec(options), 0);
    auto layout = state::StateLayout::FromProto(snapshot.tensors);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(CheckCoverage(*layout, snapshot.covered), absl::OkStatus());
    for (int64_t bytes : snapshot.rank_bytes) EXPECT_LT(bytes, layout->bytes() * 1.2 / 6 + 4);
  }
}

TEST(Resume, EverySavedElementIsSavedOnce) {
  TinyJob job;
  for (int ranks : {1, 2, 3}) {
    for (int stage : {0, 1, 3}) {
      const Snapshot snapshot = TrainAndSave(job.Spec({.ranks = ranks, .stage = stage}), 0);
      auto layout = state::StateLayout::FromProto(snapshot.tensors);
      ASSERT_TRUE(layout.ok()) << layout.status();
      EXPECT_EQ(CheckCoverage(*layout, snapshot.covered), absl::OkStatus());
      for (int64_t bytes : snapshot.rank_bytes) {  // the work is shared, at stage 0 too
        EXPECT_LT(bytes, layout->bytes() * 1.2 / ranks + 4);
      }
      EXPECT_EQ(snapshot.tensors[1].kind(), "m");
      EXPECT_EQ(snapshot.tensors[0].name(), "transformer.wte.weight");
    }
  }
}

// As after a recovery from memory, which does again what was due after the step.
TEST(Resume, AValidationOfTheSameStepCountsOnce) {
  TinyJob job;
  RunRanks(job.Spec({.steps = 3}), [&](int, TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    ASSERT_TRUE(session.Step(false).ok());
    const auto evaluation = session.Evaluate();
    ASSERT_TRUE(evaluation.ok()) << evaluation.status();
    EXPECT_EQ(session.trainer_state().best_validation_loss(), evaluation->loss);
    ASSERT_TRUE(session.Evaluate().ok());
    EXPECT_EQ(session.trainer_state().validations_since_best(), 0);
    session.ForgetBest();
    EXPECT_FALSE(session.trainer_state().has_best_validation_loss());
  });
}

// In fp32 and on its own in bf16; at other numbers of ranks too.
TEST(Resume, WhatAdaptersAdaptStaysAsItIs) {
  TinyJob job;
  for (const v1::Precision precision :
       {v1::PRECISION_FP32, v1::PRECISION_BF16, v1::PRECISION_FP16}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const int ranks : {1, 2, 3}) {
        const bool nf4 = ranks == 2;
        const v1::JobSpec spec = job.Spec({.ranks = ranks,
                                           .stage = stage,
                                           .precision = precision,
                                           .steps = 3,
                                           .llama = true,
                                           .lora = 2,
                                           .nf4 = nf4,
                                           .dora = ranks == 3});
        RunRanks(spec, [&](int, TrainingSession& session) {
          ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
          const auto bytes = [&] {
            std::string all;
            for (const StateInterval& i : session.BaseTargets(0)) {
              const std::string& dtype = session.base_tensors()[i.tensor].dtype();
              const int64_t item = dtype == kPackedDType ? 1 : dtype == "F32" ? 4 : 2;
              all.append(i.data, static_cast<size_t>((i.end - i.begin) * item));
            }
            return all;
          };
          const std::string before = bytes();
          EXPECT_FALSE(before.empty());
          for (const v1::TensorInfo& tensor : session.base_tensors()) {
            const bool packed = nf4 && absl::StrContains(tensor.name(), "_proj.");
            EXPECT_EQ(tensor.dtype(), packed                            ? kPackedDType
                                      : precision == v1::PRECISION_BF16 ? "BF16"
                                                                        : "F32");
            EXPECT_EQ(tensor.kind(), "master");
          }
          while (session.step() < 3) ASSERT_TRUE(session.Step(false).ok());
          EXPECT_TRUE(bytes() == before);
        });
      }
    }
  }
}

// Bits where the layout is the same, 1e-5 (fp32) where it is another.
TEST(Resume, GoesOnAsIfItHadNeverStopped) {
  TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    for (int from : {1, 2}) {
      TinyOptions options{.ranks = from, .stage = 1, .precision = precision, .dropout = 0.1};
      options.steps = 8;
      const v1::JobSpec spec = job.Spec(options);
      std::vector<double> uninterrupted = TrainFresh(spec);
      uninterrupted.erase(uninterrupted.begin(), uninterrupted.begin() + 4);
      const Snapshot snapshot = TrainAndSave(spec, 4);
      EXPECT_EQ(snapshot.state.samples_consumed(), 48);
      EXPECT_EQ(RestoreAndTrain(spec, snapshot), uninterrupted);
      for (int to : {1, 2, 3}) {
        options.ranks = to;
        options.stage = to == 3 ? 0 : 1;
        const std::vector<double> losses = RestoreAndTrain(job.Spec(options), snapshot);
        ASSERT_EQ(losses.size(), uninterrupted.size());
        for (size_t i = 0; i < losses.size(); ++i) {
          EXPECT_NEAR(losses[i] / uninterrupted[i], 1,
                      precision == v1::PRECISION_FP32 ? 1e-5 : 2e-3)
              << from << " ranks to " << to << ", step " << i;
        }
      }
    }
  }
}

TEST(Resume, ExpertsGoOn) {
  TinyJob job;
  TinyOptions options{.ranks = 2, .stage = 2, .steps = 8, .llama = true, .experts = 5};
  std::vector<double> uninterrupted = TrainFresh(job.Spec(options));
  uninterrupted.erase(uninterrupted.begin(), uninterrupted.begin() + 4);
  const Snapshot snapshot = TrainAndSave(job.Spec(options), 4);
  EXPECT_EQ(RestoreAndTrain(job.Spec(options), snapshot), uninterrupted);
  for (const int to : {1, 3}) {
    options.ranks = to;
    options.stage = to;
    const std::vector<double> losses = RestoreAndTrain(job.Spec(options), snapshot);
    EXPECT_LT(LargestRelativeDifference(losses, uninterrupted), 1e-5) << to;
  }
}

// A run that moves from stage to stage and back, with other ranks each time.
TEST(Resume, AcrossStages) {
  struct Layout {
    int ranks;
    int stage;
    int group;
  };
  TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    TinyOptions options{.ranks = 4, .stage = 3, .precision = precision, .dropout = 0.1};
    options.micro_batch = 1;
    options.steps = 8;
    const std::vector<double> uninterrupted = TrainFresh(job.Spec(options));
    const Snapshot wide = TrainAndSave(job.Spec(options), 2);
    for (const Layout& layout : {Layout{4, 3, 0}, Layout{3, 1, 0}, Layout{1, 0, 0}, Layout{2, 2, 0},
                                 Layout{4, 3, 2}, Layout{2, 3, 1}}) {
      options.ranks = layout.ranks;
      options.stage = layout.stage;
      options.group = layout.group;
      const Snapshot narrow = RestoreTrainAndSave(job.Spec(options), wide, 5);
      EXPECT_EQ(narrow.state.samples_consumed(), 60);
      options.ranks = 4;
      options.stage = 3;
      options.group = 0;
      const std::vector<double> losses = RestoreAndTrain(job.Spec(options), narrow);
      ASSERT_EQ(losses.size(), 3u);
      for (size_t i = 0; i < losses.size(); ++i) {
        const double expected = uninterrupted[5 + i];
        if (layout.ranks == 4 && layout.group == 0) {
          EXPECT_EQ(losses[i], expected);
        }
        EXPECT_NEAR(losses[i] / expected, 1, precision == v1::PRECISION_FP32 ? 1e-5 : 2e-3)
            << "by " << layout.ranks << " ranks at stage " << layout.stage << ", step " << 5 + i;
      }
    }
  }
}

TEST(Resume, InitialValuesDoNotDependOnTheLayout) {
  TinyJob job;
  const Snapshot one = TrainAndSave(job.Spec({.ranks = 1, .stage = 0}), 0);
  for (int stage : {1, 2, 3}) {
    EXPECT_EQ(TrainAndSave(job.Spec({.ranks = 3, .stage = stage}), 0).data, one.data);
  }
  double squares = 0;
  for (size_t i = 0; i < one.data[0].size(); ++i) squares += one.data[0][i] * one.data[0][i];
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(one.data[0].size())), 0.02, 0.002);
}

TEST(Resume, RefusesAnotherModelOrSeed) {
  TinyJob job;
  const Snapshot snapshot = TrainAndSave(job.Spec({}), 1);
  RunRanks(job.Spec({.seed = 8}), [&](int, TrainingSession& session) {
    const absl::Status status = session.FinishRestore(snapshot.state);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("train.seed is 7"));
  });
  RunRanks(job.Spec({.layers = 1}), [&](int, TrainingSession& session) {
    const absl::Status status = session.FinishRestore(snapshot.state);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("another model"));
  });
  RunRanks(job.Spec({}), [&](int, TrainingSession& session) {
    EXPECT_EQ(session.Step(false).status().code(), absl::StatusCode::kFailedPrecondition);
  });
}

}  // namespace
}  // namespace milepost::runtime
