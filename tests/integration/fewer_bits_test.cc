// Parameters that are their own masters, and gradients kept in bf16: what is promised of the other
// ways to store a job's state holds of these too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

#include "engine/plan/planner/planner.h"
#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

using ::testing::HasSubstr;

struct FewerBits {
  v1::OptimizerSpec::Type type = v1::OptimizerSpec::TYPE_ADAMW;
  bool masters = false;
  bool gradients = true;  // in bf16
  bool states = false;    // in bf16
  v1::Precision precision = v1::PRECISION_BF16;
};

v1::JobSpec SpecOf(const TinyJob& job, const FewerBits& which, TinyOptions options) {
  options.precision = which.precision;
  options.micro_batch = options.global_batch / options.ranks;  // one micro-step
  v1::JobSpec spec = job.Spec(options);
  v1::OptimizerSpec* optimizer = spec.mutable_train()->mutable_optimizer();
  const double lr = optimizer->lr();
  optimizer->Clear();
  optimizer->set_type(which.type);
  optimizer->set_lr(which.type == v1::OptimizerSpec::TYPE_LION ? lr / 5 : lr);
  if (which.states) optimizer->set_state_dtype(v1::STATE_DTYPE_BF16);
  if (!which.masters) optimizer->set_master(v1::MASTER_DTYPE_NONE);
  if (which.gradients) spec.mutable_train()->set_grad_dtype(v1::GRAD_DTYPE_BF16);
  NormalizeJobSpec(&spec);
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  return spec;
}

const FewerBits kAll[] = {
    {.gradients = false},
    {.masters = true},
    {},
    {.states = true},
    {.type = v1::OptimizerSpec::TYPE_ADAMW_8BIT},
    {.type = v1::OptimizerSpec::TYPE_SGD},
    {.type = v1::OptimizerSpec::TYPE_LION, .states = true},
    {.type = v1::OptimizerSpec::TYPE_ADAN, .states = true},
    {.type = v1::OptimizerSpec::TYPE_ADAMW_8BIT, .precision = v1::PRECISION_FP8},
};

// What is rounded depends on the values alone, and the random numbers on the element: where stages
// sum gradients in the same order they agree bitwise, in groups of ranks too.
TEST(FewerBits, TrainAsMoreDoAtEveryStage) {
  TinyJob job;
  for (const FewerBits& which : kAll) {
    TinyOptions options{.ranks = 2, .stage = 0, .dropout = 0.1};
    options.width = which.precision == v1::PRECISION_FP8 ? 64 : options.width;
    v1::JobSpec spec = SpecOf(job, which, options);
    SCOPED_TRACE(spec.train().ShortDebugString());
    const std::vector<double> losses = TrainFresh(spec);
    v1::JobSpec exact = spec;
    exact.mutable_train()->set_grad_dtype(v1::GRAD_DTYPE_FP32);
    exact.mutable_train()->mutable_optimizer()->set_master(v1::MASTER_DTYPE_FP32);
    exact.mutable_train()->mutable_optimizer()->set_state_dtype(v1::STATE_DTYPE_FP32);
    const std::vector<double> reference = TrainFresh(exact);
    EXPECT_NE(losses, reference);
    EXPECT_LT(LargestRelativeDifference(losses, reference), 1e-2);
    for (const int stage : {1, 2, 3}) {
      spec.mutable_train()->mutable_zero()->set_stage(stage);
      EXPECT_EQ(TrainFresh(spec), losses) << "stage " << stage;
    }
  }
}

TEST(FewerBits, TrainAlikeOnOtherNumbersOfRanks) {
  TinyJob job;
  for (const FewerBits& which :
       {FewerBits{}, FewerBits{.type = v1::OptimizerSpec::TYPE_ADAMW_8BIT}}) {
    const auto losses = [&](const TinyOptions& options) {
      return TrainFresh(SpecOf(job, which, options));
    };
    const std::vector<double> one = losses({.ranks = 1});
    for (const TinyOptions& options :
         {TinyOptions{.ranks = 3, .stage = 2}, TinyOptions{.ranks = 4, .stage = 3, .group = 2},
          TinyOptions{.ranks = 4, .stage = 1, .group = 2}}) {
      EXPECT_LT(LargestRelativeDifference(losses(options), one), 5e-3) << options.ranks;
    }
  }
}

TEST(FewerBits, RecomputationChangesNotOneBit) {
  TinyJob job;
  TinyOptions options{.ranks = 2, .stage = 1, .dropout = 0.1};
  const std::vector<double> losses = TrainFresh(SpecOf(job, {}, options));
  options.recompute = v1::RECOMPUTE_FULL;
  EXPECT_EQ(TrainFresh(SpecOf(job, {}, options)), losses);
}

// What a checkpoint holds is the parameters themselves, in bf16, and it goes on bitwise at another
// stage too. Every byte that is planned is allocated, and no other.
TEST(FewerBits, AResumedRunIsBitwiseTheUninterruptedOne) {
  TinyJob job;
  for (const FewerBits& which :
       {FewerBits{}, FewerBits{.type = v1::OptimizerSpec::TYPE_ADAMW_8BIT}}) {
    v1::JobSpec spec = SpecOf(job, which, {.ranks = 2, .stage = 1, .dropout = 0.1});
    const std::vector<double> whole = TrainFresh(spec);
    Snapshot snapshot;
    std::mutex mutex;
    RunRanks(spec, [&](int, TrainingSession& session) {
      EXPECT_EQ(session.allocated_bytes(), session.plan().arena_bytes);
      for (const v1::TensorInfo& info : session.state_tensors()) {
        EXPECT_EQ(info.dtype() == "BF16", info.kind() == "master") << info.name();
      }
      ASSERT_TRUE(session.InitializeParameters().ok());
      while (session.step() < 6) ASSERT_TRUE(session.Step(false).ok());
      Save(session, snapshot, mutex);
    });
    for (const int stage : {1, 0, 3}) {
      spec.mutable_train()->mutable_zero()->set_stage(stage);
      RunRanks(spec, [&](int rank, TrainingSession& session) {
        ASSERT_EQ(Restore(session, snapshot), absl::OkStatus());
        for (size_t i = 6; i < whole.size(); ++i) {
          auto report = session.Step(false);
          ASSERT_TRUE(report.ok()) << report.status();
          if (rank == 0) {
            EXPECT_EQ(report->train_loss, whole[i]) << "step " << i;
          }
        }
      });
    }
  }
}

// A rank count that leaves more micro-steps is known when the job is planned.
TEST(FewerBits, SumsOfMicroStepsAreRefused) {
  TinyJob job;
  v1::JobSpec spec = SpecOf(job, {}, {.ranks = 2});
  spec.mutable_resources()->set_ranks(1);
  spec.mutable_train()->mutable_batch()->set_accumulation(2);
  const auto plan = plan::PlanTraining(spec, *plan::OptionsFromSpec(spec, 1));
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(plan.status().message()),
              HasSubstr("train.grad_dtype: bf16 needs train.batch.accumulation: 1, and with 1 "
                        "ranks it is 2"));
}

}  // namespace
}  // namespace milepost::runtime
