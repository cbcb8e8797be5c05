// What training promises, whatever the number of ranks, the ZeRO stage and the split of the batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/comm/in_process.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/passes/memory_pass.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

using ::testing::HasSubstr;

TEST(Training, TheSameSpecTwiceGivesTheSameBits) {
  TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    const v1::JobSpec spec = job.Spec({.ranks = 2, .precision = precision, .dropout = 0.1});
    const std::vector<double> losses = TrainFresh(spec);
    ASSERT_EQ(losses.size(), 10u);
    EXPECT_EQ(losses, TrainFresh(spec));
    EXPECT_NEAR(losses[0], std::log(TinyJob::kVocabulary), 0.2);
    EXPECT_LT(losses[9], losses[0] - 0.2) << "it does not learn";
  }
}

// Documents that do not see each other, in the causal families.
TEST(Training, PackedDocumentsDependOnNoLayout) {
  TinyJob job;
  for (const bool llama : {false, true}) {
    TinyOptions options{.ranks = 1, .stage = 0, .steps = 5, .llama = llama, .documents = true};
    const std::vector<double> reference = TrainFresh(job.Spec(options));
    options.documents = false;
    EXPECT_GT(LargestRelativeDifference(TrainFresh(job.Spec(options)), reference), 1e-4);
    options.documents = true;
    for (int ranks : {2, 3}) {
      for (int stage : {1, 3}) {
        options.ranks = ranks;
        options.stage = stage;
        options.recompute = stage == 3 ? v1::RECOMPUTE_FULL : v1::RECOMPUTE_SELECTIVE;
        EXPECT_LT(LargestRelativeDifference(TrainFresh(job.Spec(options)), reference), 1e-5)
            << ranks << " ranks, stage " << stage;
      }
    }
  }
}

// Ranks that divide no size of the model.
TEST(Training, OddNumbersOfRanks) {
  TinyJob job;
  TinyOptions options{.ranks = 1, .stage = 0, .global_batch = 35};
  options.micro_batch = 5;
  options.steps = 3;
  const std::vector<double> reference = TrainFresh(job.Spec(options));
  for (int ranks : {5, 7}) {
    for (int stage : {1, 2, 3}) {
      options.ranks = ranks;
      options.stage = stage;
      options.micro_batch = 1;
      EXPECT_LT(LargestRelativeDifference(TrainFresh(job.Spec(options)), reference), 1e-5)
          << ranks << " ranks, stage " << stage;
    }
  }
}

// Shards within groups of ranks, replicas from group to group.
TEST(Training, HybridShardingGivesTheSameLosses) {
  struct Layout {
    int ranks;
    int group;
  };
  TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    TinyOptions options{.ranks = 1, .stage = 0, .precision = precision, .dropout = 0.1};
    options.micro_batch = 1;
    options.steps = 5;
    const std::vector<double> reference = TrainFresh(job.Spec(options));
    for (const Layout& layout : {Layout{4, 2}, Layout{6, 3}, Layout{6, 2}, Layout{3, 1}}) {
      for (int stage : {1, 2, 3}) {
        options.ranks = layout.ranks;
        options.group = layout.group;
        options.stage = stage;
        EXPECT_LT(LargestRelativeDifference(TrainFresh(job.Spec(options)), reference),
                  precision == v1::PRECISION_FP32 ? 1e-5 : 2e-3)
            << layout.ranks << " ranks in groups of " << layout.group << ", stage " << stage;
      }
    }
  }
}

// When parameters are gathered changes nothing but memory and waiting: not one bit.
TEST(Training, PrefetchDoesNotMatter) {
  TinyJob job;
  TinyOptions options{.ranks = 2, .stage = 3, .dropout = 0.1, .steps = 3};
  options.layers = 4;
  const std::vector<double> reference = TrainFresh(job.Spec(options));
  for (int prefetch : {0, 2, 16}) {
    options.prefetch = prefetch;
    EXPECT_EQ(TrainFresh(job.Spec(options)), reference) << prefetch;
  }
}

