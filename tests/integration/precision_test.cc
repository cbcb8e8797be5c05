// Training in IEEE halves with dynamic loss scaling: what training_test.cc and resume_test.cc
// promise of the other precisions, and what is the scaler's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

using ::testing::HasSubstr;

struct Trace {
  std::vector<double> losses, norms, scales;
  std::vector<bool> skipped;
  std::vector<int64_t> schedule;
  std::vector<bool> at_floor;
  absl::Status status;
};

Trace TrainAndTrace(const v1::JobSpec& spec) {
  Trace trace;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    ASSERT_TRUE(session.InitializeParameters().ok());
    EXPECT_EQ(session.allocated_bytes(), session.plan().arena_bytes);
    while (session.step() < spec.train().steps()) {
      auto report = session.Step(false);
      if (rank == 0) trace.status = report.status();
      if (!report.ok()) return;
      if (rank != 0) continue;
      trace.losses.push_back(report->train_loss);
      trace.norms.push_back(report->grad_norm);
      trace.scales.push_back(report->loss_scale);
      trace.skipped.push_back(report->skipped);
      trace.at_floor.push_back(report->loss_scale_at_floor);
      trace.schedule.push_back(session.trainer_state().schedule_step());
    }
  });
  return trace;
}

TEST(Fp16, RanksAndStagesGiveTheSameLosses) {
  TinyJob job;
  for (const bool llama : {false, true}) {
    TinyOptions options{.ranks = 1, .stage = 0, .precision = v1::PRECISION_FP16};
    options.llama = llama;
    options.dropout = llama ? 0 : 0.1;
    const Trace reference = TrainAndTrace(job.Spec(options));
    EXPECT_LT(reference.losses.back(), reference.losses.front() - 0.2) << "it does not learn";
    // Three bits more than bf16's, which is held to 2e-3.
    options.precision = v1::PRECISION_FP32;
    EXPECT_LT(LargestRelativeDifference(reference.losses, TrainFresh(job.Spec(options))), 1e-3);
    options.precision = v1::PRECISION_FP16;
    for (const int ranks : {1, 2, 3, 4}) {
      for (const int stage : {0, 1, 2, 3}) {
        options.ranks = ranks;
        options.stage = stage;
        options.micro_batch = ranks == 4 ? 3 : 2;
        EXPECT_LT(
            LargestRelativeDifference(TrainAndTrace(job.Spec(options)).losses, reference.losses),
            5e-4)
            << ranks << " ranks, stage " << stage << (llama ? ", llama" : ", gpt2");
      }
    }
    options.ranks = 4;
    options.group = 2;
    EXPECT_LT(LargestRelativeDifference(TrainAndTrace(job.Spec(options)).losses, reference.losses),
              5e-4);
  }
}

TEST(Fp16, TwiceGivesTheSameBitsAndRecomputationChangesNone) {
  TinyJob job;
  for (const int stage : {1, 3}) {
    for (const bool llama : {false, true}) {
      TinyOptions options{.ranks = 2, .stage = stage, .precision = v1::PRECISION_FP16};
      options.llama = llama;
      options.dropout = llama ? 0 : 0.1;
      options.micro_batch = 3;
      options.steps = 4;
      const std::vector<double> losses = TrainFresh(job.Spec(options));
      EXPECT_EQ(TrainFresh(job.Spec(options)), losses);
      options.recompute = v1::RECOMPUTE_SELECTIVE;
      EXPECT_EQ(TrainFresh(job.Spec(options)), losses);
      options.recompute = v1::RECOMPUTE_FULL;
      EXPECT_EQ(TrainFresh(job.Spec(options)), losses);
    }
  }
}

// The norm that is reported and clipped is that of the gradients without the scale; a scale that is
// a power of two changes nothing but what is lost below half's range.
TEST(Fp16, TheScaleCancels) {
  TinyJob job;
  TinyOptions options{.stage = 0, .precision = v1::PRECISION_FP16, .steps = 3};
  v1::JobSpec spec = job.Spec(options);
  const Trace high = TrainAndTrace(spec);
  spec.mutable_train()->mutable_loss_scale()->set_initial(4096);
  const Trace low = TrainAndTrace(spec);
  EXPECT_EQ(high.scales[0], 65536);
  EXPECT_EQ(low.scales[0], 4096);
  EXPECT_EQ(low.losses[0], high.losses[0]);
  EXPECT_LT(LargestRelativeDifference(low.norms, high.norms), 2e-3);
  EXPECT_LT(LargestRelativeDifference(low.losses, high.losses), 1e-4);
  options.precision = v1::PRECISION_FP32;
  const Trace exact = TrainAndTrace(job.Spec(options));
  EXPECT_LT(LargestRelativeDifference(high.norms, exact.norms), 5e-3);
  EXPECT_EQ(exact.scales[0], 0);
}

