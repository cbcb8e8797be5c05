// Pipeline parallelism: stages that divide the blocks train as one rank does, by any schedule, at
// every ZeRO stage, and their state goes on at any other mesh.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "engine/runtime/testing/mesh_runs.h"
#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_images.h"
#include "engine/runtime/testing/tiny_job.h"
#include "engine/state/layout.h"

namespace milepost::runtime {
namespace {

constexpr int64_t kGlobalBatch = 12;
constexpr auto k1F1B = v1::PIPELINE_SCHEDULE_1F1B;
constexpr auto kZeroBubble = v1::PIPELINE_SCHEDULE_ZERO_BUBBLE;

struct Mesh {
  int data = 1;
  int tensor = 1;
  int pipeline = 1;
  int stage = 1;
  v1::PipelineSchedule schedule = k1F1B;
  int64_t micro = 0;  // 0: as many micro-batches as there are stages
};

std::string NameOf(const Mesh& mesh) {
  return absl::StrCat("data ", mesh.data, ", tensor ", mesh.tensor, ", pipeline ", mesh.pipeline,
                      ", stage ", mesh.stage, ", schedule ", mesh.schedule, ", micro ", mesh.micro);
}

TinyOptions On(const Mesh& mesh, TinyOptions options) {
  options.ranks = mesh.data * mesh.tensor * mesh.pipeline;
  options.tensor = mesh.tensor;
  options.pipeline = mesh.pipeline;
  options.schedule = mesh.schedule;
  options.stage = mesh.stage;
  options.global_batch = kGlobalBatch;
  options.micro_batch = mesh.micro > 0 ? mesh.micro : 1;
  options.layers = 4;
  return options;
}

std::vector<TinyFamily> Families() {
  return {
      {"gpt2", {.dropout = 0.1}},
      {"llama", {.llama = true, .kv_heads = 4, .qkv_bias = true}},
      {"tied llama", {.llama = true, .tied = true, .activation = v1::LlamaSpec::ACTIVATION_GEGLU}},
      {"gemma3", {.llama = true, .tied = true, .gemma3 = true}},
      {"bert", {.dropout = 0.1, .bert = true, .documents = true}},
      {"heads", {.documents = true, .heads = true}}};
}

TEST(PipelineParallel, TrainsAsOneRankDoes) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const Trained alone = Train(job.Spec(On({}, family.options)));
    std::vector<Mesh> meshes = {{1, 1, 2, 1, k1F1B},
                                {2, 1, 2, 0, kZeroBubble},
                                {1, 2, 2, 1, k1F1B},
                                {1, 1, 4, 1, kZeroBubble}};
    if (family.name == "gpt2") {  // the rest is no matter of the family
      meshes.insert(meshes.end(), {{1, 1, 3, 0, k1F1B},
                                   {2, 1, 3, 1, kZeroBubble},
                                   {1, 1, 4, 1, k1F1B, 12},
                                   {1, 1, 4, 1, kZeroBubble, 6},
                                   {2, 1, 2, 2, k1F1B},
                                   {2, 1, 2, 3, kZeroBubble},
                                   {3, 1, 2, 3, k1F1B, 2},
                                   {2, 2, 2, 1, kZeroBubble, 2},
                                   {2, 2, 4, 1, k1F1B}});
    }
    for (const Mesh& mesh : meshes) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      ExpectAlike(Train(job.Spec(On(mesh, family.options))), alone, 1e-5);
    }
  }
}

TEST(PipelineParallel, WithRecomputation) {
  const TinyJob job;
  for (const v1::Recompute recompute : {v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_FULL}) {
    for (TinyFamily family : Families()) {
      const Trained alone = Train(job.Spec(On({}, family.options)));
      family.options.recompute = recompute;
      for (const v1::PipelineSchedule schedule : {k1F1B, kZeroBubble}) {
        SCOPED_TRACE(family.name);
        ExpectAlike(Train(job.Spec(On({2, 1, 2, 1, schedule}, family.options))), alone, 1e-5);
      }
    }
  }
}

TEST(PipelineParallel, InBf16) {
  const TinyJob job;
  for (TinyFamily family : Families()) {
    family.options.precision = v1::PRECISION_BF16;
    const Trained alone = Train(job.Spec(On({}, family.options)));
    for (const Mesh& mesh : {Mesh{1, 1, 2, 1, kZeroBubble}, Mesh{1, 2, 3, 1, k1F1B}}) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      ExpectAlike(Train(job.Spec(On(mesh, family.options))), alone, 2e-3);
    }
  }
}