struct Measured {
  std::vector<double> losses;
  int64_t arena_bytes = 0;
  int64_t activation_bytes = 0;  // at their fullest moment
};

Measured TrainAndMeasure(const v1::JobSpec& spec) {
  Measured run;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    EXPECT_EQ(session.allocated_bytes(), session.plan().arena_bytes);
    while (session.step() < spec.train().steps()) {
      auto report = session.Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      if (rank == 0) run.losses.push_back(report->train_loss);
    }
    if (rank == 0) run.arena_bytes = session.plan().arena_bytes;
    if (rank == 0) run.activation_bytes = plan::PeakActivationBytes(session.plan());
  });
  return run;
}

// The same kernels on the same inputs: not one bit changes, masks included.
TEST(Training, RecomputationChangesOnlyMemory) {
  TinyJob job;
  struct Layout {
    int ranks;
    int stage;
  };
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    for (const Layout& layout : {Layout{1, 0}, Layout{2, 1}, Layout{2, 2}, Layout{2, 3}}) {
      for (const bool llama : {false, true}) {
        TinyOptions options{.ranks = layout.ranks, .stage = layout.stage, .precision = precision};
        options.llama = llama;
        options.dropout = llama ? 0 : 0.1;
        options.layers = 4;
        options.micro_batch = 3;
        options.steps = 4;
        const Measured kept = TrainAndMeasure(job.Spec(options));
        options.recompute = v1::RECOMPUTE_SELECTIVE;
        const Measured selective = TrainAndMeasure(job.Spec(options));
        options.recompute = v1::RECOMPUTE_FULL;
        const Measured full = TrainAndMeasure(job.Spec(options));
        EXPECT_EQ(selective.losses, kept.losses) << "stage " << layout.stage;
        EXPECT_EQ(full.losses, kept.losses) << "stage " << layout.stage;
        EXPECT_LT(selective.arena_bytes, kept.arena_bytes);
        EXPECT_LT(full.arena_bytes, selective.arena_bytes);
        v1::JobSpec within = job.Spec(options);
        const int64_t budget = (selective.activation_bytes + full.activation_bytes) / 2;
        within.mutable_train()->set_recompute(v1::RECOMPUTE_BUDGET);
        within.mutable_train()->set_recompute_budget(budget);
        const Measured mixed = TrainAndMeasure(within);
        EXPECT_EQ(mixed.losses, kept.losses) << "stage " << layout.stage;
        EXPECT_LE(mixed.activation_bytes, budget);
        EXPECT_GT(mixed.activation_bytes, full.activation_bytes);
      }
    }
  }
}

TEST(Training, TheSplitIntoMicroStepsDoesNotMatter) {
  TinyJob job;
  TinyOptions options{.stage = 0, .dropout = 0.1};
  options.micro_batch = 12;
  const std::vector<double> reference = TrainFresh(job.Spec(options));
  for (int64_t micro : {1, 3, 6}) {
    options.micro_batch = micro;
    EXPECT_LT(LargestRelativeDifference(TrainFresh(job.Spec(options)), reference), 1e-5) << micro;
  }
}

TEST(Training, DropoutChangesTheLossAndTheSeedChangesEverything) {
  TinyJob job;
  const std::vector<double> plain = TrainFresh(job.Spec({.steps = 2}));
  EXPECT_NE(TrainFresh(job.Spec({.dropout = 0.1, .steps = 2}))[0], plain[0]);
  EXPECT_NE(TrainFresh(job.Spec({.steps = 2, .seed = 8}))[0], plain[0]);
}

TEST(Training, AllocatesExactlyWhatWasPlanned) {
  TinyJob job;
  for (int group : {0, 2}) {
    for (int stage : {0, 1, 2, 3}) {
      TinyOptions options{.ranks = 4, .stage = stage, .group = group};
      options.micro_batch = 1;
      RunRanks(job.Spec(options), [](int, TrainingSession& session) {
        EXPECT_GT(session.plan().arena_bytes, 0);
        EXPECT_EQ(session.allocated_bytes(), session.plan().arena_bytes);
        int64_t saved = 0;
        for (const StateInterval& i : session.SaveSources()) saved += 4 * (i.end - i.begin);
        const int64_t planned = plan::SnapshotBytes(session.plan());
        EXPECT_LE(saved, planned);
        EXPECT_GT(saved, planned / 2);  // of tiny groups much is padding
      });
    }
  }
}