// Gradients that really overflow: the scale starts far too high and comes down by the rule.
TEST(Fp16, AnEnormousScaleComesDown) {
  TinyJob job;
  for (const int ranks : {1, 2}) {
    TinyOptions options{.ranks = ranks, .stage = ranks, .precision = v1::PRECISION_FP16};
    options.steps = 40;
    v1::JobSpec spec = job.Spec(options);
    spec.mutable_train()->mutable_loss_scale()->set_initial(0x1p40);
    spec.mutable_train()->mutable_loss_scale()->set_growth_interval(3);
    spec.mutable_train()->set_on_nonfinite(v1::ON_NONFINITE_FAIL);
    const Trace trace = TrainAndTrace(spec);
    ASSERT_EQ(trace.status, absl::OkStatus());
    ASSERT_EQ(trace.losses.size(), 40u);
    double scale = 0x1p40;
    int64_t clean = 0, done = 0;
    for (size_t i = 0; i < trace.scales.size(); ++i) {
      EXPECT_EQ(trace.scales[i], scale) << "step " << i;
      EXPECT_EQ(trace.skipped[i], !std::isfinite(trace.norms[i]));
      clean = trace.skipped[i] ? 0 : clean + 1;
      done += trace.skipped[i] ? 0 : 1;
      EXPECT_EQ(trace.schedule[i], done);
      scale *= trace.skipped[i] ? 0.5 : clean == 3 ? 2 : 1;
      if (clean == 3) clean = 0;
      EXPECT_TRUE(std::isfinite(trace.losses[i]));
    }
    EXPECT_TRUE(trace.skipped[0]);
    // It overflows again each time it has grown too far, and trains in between.
    EXPECT_GT(done, 10);
    EXPECT_LT(done, 35);
    EXPECT_LT(trace.losses.back(), trace.losses.front() - 0.2);
  }
}

TEST(Fp16, TheFloorIsReportedAndFailsOnlyWhereTheSpecSaysSo) {
  TinyJob job;
  TinyOptions options{.precision = v1::PRECISION_FP16};
  options.lr = 100;  // it diverges: activations overflow whatever the scale
  options.steps = 30;
  v1::JobSpec spec = job.Spec(options);
  spec.mutable_train()->mutable_schedule()->set_warmup_steps(0);
  spec.mutable_train()->mutable_loss_scale()->set_initial(8);
  spec.mutable_train()->mutable_loss_scale()->set_floor(2);
  Trace trace = TrainAndTrace(spec);
  ASSERT_EQ(trace.status, absl::OkStatus());
  EXPECT_TRUE(trace.skipped.back());
  EXPECT_EQ(trace.scales.back(), 2);
  EXPECT_TRUE(trace.at_floor.back());
  EXPECT_FALSE(trace.at_floor.front());
  spec.mutable_train()->set_on_nonfinite(v1::ON_NONFINITE_FAIL);
  trace = TrainAndTrace(spec);
  EXPECT_EQ(trace.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(trace.status.message()), HasSubstr("on_nonfinite is fail"));
  EXPECT_EQ(trace.scales.back(), 4) << "two overflows came down to the floor, the third failed";
}

// Rounding the gradients of 2 to 4 ranks to 8 bits: a relative error of at most 2^-8 in each, which
// a few steps at a small learning rate hardly show.
TEST(GradReduce, Bf16GivesNearlyTheSameLossesAtEveryStage) {
  TinyJob job;
  struct Layout {
    int ranks, group;
  };
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_FP16}) {
    TinyOptions options{.ranks = 1, .stage = 0, .precision = precision, .dropout = 0.1};
    const std::vector<double> reference = TrainFresh(job.Spec(options));
    for (const Layout& layout : {Layout{2, 0}, Layout{3, 0}, Layout{4, 2}}) {
      for (const int stage : {0, 1, 2, 3}) {
        options.ranks = layout.ranks;
        options.group = stage == 0 ? 0 : layout.group;
        options.stage = stage;
        options.micro_batch = layout.ranks == 4 ? 3 : 1;  // one micro-step, or several
        v1::JobSpec spec = job.Spec(options);
        const std::vector<double> fp32 = TrainFresh(spec);
        spec.mutable_train()->set_grad_reduce(v1::GRAD_REDUCE_BF16);
        const std::vector<double> losses = TrainFresh(spec);
        EXPECT_LT(LargestRelativeDifference(losses, reference), 2e-3)
            << layout.ranks << " ranks, stage " << stage;
        EXPECT_NE(losses, fp32);
        EXPECT_EQ(TrainFresh(spec), losses) << "not the same bits twice";
      }
    }
  }
}

