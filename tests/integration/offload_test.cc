// What waits in host memory, or on disk, changes no bit of a training run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

struct OffloadRun {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<bool> skipped;
  Snapshot state;
};

OffloadRun Train(const v1::JobSpec& spec, const Snapshot* from = nullptr) {
  OffloadRun run;
  std::mutex mutex;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    EXPECT_EQ(session.allocated_bytes(), session.plan().arena_bytes);
    EXPECT_EQ(session.allocated_host_bytes(), session.plan().host_arena_bytes);
    ASSERT_EQ(from == nullptr ? session.InitializeParameters() : Restore(session, *from),
              absl::OkStatus());
    while (session.step() < spec.train().steps()) {
      auto report = session.Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      if (rank != 0) continue;
      run.losses.push_back(report->train_loss);
      run.norms.push_back(report->grad_norm);
      run.skipped.push_back(report->skipped);
    }
    auto evaluation = session.Evaluate();
    ASSERT_TRUE(evaluation.ok()) << evaluation.status();
    if (rank == 0) run.losses.push_back(evaluation->loss);
    Save(session, run.state, mutex);
  });
  return run;
}

v1::JobSpec Offloaded(v1::JobSpec spec) {
  spec.mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  return spec;
}

// Its state on disk, beside its data.
v1::JobSpec OnDisk(v1::JobSpec spec) {
  v1::OffloadSpec* offload = spec.mutable_train()->mutable_offload();
  offload->set_optimizer(v1::OFFLOAD_TARGET_NVME);
  offload->set_path(std::filesystem::path(spec.data().train()).parent_path().string());
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  return spec;
}

void ExpectSameBits(const OffloadRun& got, const OffloadRun& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.skipped, want.skipped);
  ASSERT_EQ(got.state.data.size(), want.state.data.size());
  for (size_t i = 0; i < want.state.data.size(); ++i) {
    EXPECT_TRUE(got.state.data[i] == want.state.data[i])
        << want.state.tensors[i].name() << ", " << want.state.tensors[i].kind();
  }
}

TEST(OffloadOptimizer, EveryStageAndWorldHasTheBitsOfNone) {
  const TinyJob job;
  for (const auto& [ranks, group] : {std::pair(1, 0), std::pair(2, 0), std::pair(4, 2)}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
        for (const int64_t accumulation : {1, 2}) {
          SCOPED_TRACE(absl::StrCat(ranks, " ranks, stage ", stage, ", ",
                                    v1::Precision_Name(precision), ", accumulation ",
                                    accumulation));
          const v1::JobSpec spec = job.Spec({.ranks = ranks,
                                             .stage = stage,
                                             .group = group,
                                             .precision = precision,
                                             .global_batch = ranks * accumulation,
                                             .micro_batch = 1,
                                             .dropout = 0.1,
                                             .steps = 3});
          const OffloadRun want = Train(spec);
          ExpectSameBits(Train(Offloaded(spec)), want);
          ExpectSameBits(Train(OnDisk(spec)), want);
        }
      }
    }
  }
}

v1::JobSpec WithOptimizer(v1::JobSpec spec, v1::OptimizerSpec::Type type) {
  v1::OptimizerSpec* optimizer = spec.mutable_train()->mutable_optimizer();
  optimizer->Clear();
  optimizer->set_type(type);
  optimizer->set_lr(1e-3);
  NormalizeJobSpec(&spec);
  return spec;
}

TEST(OffloadOptimizer, EveryOptimizerHasTheBitsOfNone) {
  const TinyJob job;
  const TinyOptions options = {
      .ranks = 2, .stage = 2, .precision = v1::PRECISION_BF16, .global_batch = 4, .steps = 3};
  for (const auto type : {v1::OptimizerSpec::TYPE_SGD, v1::OptimizerSpec::TYPE_LION,
                          v1::OptimizerSpec::TYPE_ADAN, v1::OptimizerSpec::TYPE_ADAMW_8BIT}) {
    SCOPED_TRACE(v1::OptimizerSpec::Type_Name(type));
    const v1::JobSpec spec = WithOptimizer(job.Spec(options), type);
    const OffloadRun want = Train(spec);
    ExpectSameBits(Train(Offloaded(spec)), want);
    ExpectSameBits(Train(OnDisk(spec)), want);
  }
  v1::JobSpec rounded = job.Spec(options);
  rounded.mutable_train()->mutable_optimizer()->set_state_dtype(v1::STATE_DTYPE_BF16);
  const OffloadRun want = Train(rounded);
  ExpectSameBits(Train(Offloaded(rounded)), want);
  ExpectSameBits(Train(OnDisk(rounded)), want);
}