TEST(Training, EveryRankReportsTheSame) {
  TinyJob job;
  std::mutex mutex;
  std::vector<StepReport> reports;
  RunRanks(job.Spec({.ranks = 3, .steps = 1}), [&](int rank, TrainingSession& session) {
    ASSERT_TRUE(session.InitializeParameters().ok());
    auto report = session.Step(/*stop_requested=*/rank == 1);
    ASSERT_TRUE(report.ok()) << report.status();
    std::lock_guard lock(mutex);
    reports.push_back(*report);
  });
  ASSERT_EQ(reports.size(), 3u);
  for (const StepReport& report : reports) {
    EXPECT_TRUE(report.stop_agreed);
    EXPECT_EQ(report.step, 1);
    EXPECT_EQ(report.tokens, 12 * TinyJob::kContext);
    EXPECT_EQ(report.train_loss, reports[0].train_loss);
    EXPECT_EQ(report.grad_norm, reports[0].grad_norm);
    EXPECT_GT(report.grad_norm, 0);
    EXPECT_LE(report.clipped_norm, 1.0);  // train.clip_norm
    EXPECT_GT(report.seconds, 0);
  }
}

TEST(Training, ValidationDoesNotDependOnRanks) {
  TinyJob job;  // 5 of the file's 7 samples: no multiple of anything here
  std::vector<double> losses;
  for (int ranks : {1, 2, 3, 6}) {  // 6: one rank has nothing to validate
    const int stage = ranks % 3 == 0 ? 3 : 1;
    const TinyOptions options{.ranks = ranks, .stage = stage};
    RunRanks(job.Spec(options), [&](int rank, TrainingSession& session) {
      ASSERT_TRUE(session.InitializeParameters().ok());
      auto before = session.Evaluate();
      ASSERT_TRUE(before.ok()) << before.status();
      ASSERT_EQ(before->heads.size(), 1u);
      EXPECT_EQ(before->heads[0].targets, 5 * TinyJob::kContext);
      EXPECT_EQ(before->heads[0].loss, before->loss);
      EXPECT_EQ(before->heads[0].name, "lm");
      ASSERT_TRUE(session.Step(false).ok());
      auto after = session.Evaluate();
      ASSERT_TRUE(after.ok());
      EXPECT_NE(after->loss, before->loss);
      EXPECT_EQ(session.trainer_state().validation_loss(), after->loss);
      EXPECT_EQ(session.trainer_state().validation_step(), 1);
      if (rank == 0) losses.push_back(after->loss);
    });
  }
  ASSERT_EQ(losses.size(), 4u);
  EXPECT_LT(LargestRelativeDifference(losses, std::vector<double>(4, losses[0])), 1e-5);
}

double WeightedSum(const std::vector<graph::LossHead>& heads, const double* means) {
  double sum = 0;
  for (size_t i = 0; i < heads.size(); ++i) sum += heads[i].weight * means[i];
  return sum;
}