// What is planned is what is sent, and every replica ends with the same bits.
TEST(GradReduce, Bf16SendsWhatIsPlannedAndKeepsReplicasAlike) {
  TinyJob job;
  for (const int stage : {0, 1, 2, 3}) {
    for (const v1::GradReduce reduce : {v1::GRAD_REDUCE_FP32, v1::GRAD_REDUCE_BF16}) {
      TinyOptions options{.ranks = 4, .stage = stage, .group = stage == 0 ? 0 : 2};
      options.micro_batch = 1;
      options.steps = 3;
      v1::JobSpec spec = job.Spec(options);
      spec.mutable_train()->set_grad_reduce(reduce);
      SCOPED_TRACE(absl::StrCat("stage ", stage));
      std::vector<std::vector<float>> held(4);
      ExpectSendsWhatIsPlanned(spec, [&](size_t rank, TrainingSession& session) {
        for (const StateInterval& i : session.RestoreTargets()) {
          const auto* data = reinterpret_cast<const float*>(i.data);
          held[rank].insert(held[rank].end(), data, data + (i.end - i.begin));
        }
      });
      EXPECT_EQ(held[2], held[0]) << "stage " << stage;
      EXPECT_EQ(held[3], held[1]) << "stage " << stage;
    }
  }
}

// State of every tensor, whole, as a checkpoint holds it.
using State = std::vector<std::vector<char>>;

State Gather(TrainingSession& session, std::mutex& mutex, State& state) {
  const std::lock_guard lock(mutex);
  state.resize(session.state_tensors().size());
  for (const StateInterval& i : session.SaveSources()) {
    const v1::TensorInfo& info = session.state_tensors()[i.tensor];
    const size_t element = info.dtype() == "F32" ? 4 : 2;
    size_t elements = 1;
    for (const int64_t n : info.shape()) elements *= static_cast<size_t>(n);
    state[i.tensor].resize(elements * element);
    std::memcpy(state[i.tensor].data() + i.begin * element, i.data, (i.end - i.begin) * element);
  }
  return state;
}

void Restore(TrainingSession& session, const State& state, const v1::TrainerState& trainer) {
  for (const StateInterval& i : session.RestoreTargets()) {
    const size_t element = session.state_tensors()[i.tensor].dtype() == "F32" ? 4 : 2;
    std::memcpy(i.data, state[i.tensor].data() + i.begin * element, (i.end - i.begin) * element);
  }
  ASSERT_EQ(session.FinishRestore(trainer), absl::OkStatus());
}

v1::JobSpec Bf16States(const TinyJob& job, const TinyOptions& options,
                       v1::OptimizerSpec::Type type = v1::OptimizerSpec::TYPE_ADAMW) {
  v1::JobSpec spec = job.Spec(options);
  v1::OptimizerSpec* optimizer = spec.mutable_train()->mutable_optimizer();
  const double lr = optimizer->lr();
  optimizer->Clear();
  optimizer->set_type(type);
  optimizer->set_lr(type == v1::OptimizerSpec::TYPE_LION ? lr / 5 : lr);
  optimizer->set_state_dtype(v1::STATE_DTYPE_BF16);
  NormalizeJobSpec(&spec);
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  return spec;
}

// m and v in bf16 train as m and v in fp32 do, at every stage; the rounding does not depend on how
// state is sharded, so that stages that sum gradients in the same order agree bitwise.
TEST(Bf16States, TrainLikeFp32StatesAtEveryStage) {
  TinyJob job;
  for (const auto type :
       {v1::OptimizerSpec::TYPE_ADAMW, v1::OptimizerSpec::TYPE_SGD, v1::OptimizerSpec::TYPE_LION}) {
    TinyOptions options{.ranks = 2, .stage = 0, .precision = v1::PRECISION_BF16, .dropout = 0.1};
    options.micro_batch = 6;
    v1::JobSpec spec = Bf16States(job, options, type);
    const std::vector<double> losses = TrainFresh(spec);
    v1::JobSpec exact = spec;
    exact.mutable_train()->mutable_optimizer()->set_state_dtype(v1::STATE_DTYPE_FP32);
    const std::vector<double> reference = TrainFresh(exact);
    EXPECT_NE(losses, reference);
    EXPECT_LT(LargestRelativeDifference(losses, reference), 5e-3);
    for (const int stage : {1, 2, 3}) {
      spec.mutable_train()->mutable_zero()->set_stage(stage);
      EXPECT_EQ(TrainFresh(spec), losses) << "stage " << stage;
    }
    options.ranks = 3;
    options.stage = 2;
    options.micro_batch = 2;
    EXPECT_LT(LargestRelativeDifference(TrainFresh(Bf16States(job, options, type)), losses), 5e-3);
  }
}

