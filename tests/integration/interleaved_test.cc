// Interleaved pipelines: stages with several runs of blocks train as one rank does, beside every
// other way to share out the work, and their state goes on at any other mesh.
#include <gtest/gtest.h>

#include <mutex>
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

struct Mesh {
  int data = 1;
  int tensor = 1;
  int pipeline = 1;
  int chunks = 0;
  int stage = 1;
  int64_t micro = 1;
  int context = 1;
  int expert = 1;
  v1::PipelineSchedule schedule = v1::PIPELINE_SCHEDULE_INTERLEAVED;
};

std::string NameOf(const Mesh& mesh) {
  return absl::StrCat("data ", mesh.data, ", tensor ", mesh.tensor, ", pipeline ", mesh.pipeline,
                      " x ", mesh.chunks, ", stage ", mesh.stage, ", micro ", mesh.micro,
                      ", context ", mesh.context, ", expert ", mesh.expert);
}

// Of 8 layers.
TinyOptions On(const Mesh& mesh, TinyOptions options) {
  options.ranks = mesh.data * mesh.tensor * mesh.pipeline * mesh.context;
  options.tensor = mesh.tensor;
  options.pipeline = mesh.pipeline;
  options.context = mesh.context;
  options.expert = mesh.expert;
  options.schedule = mesh.schedule;
  options.chunks = mesh.chunks;
  options.stage = mesh.stage;
  options.global_batch = kGlobalBatch;
  options.micro_batch = mesh.micro;
  options.layers = 8;
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

TEST(Interleaved, TrainsAsOneRankDoes) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const Trained alone = Train(job.Spec(On({}, family.options)));
    std::vector<Mesh> meshes = {{1, 1, 2, 2}, {1, 1, 3, 2, 0}};
    if (family.name == "gpt2") {                         // the rest is no matter of the family
      meshes.insert(meshes.end(), {{1, 1, 2, 3, 1},      // 12 micro-batches: six rounds
                                   {1, 1, 2, 4, 1, 4},   // 3: no whole rounds
                                   {1, 1, 4, 2, 0, 2},   // 6: one round and a half
                                   {1, 1, 4, 2, 1, 12},  // 1
                                   {1, 1, 3, 2, 1, 3},   // 4
                                   {2, 1, 2, 2, 0},
                                   {2, 1, 2, 2, 2},
                                   {2, 1, 2, 2, 3},
                                   {3, 1, 2, 2, 3, 2},
                                   {1, 2, 2, 2, 1},
                                   {2, 2, 2, 2, 1, 2}});
    }
    for (const Mesh& mesh : meshes) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      ExpectAlike(Train(job.Spec(On(mesh, family.options))), alone, 1e-5);
    }
  }
}

TEST(Interleaved, WithRecomputation) {
  const TinyJob job;
  for (const v1::Recompute recompute : {v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_FULL}) {
    for (TinyFamily family : Families()) {
      const Trained alone = Train(job.Spec(On({}, family.options)));
      family.options.recompute = recompute;
      SCOPED_TRACE(family.name);
      ExpectAlike(Train(job.Spec(On({2, 1, 2, 2}, family.options))), alone, 1e-5);
    }
  }
}

// Without tensor ranks: over 8 layers their sums are rounded to other losses than one rank's.
// HasTheBitsOfOtherSchedules has tensor ranks in bf16.
TEST(Interleaved, InBf16) {
  const TinyJob job;
  for (TinyFamily family : Families()) {
    family.options.precision = v1::PRECISION_BF16;
    const Trained alone = Train(job.Spec(On({}, family.options)));
    for (const Mesh& mesh : {Mesh{1, 1, 2, 2}, Mesh{1, 1, 3, 2}}) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      ExpectAlike(Train(job.Spec(On(mesh, family.options))), alone, 2e-3);
    }
  }
}

TEST(Interleaved, BeginsWithTheValuesOfOneRank) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const Trained alone = TrainUntil(job.Spec(On({}, family.options)), 0);
    for (const Mesh& mesh : {Mesh{1, 1, 2, 2, 0}, Mesh{2, 1, 3, 2, 1}, Mesh{2, 2, 2, 2, 3}}) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      const Trained staged = TrainUntil(job.Spec(On(mesh, family.options)), 0);
      EXPECT_TRUE(staged.snapshot.data == alone.snapshot.data);
      auto layout = state::StateLayout::FromProto(staged.snapshot.tensors);
      ASSERT_TRUE(layout.ok()) << layout.status();
      EXPECT_EQ(CheckCoverage(*layout, staged.snapshot.covered), absl::OkStatus());
    }
  }
}