TEST(Training, HeadsAreReportedOneByOne) {
  TinyJob job;
  for (const bool bert : {false, true}) {
    const v1::JobSpec spec =
        job.Spec({.ranks = 2, .stage = 3, .steps = 30, .bert = bert, .heads = true});
    RunRanks(spec, [&](int rank, TrainingSession& session) {
      const std::vector<graph::LossHead>& heads = session.plan().train.graph.losses;
      ASSERT_EQ(heads.size(), 3u);
      EXPECT_EQ(heads[0].name, bert ? "mlm" : "lm");
      EXPECT_EQ(heads[0].weight, 0.5);
      EXPECT_EQ(heads[1].name, "kind");
      EXPECT_EQ(heads[1].weight, 2);
      ASSERT_TRUE(session.InitializeParameters().ok());
      absl::StatusOr<StepReport> first, last;
      while (session.step() < 30) {
        last = session.Step(false);
        ASSERT_TRUE(last.ok()) << last.status();
        EXPECT_NEAR(last->train_loss, WeightedSum(heads, last->head_losses.data()), 1e-9);
        if (session.step() == 1) first = last;
      }
      // Near what knows nothing of its classes at first, and lower then.
      EXPECT_NEAR(first->head_losses[1], std::log(7), 0.2);
      for (const int head : {0, 1, 2}) EXPECT_LT(last->head_losses[head], first->head_losses[head]);
      const absl::StatusOr<EvaluationReport> report = session.Evaluate();
      ASSERT_TRUE(report.ok()) << report.status();
      ASSERT_EQ(report->heads.size(), 3u);
      std::vector<double> means;
      for (const EvaluationReport::Head& head : report->heads) means.push_back(head.loss);
      EXPECT_NEAR(report->loss, WeightedSum(heads, means.data()), 1e-9);
      // Of 5 samples of 24 tokens every fifth, from the third on, has no kind.
      EXPECT_EQ(report->heads[1].targets, 5 * 24 - 24);
      EXPECT_GT(report->heads[1].accuracy, 1.0 / 7);
    });
  }
}

// A task without one label in a step has no say in it.
TEST(Training, AHeadWithoutLabelsLeavesTheOthersAlone) {
  TinyJob job;
  v1::JobSpec spec = job.Spec({.ranks = 2, .steps = 4, .heads = true});
  // But for one, of a sample that comes after three steps: with none at all the data are refused.
  std::string labels(40 * TinyJob::kContext + 1, '\xff');
  labels[3 * TinyJob::kContext] = 0;
  WriteNpy(job.path("train.kind.npy"), "|i1", absl::StrCat(labels.size(), ","), labels);
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    ASSERT_TRUE(session.InitializeParameters().ok());
    for (int step = 0; step < 3; ++step) {
      const absl::StatusOr<StepReport> report = session.Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->head_losses[1], 0);
      EXPECT_GT(report->head_losses[2], 4);
      EXPECT_FALSE(report->skipped);
    }
    for (const StateInterval& source : session.SaveSources()) {
      const v1::TensorInfo& tensor = session.state_tensors()[source.tensor];
      if (tensor.name() != "heads.kind.weight" || tensor.kind() != "m") continue;
      const auto* m = reinterpret_cast<const float*>(source.data);
      for (int64_t i = source.begin; i < source.end; ++i) EXPECT_EQ(m[i - source.begin], 0);
    }
  });
}

TEST(Training, ValidationLeavesTrainingAlone) {
  TinyJob job;
  for (int stage : {1, 3}) {
    const v1::JobSpec spec = job.Spec({.ranks = 2, .stage = stage, .dropout = 0.1, .steps = 4});
    std::vector<double> losses;
    RunRanks(spec, [&](int rank, TrainingSession& session) {
      ASSERT_TRUE(session.InitializeParameters().ok());
      while (session.step() < 4) {
        ASSERT_TRUE(session.Evaluate().ok());
        auto report = session.Step(false);
        ASSERT_TRUE(report.ok());
        if (rank == 0) losses.push_back(report->train_loss);
      }
    });
    EXPECT_EQ(losses, TrainFresh(spec));
  }
}

// Ruins one weight of rank 0's master so that gradients are not finite from then on.
void Ruin(TrainingSession& session, float value) {
  for (const StateInterval& interval : session.SaveSources()) {
    const v1::TensorInfo& info = session.state_tensors()[interval.tensor];
    if (info.kind() != "master" || info.name().find("ln_f.weight") == std::string::npos) continue;
    reinterpret_cast<float*>(interval.data)[0] = value;
  }
}