TEST(PipelineParallel, BeginsWithTheValuesOfOneRank) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const Trained alone = TrainUntil(job.Spec(On({}, family.options)), 0);
    for (const Mesh& mesh : {Mesh{1, 1, 2, 0}, Mesh{2, 1, 3, 1}, Mesh{2, 2, 2, 3}}) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      const Trained staged = TrainUntil(job.Spec(On(mesh, family.options)), 0);
      EXPECT_TRUE(staged.snapshot.data == alone.snapshot.data);
      auto layout = state::StateLayout::FromProto(staged.snapshot.tensors);
      ASSERT_TRUE(layout.ok()) << layout.status();
      EXPECT_EQ(CheckCoverage(*layout, staged.snapshot.covered), absl::OkStatus());
    }
  }
}

TEST(PipelineParallel, GradientsOfEveryParameterAreThoseOfOneRank) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const auto spec = [&](const Mesh& mesh) {
      return WithOneStepOfSgd(job.Spec(On(mesh, family.options)));
    };
    const Snapshot start = TrainUntil(spec({}), 0).snapshot;
    const Snapshot alone = Train(spec({})).snapshot;
    for (const Mesh& mesh : {Mesh{1, 1, 4, 1, k1F1B}, Mesh{2, 2, 2, 1, kZeroBubble}}) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      ExpectSameStep(start, alone, Train(spec(mesh)).snapshot);
    }
  }
}

TEST(PipelineParallel, GoesOnAtEveryOtherMesh) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const Trained whole = Train(job.Spec(On({}, family.options)));
    const Mesh meshes[] = {
        {1, 1, 1, 0}, {1, 1, 2, 1, k1F1B}, {2, 2, 2, 1, kZeroBubble}, {2, 1, 4, 3, k1F1B}};
    for (const Mesh& from : meshes) {
      const Snapshot snapshot = TrainUntil(job.Spec(On(from, family.options)), 5).snapshot;
      for (const Mesh& to : meshes) {
        if (family.name != "gpt2" && &to - meshes > 2) continue;
        SCOPED_TRACE(absl::StrCat(family.name, " from ", NameOf(from), " to ", NameOf(to)));
        ExpectGoesOn(job.Spec(On(to, family.options)), snapshot, whole);
      }
    }
  }
}

TEST(PipelineParallel, HasTheSameBitsAgainAndAfterAResume) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    for (const v1::PipelineSchedule schedule : {k1F1B, kZeroBubble}) {
      ExpectSameBits(job.Spec(On({2, 1, 3, 1, schedule}, family.options)));
    }
  }
}

// Both orders add the same gradients in the same order.
TEST(PipelineParallel, SchedulesHaveTheSameBits) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const Trained one = Train(job.Spec(On({1, 1, 3, 1, k1F1B}, family.options)));
    const Trained other = Train(job.Spec(On({1, 1, 3, 1, kZeroBubble}, family.options)));
    EXPECT_EQ(one.losses, other.losses);
    EXPECT_TRUE(one.snapshot.data == other.snapshot.data) << family.name;
  }
}

TEST(PipelineParallel, WithAnAverageOfTheWeights) {
  const TinyJob job;
  const auto spec = [&](const Mesh& mesh) {
    v1::JobSpec made = job.Spec(On(mesh, {.llama = true, .tied = true}));
    made.mutable_train()->mutable_ema()->set_decay(0.9);
    NormalizeJobSpec(&made);
    return made;
  };
  const Trained alone = Train(spec({}));
  for (const Mesh& mesh : {Mesh{1, 1, 2, 0}, Mesh{2, 1, 2, 2}, Mesh{2, 1, 2, 3}}) {
    SCOPED_TRACE(NameOf(mesh));
    ExpectAlike(Train(spec(mesh)), alone, 1e-5);
  }
}