TEST(Interleaved, GradientsOfEveryParameterAreThoseOfOneRank) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const auto spec = [&](const Mesh& mesh) {
      return WithOneStepOfSgd(job.Spec(On(mesh, family.options)));
    };
    const Snapshot start = TrainUntil(spec({}), 0).snapshot;
    const Snapshot alone = Train(spec({})).snapshot;
    for (const Mesh& mesh : {Mesh{1, 1, 4, 2}, Mesh{2, 2, 2, 2}}) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      ExpectSameStep(start, alone, Train(spec(mesh)).snapshot);
    }
  }
}

TEST(Interleaved, GoesOnAtEveryOtherMesh) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const Trained whole = Train(job.Spec(On({}, family.options)));
    Mesh plain{2, 1, 2, 0, 1};
    plain.schedule = v1::PIPELINE_SCHEDULE_ZERO_BUBBLE;
    const std::vector<Mesh> meshes = {{}, {1, 1, 2, 2, 0}, {2, 1, 3, 2, 3}, plain, {1, 2, 2, 4}};
    for (size_t i = 0; i < meshes.size(); ++i) {
      const Snapshot snapshot = TrainUntil(job.Spec(On(meshes[i], family.options)), 5).snapshot;
      for (size_t j = 0; j < meshes.size(); ++j) {
        // To an interleaved one from all, and back to one rank.
        const bool all = family.name == "gpt2";
        if (!all && j > 1) continue;
        SCOPED_TRACE(
            absl::StrCat(family.name, " from ", NameOf(meshes[i]), " to ", NameOf(meshes[j])));
        ExpectGoesOn(job.Spec(On(meshes[j], family.options)), snapshot, whole);
      }
    }
  }
}

// Gradients of a micro-batch are the same whoever makes them, and are added in the same order. Only
// the norm that clips them is added up by other ranks.
TEST(Interleaved, HasTheBitsOfOtherSchedules) {
  const TinyJob job;
  for (TinyFamily family : Families()) {
    for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
      family.options.precision = precision;
      const auto spec = [&](const Mesh& mesh) {
        v1::JobSpec made = job.Spec(On(mesh, family.options));
        made.mutable_train()->set_clip_norm(0);
        return made;
      };
      Mesh plain{1, 2, 2, 0};
      plain.schedule = v1::PIPELINE_SCHEDULE_1F1B;
      const Trained one = Train(spec(plain)), other = Train(spec({1, 2, 2, 2}));
      EXPECT_EQ(one.losses, other.losses) << family.name;
      EXPECT_TRUE(one.snapshot.data == other.snapshot.data) << family.name;
    }
  }
}

TEST(Interleaved, HasTheSameBitsAgainAndAfterAResume) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    ExpectSameBits(job.Spec(On({2, 1, 2, 2}, family.options)));
  }
}

// Beside ranks that divide sequences, and ranks that share out experts: what experts' rows are
// counted by goes through all runs, and what balances them comes back.
TEST(Interleaved, WithContextRanksAndExperts) {
  const TinyJob job;
  const TinyOptions llama{.llama = true, .kv_heads = 4};
  const Trained alone = Train(job.Spec(On({}, llama)));
  ExpectAlike(Train(job.Spec(On({1, 1, 2, 2, 1, 1, 2}, llama))), alone, 1e-5);
  ExpectAlike(Train(job.Spec(On({1, 2, 2, 2, 1, 1, 2}, llama))), alone, 1e-5);
  TinyOptions experts = llama;
  experts.experts = 4;
  const Trained mixture = Train(job.Spec(On({}, experts)));
  for (const Mesh& mesh :
       {Mesh{1, 1, 2, 2}, Mesh{1, 1, 3, 2}, Mesh{2, 1, 2, 2, 1, 1, 1, 2}, Mesh{1, 2, 2, 2, 1, 1}}) {
    SCOPED_TRACE(NameOf(mesh));
    ExpectAlike(Train(job.Spec(On(mesh, experts))), mixture, 1e-5);
  }
}