TEST(Training, ANonFiniteNormSkipsTheUpdateOnEveryRank) {
  TinyJob job;
  for (int stage : {1, 3})
    RunRanks(job.Spec({.ranks = 2, .stage = stage}), [](int, TrainingSession& session) {
      ASSERT_TRUE(session.InitializeParameters().ok());
      ASSERT_TRUE(session.Step(false).ok());
      Ruin(session, NAN);
      ASSERT_TRUE(session.FinishRestore(session.trainer_state()).ok());
      std::vector<std::vector<float>> before;
      for (const StateInterval& i : session.SaveSources()) {
        const auto* data = reinterpret_cast<const float*>(i.data);
        before.emplace_back(data, data + (i.end - i.begin));
      }
      auto report = session.Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_TRUE(report->skipped);
      EXPECT_EQ(report->skipped_steps, 1);
      EXPECT_FALSE(std::isfinite(report->grad_norm));
      EXPECT_EQ(session.step(), 2);
      EXPECT_EQ(session.trainer_state().schedule_step(), 1);
      EXPECT_EQ(session.trainer_state().samples_consumed(), 24);
      size_t k = 0;
      for (const StateInterval& i : session.SaveSources()) {
        EXPECT_EQ(std::memcmp(i.data, before[k].data(), before[k].size() * sizeof(float)), 0);
        ++k;
      }
    });
}

TEST(Training, ANonFiniteNormFailsWhereTheSpecSaysSo) {
  TinyJob job;
  v1::JobSpec spec = job.Spec({});
  spec.mutable_train()->set_on_nonfinite(v1::ON_NONFINITE_FAIL);
  RunRanks(spec, [](int, TrainingSession& session) {
    ASSERT_TRUE(session.InitializeParameters().ok());
    ASSERT_TRUE(session.Step(false).ok());
    Ruin(session, INFINITY);
    ASSERT_TRUE(session.FinishRestore(session.trainer_state()).ok());
    auto report = session.Step(false);
    EXPECT_EQ(report.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(report.status().message()), HasSubstr("step 2"));
    EXPECT_EQ(session.Step(false).status(), report.status());
  });
}

void LoseRankOne(const v1::JobSpec& spec) {
  auto group = comm::MakeInProcessGroup(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      auto session = TrainingSession::Create(spec, {}, group[rank].get());
      ASSERT_TRUE(session.ok()) << session.status();
      ASSERT_TRUE((*session)->InitializeParameters().ok());
      ASSERT_TRUE((*session)->Step(false).ok());
      if (rank == 1) {
        session->reset();
        group[rank].reset();
        return;
      }
      const absl::Status status = (*session)->Step(false).status();
      EXPECT_TRUE(comm::IsPeerLost(status)) << status;
      EXPECT_EQ((*session)->Step(false).status(), status);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Training, ALostPeerIsAnErrorNotAHang) {
  TinyJob job;
  for (int stage : {1, 3}) LoseRankOne(job.Spec({.ranks = 3, .stage = stage}));
}

TEST(Training, OneRanksBadDataStopsAllRanks) {
  TinyJob job;
  v1::JobSpec spec = job.Spec({.ranks = 2});
  spec.mutable_model()->mutable_gpt2()->set_vocabulary(40);  // ids go up to 60
  std::mutex mutex;
  int data_errors = 0;
  RunRanks(spec, [&](int, TrainingSession& session) {
    ASSERT_TRUE(session.InitializeParameters().ok());
    const absl::Status status = session.Step(false).status();
    EXPECT_FALSE(status.ok());
    std::lock_guard lock(mutex);
    data_errors += status.code() == absl::StatusCode::kInvalidArgument;
  });
  EXPECT_GE(data_errors, 1);
}

TEST(Training, RefusesWhatDoesNotFit) {
  TinyJob job;
  auto alone = comm::MakeInProcessGroup(1);
  auto create = [&](const v1::JobSpec& spec) {
    return TrainingSession::Create(spec, {}, alone[0].get()).status();
  };
  v1::JobSpec spec = job.Spec({.ranks = 2});
  EXPECT_THAT(std::string(create(spec).message()), HasSubstr("resources.ranks is 2"));
  alone = comm::MakeInProcessGroup(1);
  spec = job.Spec({});
  spec.mutable_data()->set_train(job.path("absent.npy"));
  EXPECT_EQ(create(spec).code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace milepost::runtime