TEST(PipelineParallel, OfImages) {
  const TinyImages job;
  const auto spec = [&](const Mesh& mesh) {
    v1::JobSpec made = job.Spec({.ranks = mesh.data,
                                 .stage = mesh.stage,
                                 .global_batch = kGlobalBatch,
                                 .micro_batch = 2,
                                 .heads = true,
                                 .vit = true,
                                 .dropout = 0.1});
    made.mutable_resources()->set_ranks(mesh.data * mesh.pipeline);
    if (mesh.pipeline > 1) made.mutable_resources()->mutable_mesh()->set_pipeline(mesh.pipeline);
    made.mutable_train()->mutable_batch()->clear_accumulation();
    NormalizeJobSpec(&made);
    EXPECT_EQ(ValidateJobSpec(made), absl::OkStatus());
    return made;
  };
  const Trained alone = Train(spec({}));
  for (const Mesh& mesh : {Mesh{1, 1, 2, 0}, Mesh{2, 1, 2, 1}}) {
    SCOPED_TRACE(NameOf(mesh));
    ExpectAlike(Train(spec(mesh)), alone, 1e-5);
  }
}

// Norms are those of the whole model, in which tied weights count once: here every step is clipped.
TEST(PipelineParallel, ClipsByTheWholeModelsNorm) {
  const TinyJob job;
  const auto spec = [&](const Mesh& mesh) {
    v1::JobSpec made = job.Spec(On(mesh, {.llama = true, .tied = true}));
    made.mutable_train()->set_clip_norm(0.05);
    return made;
  };
  const Trained alone = Train(spec({}));
  for (const double norm : alone.norms) EXPECT_GT(norm, 0.05);
  ExpectAlike(Train(spec({2, 1, 3, 1})), alone, 1e-5);
}

// What is planned is what is sent, by each of a rank's communicators.
TEST(PipelineParallel, SendsWhatIsPlanned) {
  const TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    for (const Mesh& mesh : {Mesh{1, 1, 4, 0, k1F1B}, Mesh{2, 1, 2, 1, kZeroBubble}}) {
      SCOPED_TRACE(NameOf(mesh));
      ExpectSendsWhatIsPlanned(
          job.Spec(On(mesh, {.precision = precision, .llama = true, .tied = true})));
    }
  }
}

// A step that no rank takes: all see the same norm.
TEST(PipelineParallel, SkipsAStepOnAllRanks) {
  const TinyJob job;
  RunRanks(job.Spec(On({1, 1, 3, 1}, {})), [](int rank, TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    if (rank == 1) {
      for (const StateInterval& i : session.RestoreTargets()) {
        reinterpret_cast<float*>(i.data)[0] = std::numeric_limits<float>::infinity();
      }
    }
    ASSERT_EQ(session.FinishRestore(session.trainer_state()), absl::OkStatus());
    const auto report = session.Step(false);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->skipped);
  });
}

// Every rank of a pipeline whose peer goes comes back with an error, wherever it waits.
TEST(PipelineParallel, APeerThatGoesFailsAll) {
  const TinyJob job;
  ExpectAPeerThatGoesFailsAll(job.Spec(On({1, 1, 4, 1}, {})));
}

TEST(PipelineParallel, OtherOptimizers) {
  const TinyJob job;
  for (const auto type :
       {v1::OptimizerSpec::TYPE_SGD, v1::OptimizerSpec::TYPE_LION, v1::OptimizerSpec::TYPE_ADAN}) {
    const auto spec = [&](const Mesh& mesh) {
      v1::JobSpec made = job.Spec(On(mesh, {}));
      made.mutable_train()->clear_optimizer();
      made.mutable_train()->mutable_optimizer()->set_type(type);
      made.mutable_train()->mutable_optimizer()->set_lr(1e-3);
      NormalizeJobSpec(&made);
      return made;
    };
    SCOPED_TRACE(v1::OptimizerSpec::Type_Name(type));
    ExpectAlike(Train(spec({2, 1, 2, 1})), Train(spec({})), 1e-5);
  }
}

// A stage holds its blocks and no others.
TEST(PipelineParallel, ARankHoldsItsPart) {
  const TinyJob job;
  TinyOptions options{.llama = true, .kv_heads = 4};
  options.width = 128;
  options.head_dim = 32;
  options.hidden = 256;
  int64_t bytes[2] = {0, 0};
  for (const int pipeline : {1, 2}) {
    v1::JobSpec spec = job.Spec(On({1, 1, pipeline, 0}, options));
    spec.mutable_model()->mutable_llama()->set_layers(8);
    RunRanks(spec, [&](int rank, TrainingSession& session) {
      if (rank == 0) bytes[pipeline - 1] = session.plan().bytes_by_class[0];
    });
  }
  EXPECT_LT(bytes[1], 0.55 * static_cast<double>(bytes[0]));
}

}  // namespace
}  // namespace milepost::runtime