TEST(OffloadOptimizer, FrozenGroupsStayAsTheyAre) {
  const TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    v1::JobSpec spec = job.Spec({.ranks = 2, .stage = 3, .precision = precision, .steps = 3});
    v1::ParameterGroupSpec* frozen = spec.mutable_train()->mutable_optimizer()->add_groups();
    frozen->set_match("h.0.*");
    frozen->set_freeze(true);
    NormalizeJobSpec(&spec);
    const OffloadRun want = Train(spec);
    ExpectSameBits(Train(Offloaded(spec)), want);
    ExpectSameBits(Train(OnDisk(spec)), want);
  }
}

// A step that overflows leaves every parameter as it was, the device's too: the next losses are
// those of a run that has nothing offloaded.
TEST(OffloadOptimizer, SkippedStepsLeaveTheDevicesParameters) {
  const TinyJob job;
  for (const int ranks : {1, 2}) {
    v1::JobSpec spec = job.Spec({.ranks = ranks, .precision = v1::PRECISION_FP16, .steps = 8});
    spec.mutable_train()->mutable_loss_scale()->set_initial(1 << 26);
    spec.mutable_train()->set_clip_norm(0.5);
    const OffloadRun want = Train(spec);
    EXPECT_TRUE(want.skipped.front());
    EXPECT_FALSE(want.skipped.back());
    ExpectSameBits(Train(Offloaded(spec)), want);
    ExpectSameBits(Train(OnDisk(spec)), want);
  }
}

TEST(OffloadOptimizer, ACheckpointOfAnyGoesOnWithTheOthers) {
  const TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    const v1::JobSpec whole =
        job.Spec({.ranks = 2, .stage = 1, .precision = precision, .steps = 6});
    v1::JobSpec half = whole;
    half.mutable_train()->set_steps(3);
    const OffloadRun none = Train(half);
    const OffloadRun host = Train(Offloaded(half));
    const OffloadRun disk = Train(OnDisk(half));
    const OffloadRun want = Train(whole, &none.state);
    ExpectSameBits(Train(Offloaded(whole), &none.state), want);
    ExpectSameBits(Train(whole, &host.state), want);
    ExpectSameBits(Train(OnDisk(whole), &host.state), want);
    ExpectSameBits(Train(OnDisk(whole), &disk.state), want);
    ExpectSameBits(Train(Offloaded(whole), &disk.state), want);
    ExpectSameBits(Train(whole, &disk.state), want);
  }
}

// With and without what is made once more, and beside offloaded updates.
TEST(OffloadActivations, EveryStageAndRecomputationHasTheBitsOfNone) {
  const TinyJob job;
  for (const auto& [ranks, stage] : {std::pair(1, 0), std::pair(2, 1), std::pair(2, 3)}) {
    for (const v1::Recompute recompute :
         {v1::RECOMPUTE_NONE, v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_FULL}) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, stage ", stage, ", recompute ",
                                v1::Recompute_Name(recompute)));
      v1::JobSpec spec = job.Spec({.ranks = ranks,
                                   .stage = stage,
                                   .recompute = recompute,
                                   .global_batch = 8 * ranks,
                                   .micro_batch = 4,
                                   .layers = 4,
                                   .width = 64,
                                   .dropout = 0.1,
                                   .steps = 3});
      const OffloadRun want = Train(spec);
      spec.mutable_train()->mutable_offload()->set_activations(true);
      ExpectSameBits(Train(spec), want);
      ExpectSameBits(Train(Offloaded(spec)), want);
      ExpectSameBits(Train(OnDisk(spec)), want);
    }
  }
}

}  // namespace
}  // namespace milepost::runtime