TEST(Interleaved, OfImages) {
  const TinyImages job;
  const auto spec = [&](int stages) {
    v1::JobSpec made = job.Spec({.ranks = 1,
                                 .stage = 1,
                                 .global_batch = kGlobalBatch,
                                 .micro_batch = 2,
                                 .heads = true,
                                 .vit = true,
                                 .dropout = 0.1});
    made.mutable_model()->mutable_vit()->set_layers(4);
    made.mutable_resources()->set_ranks(stages);
    if (stages > 1) {
      v1::MeshSpec* mesh = made.mutable_resources()->mutable_mesh();
      mesh->set_pipeline(stages);
      mesh->set_schedule(v1::PIPELINE_SCHEDULE_INTERLEAVED);
    }
    made.mutable_train()->mutable_batch()->clear_accumulation();
    NormalizeJobSpec(&made);
    EXPECT_EQ(ValidateJobSpec(made), absl::OkStatus());
    return made;
  };
  ExpectAlike(Train(spec(2)), Train(spec(1)), 1e-5);
}

// Norms are those of the whole model, in which tied weights count once: here every step is clipped.
TEST(Interleaved, ClipsByTheWholeModelsNorm) {
  const TinyJob job;
  const auto spec = [&](const Mesh& mesh) {
    v1::JobSpec made = job.Spec(On(mesh, {.llama = true, .tied = true}));
    made.mutable_train()->set_clip_norm(0.05);
    return made;
  };
  const Trained alone = Train(spec({}));
  for (const double norm : alone.norms) EXPECT_GT(norm, 0.05);
  ExpectAlike(Train(spec({2, 1, 3, 2})), alone, 1e-5);
}

// What is planned is what is sent: each run's activations and their gradients.
TEST(Interleaved, SendsWhatIsPlanned) {
  const TinyJob job;
  double bytes[2] = {0, 0};  // of all ranks, with one chunk and with two
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    for (const Mesh& mesh : {Mesh{1, 1, 4, 2}, Mesh{2, 1, 2, 2}, Mesh{1, 1, 2, 4, 0, 4}}) {
      SCOPED_TRACE(NameOf(mesh));
      ExpectSendsWhatIsPlanned(
          job.Spec(On(mesh, {.precision = precision, .llama = true, .tied = true})));
    }
  }
  for (const int chunks : {1, 2}) {
    Mesh mesh{1, 1, 2, chunks, 0};
    if (chunks == 1) mesh = {.pipeline = 2, .stage = 0, .schedule = v1::PIPELINE_SCHEDULE_1F1B};
    std::mutex mutex;
    RunRanks(job.Spec(On(mesh, {.llama = true})), [&](int, TrainingSession& session) {
      const std::lock_guard lock(mutex);
      for (const plan::PlannedOp& op : session.plan().train.ops) {
        if (op.op.kind == graph::OpKind::kStageSend) bytes[chunks - 1] += op.wire_bytes;
      }
    });
  }
  EXPECT_DOUBLE_EQ(bytes[1], 3 * bytes[0]);  // three borders between runs in place of one
}

// Every rank of a ring whose peer goes comes back with an error, wherever it waits.
TEST(Interleaved, APeerThatGoesFailsAll) {
  const TinyJob job;
  ExpectAPeerThatGoesFailsAll(job.Spec(On({1, 1, 3, 2}, {})));
}

TEST(Interleaved, WithAnAverageAndOtherOptimizers) {
  const TinyJob job;
  for (const auto type :
       {v1::OptimizerSpec::TYPE_SGD, v1::OptimizerSpec::TYPE_LION, v1::OptimizerSpec::TYPE_ADAN}) {
    const auto spec = [&](const Mesh& mesh) {
      v1::JobSpec made = job.Spec(On(mesh, {}));
      made.mutable_train()->clear_optimizer();
      made.mutable_train()->mutable_optimizer()->set_type(type);
      made.mutable_train()->mutable_optimizer()->set_lr(1e-3);
      made.mutable_train()->mutable_ema()->set_decay(0.9);
      NormalizeJobSpec(&made);
      return made;
    };
    SCOPED_TRACE(v1::OptimizerSpec::Type_Name(type));
    ExpectAlike(Train(spec({2, 1, 2, 2})), Train(spec({})), 1e-5);
  }
}

}  // namespace
}  // namespace milepost::runtime
