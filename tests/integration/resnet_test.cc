// What training promises for models of images: for convolutional networks, whose batch statistics
// couple the samples of a micro-batch and, where they are synchronised, of all ranks; and for ViTs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "engine/runtime/testing/tiny_images.h"
#include "engine/runtime/testing/tiny_job.h"
#include "engine/state/layout.h"

namespace milepost::runtime {
namespace {

using State = std::map<std::string, std::string>;  // "name (kind)": bytes

// What the rank holds of its state.
State StateOf(TrainingSession& session, const std::string& kind) {
  State state;
  for (const StateInterval& i : session.RestoreTargets()) {
    const v1::TensorInfo& info = session.state_tensors()[i.tensor];
    if (info.kind() != kind) continue;
    const size_t element = info.dtype() == "I64" ? 8 : 4;
    state[info.name()] = std::string(i.data, static_cast<size_t>(i.end - i.begin) * element);
  }
  return state;
}

struct Result {
  std::vector<double> losses;
  std::vector<State> statistics;  // by rank, after the last step
  EvaluationReport evaluation;
};

Result Train(const v1::JobSpec& spec) {
  Result result;
  result.statistics.resize(spec.resources().ranks());
  std::mutex mutex;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    EXPECT_EQ(session.allocated_bytes(), session.plan().arena_bytes);
    while (session.step() < spec.train().steps()) {
      const auto report = session.Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      if (rank == 0) result.losses.push_back(report->train_loss);
    }
    const auto evaluation = session.Evaluate();
    ASSERT_TRUE(evaluation.ok()) << evaluation.status();
    std::lock_guard lock(mutex);
    if (rank == 0) result.evaluation = *evaluation;
    result.statistics[rank] = StateOf(session, state::kStatisticKind);
  });
  return result;
}

// The same rows in each micro-step, whoever computes them.
TinyImageOptions Split(TinyImageOptions options, int ranks) {
  options.ranks = ranks;
  options.micro_batch = 12 / ranks;
  return options;
}

TEST(ResNet, Learns) {
  TinyImages job;
  for (bool bottleneck : {true, false}) {
    const Result result = Train(job.Spec({.bottleneck = bottleneck}));
    ASSERT_EQ(result.losses.size(), 10u);
    EXPECT_NEAR(result.losses[0], std::log(TinyImages::kClasses), 0.8);
    EXPECT_LT(result.losses[9], result.losses[0] - 0.2);
    ASSERT_EQ(result.evaluation.heads.size(), 1u);
    EXPECT_EQ(result.evaluation.heads[0].targets, 11);
  }
}

TEST(ResNet, SynchronisedRanksAndStagesGiveTheSameLosses) {
  TinyImages job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    const bool fp32 = precision == v1::PRECISION_FP32;
    // In bf16 a value that rounds the other way moves the loss of so few images by 1e-4, and steps
    // multiply it: smaller ones.
    TinyImageOptions options{.stage = 0, .precision = precision, .lr = fp32 ? 3e-3 : 5e-4};
    const Result reference = Train(job.Spec(Split(options, 1)));
    for (int ranks : {2, 3, 4}) {
      for (int stage : {0, 1, 2, 3}) {
        if (!fp32 && ranks == 3) continue;
        options.stage = stage;
        options.group = ranks == 4 && stage == 3 ? 2 : 0;
        const Result result = Train(job.Spec(Split(options, ranks)));
        EXPECT_LT(LargestRelativeDifference(result.losses, reference.losses), fp32 ? 1e-5 : 2e-3)
            << ranks << " ranks, stage " << stage;
        EXPECT_NEAR(result.evaluation.loss, reference.evaluation.loss,
                    (fp32 ? 1e-4 : 2e-2) * reference.evaluation.loss);
        for (const State& statistics : result.statistics) {
          EXPECT_EQ(statistics, result.statistics[0]);
        }
      }
    }
  }
}

TEST(ResNet, RecomputationChangesOnlyMemory) {
  TinyImages job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    for (int stage : {0, 3}) {
      TinyImageOptions options{.stage = stage, .precision = precision};
      const Result kept = Train(job.Spec(Split(options, 2)));
      for (const v1::Recompute recompute : {v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_FULL}) {
        options.recompute = recompute;
        const Result again = Train(job.Spec(Split(options, 2)));
        EXPECT_EQ(again.losses, kept.losses) << "stage " << stage;
        EXPECT_EQ(again.statistics, kept.statistics) << "stage " << stage;
      }
    }
  }
}

// Each rank's rows by themselves; the running statistics are averaged, so that all ranks agree.
TEST(ResNet, LocalStatisticsAgreeAfterEachStep) {
  TinyImages job;
  TinyImageOptions options{.stage = 0, .sync = false};
  options.steps = 3;
  const Result stage0 = Train(job.Spec(Split(options, 3)));
  for (const State& statistics : stage0.statistics) EXPECT_EQ(statistics, stage0.statistics[0]);
  options.stage = 3;
  const Result stage3 = Train(job.Spec(Split(options, 3)));
  EXPECT_LT(LargestRelativeDifference(stage3.losses, stage0.losses), 1e-5);
  for (const State& statistics : stage3.statistics) EXPECT_EQ(statistics, stage3.statistics[0]);
  // Statistics of 4 images are not those of 12.
  options.sync = true;
  EXPECT_GT(LargestRelativeDifference(Train(job.Spec(Split(options, 3))).losses, stage0.losses),
            1e-4);
}