// What a checkpoint holds is m and v in bf16, and it goes on bitwise, also at another stage.
TEST(Bf16States, AResumedRunIsBitwiseTheUninterruptedOne) {
  TinyJob job;
  TinyOptions options{.ranks = 2, .stage = 1, .precision = v1::PRECISION_BF16, .dropout = 0.1};
  options.micro_batch = 6;
  v1::JobSpec spec = Bf16States(job, options);
  const std::vector<double> whole = TrainFresh(spec);
  State state;
  v1::TrainerState trainer;
  std::mutex mutex;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    for (const v1::TensorInfo& info : session.state_tensors()) {
      EXPECT_EQ(info.dtype(), info.kind() == "master" ? "F32" : "BF16") << info.name();
    }
    ASSERT_TRUE(session.InitializeParameters().ok());
    while (session.step() < 6) ASSERT_TRUE(session.Step(false).ok());
    Gather(session, mutex, state);
    if (rank == 0) trainer = session.trainer_state();
  });
  for (const int stage : {1, 0, 3}) {
    spec.mutable_train()->mutable_zero()->set_stage(stage);
    RunRanks(spec, [&](int rank, TrainingSession& session) {
      Restore(session, state, trainer);
      for (size_t i = 6; i < whole.size(); ++i) {
        auto report = session.Step(false);
        ASSERT_TRUE(report.ok()) << report.status();
        if (rank == 0) {
          EXPECT_EQ(report->train_loss, whole[i]) << "step " << i;
        }
      }
    });
  }
  spec.mutable_train()->mutable_optimizer()->set_state_dtype(v1::STATE_DTYPE_FP32);
  RunRanks(spec, [&](int, TrainingSession& session) {
    EXPECT_THAT(std::string(session.FinishRestore(trainer).message()),
                HasSubstr("the checkpoint is of another"));
  });
}

// Stopped while the scale was neither at its start nor just changed.
TEST(Fp16, AResumedRunIsBitwiseTheUninterruptedOne) {
  TinyJob job;
  TinyOptions options{.ranks = 2, .stage = 2, .precision = v1::PRECISION_FP16, .dropout = 0.1};
  options.steps = 24;
  v1::JobSpec spec = job.Spec(options);
  spec.mutable_train()->mutable_loss_scale()->set_initial(0x1p34);
  spec.mutable_train()->mutable_loss_scale()->set_growth_interval(4);
  const Trace whole = TrainAndTrace(spec);
  State state;
  v1::TrainerState trainer;
  std::mutex mutex;
  constexpr int64_t kStop = 18;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    ASSERT_TRUE(session.InitializeParameters().ok());
    while (session.step() < kStop) ASSERT_TRUE(session.Step(false).ok());
    Gather(session, mutex, state);
    if (rank == 0) trainer = session.trainer_state();
  });
  EXPECT_NE(trainer.loss_scale(), 0x1p34);
  EXPECT_GT(trainer.skipped_steps(), 0);
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    Restore(session, state, trainer);
    for (size_t i = kStop; i < whole.losses.size(); ++i) {
      auto report = session.Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      if (rank != 0) continue;
      EXPECT_EQ(report->train_loss, whole.losses[i]) << "step " << i;
      EXPECT_EQ(report->loss_scale, whole.scales[i]) << "step " << i;
    }
  });
  // Another precision takes the weights and leaves the scale.
  spec.mutable_train()->set_precision(v1::PRECISION_BF16);
  spec.mutable_train()->clear_loss_scale();
  RunRanks(spec, [&](int, TrainingSession& session) {
    Restore(session, state, trainer);
    auto report = session.Step(false);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->loss_scale, 0);
    EXPECT_EQ(session.trainer_state().loss_scale(), 0);
  });
}

}  // namespace
}  // namespace milepost::runtime