// Every micro-step moves the running statistics, as torch has it.
TEST(ResNet, CountsBatches) {
  TinyImages job;
  TinyImageOptions options;
  options.steps = 3;
  const Result result = Train(job.Spec(options));
  const std::string& bytes =
      result.statistics[0].at("resnet.embedder.embedder.normalization.num_batches_tracked");
  int64_t batches = 0;
  ASSERT_EQ(bytes.size(), sizeof(batches));
  std::memcpy(&batches, bytes.data(), sizeof(batches));
  EXPECT_EQ(batches, 3 * 2);
}

// Whole tensors, saved by some ranks and restored to others.
struct Saved {
  std::map<int32_t, std::string> tensors;
  v1::TrainerState state;
};

Saved TrainAndSave(const v1::JobSpec& spec, int64_t steps) {
  Saved saved;
  std::mutex mutex;
  RunRanks(spec, [&](int, TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    while (session.step() < steps) ASSERT_TRUE(session.Step(false).ok());
    std::lock_guard lock(mutex);
    saved.state = session.trainer_state();
    for (const StateInterval& i : session.SaveSources()) {
      const int64_t element = session.state_tensors()[i.tensor].dtype() == "I64" ? 8 : 4;
      std::string& bytes = saved.tensors[i.tensor];
      bytes.resize(std::max<size_t>(bytes.size(), i.end * element));
      std::memcpy(bytes.data() + i.begin * element, i.data, (i.end - i.begin) * element);
    }
  });
  return saved;
}

std::vector<double> RestoreAndTrain(const v1::JobSpec& spec, const Saved& saved) {
  std::vector<double> losses;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    for (const StateInterval& i : session.RestoreTargets()) {
      const int64_t element = session.state_tensors()[i.tensor].dtype() == "I64" ? 8 : 4;
      std::memcpy(i.data, saved.tensors.at(i.tensor).data() + i.begin * element,
                  (i.end - i.begin) * element);
    }
    ASSERT_EQ(session.FinishRestore(saved.state), absl::OkStatus());
    while (session.step() < spec.train().steps()) {
      ASSERT_TRUE(session.Step(false).ok());
    }
    const auto evaluation = session.Evaluate();  // which uses the running statistics
    ASSERT_TRUE(evaluation.ok()) << evaluation.status();
    if (rank == 0) losses = {session.trainer_state().train_loss(), evaluation->loss};
  });
  return losses;
}

void ExpectToGoOnAtAnyLayout(TinyImageOptions options) {
  TinyImages job;
  options.stage = 3;
  options.steps = 6;
  const Result whole = Train(job.Spec(Split(options, 4)));
  const std::vector<double> expected = {whole.losses.back(), whole.evaluation.loss};
  const Saved saved = TrainAndSave(job.Spec(Split(options, 4)), 3);
  EXPECT_EQ(RestoreAndTrain(job.Spec(Split(options, 4)), saved), expected);
  options.stage = 1;
  EXPECT_LT(
      LargestRelativeDifference(RestoreAndTrain(job.Spec(Split(options, 3)), saved), expected),
      1e-5);
  options.stage = 0;
  EXPECT_LT(
      LargestRelativeDifference(RestoreAndTrain(job.Spec(Split(options, 1)), saved), expected),
      1e-5);
}

TEST(ResNet, GoesOnFromACheckpointAtAnyLayout) { ExpectToGoOnAtAnyLayout({}); }

TEST(Vit, GoesOnFromACheckpointAtAnyLayout) {
  ExpectToGoOnAtAnyLayout({.heads = true, .vit = true, .dropout = 0.1});
}

TEST(Vit, Learns) {
  TinyImages job;
  const Result result = Train(job.Spec({.steps = 40, .vit = true}));
  EXPECT_NEAR(result.losses[0], std::log(TinyImages::kClasses), 0.3);
  EXPECT_LT(result.losses.back(), result.losses[0] - 0.4);
}

TEST(Vit, RecomputationChangesOnlyMemory) {
  TinyImages job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    TinyImageOptions options{.stage = 3, .precision = precision, .vit = true, .dropout = 0.1};
    const Result kept = Train(job.Spec(Split(options, 2)));
    for (const v1::Recompute recompute : {v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_FULL}) {
      options.recompute = recompute;
      EXPECT_EQ(Train(job.Spec(Split(options, 2))).losses, kept.losses);
    }
  }
}

TEST(ResNet, RefusesABatchWithoutStatistics) {
  TinyImages job;
  v1::JobSpec spec = job.Spec({.global_batch = 1, .micro_batch = 1});
  spec.mutable_model()->mutable_resnet()->set_image_size(8);
  auto group = comm::MakeInProcessGroup(1);
  const auto session = TrainingSession::Create(spec, {.threads = 1}, group[0].get());
  EXPECT_EQ(session.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace milepost::runtime
