// Three ranks that divide each layer, of models whose heads and widths three divides. They train as
// one rank does, also with stages or context ranks, and their state goes on at any other mesh.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/runtime/testing/mesh_runs.h"
#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_job.h"
#include "engine/state/layout.h"

namespace milepost::runtime {
namespace {

constexpr int64_t kGlobalBatch = 12;

struct Mesh {
  int data = 1;
  int tensor = 1;
  int stage = 1;
  int pipeline = 1;
  int context = 1;
  v1::PipelineSchedule schedule = v1::PIPELINE_SCHEDULE_UNSPECIFIED;
};

std::string NameOf(const Mesh& mesh) {
  return absl::StrCat("data ", mesh.data, ", tensor ", mesh.tensor, ", stage ", mesh.stage,
                      ", pipeline ", mesh.pipeline, ", context ", mesh.context);
}

// At odd stages and in pipelines with two micro-batches.
TinyOptions On(const Mesh& mesh, TinyOptions options) {
  options.ranks = mesh.data * mesh.tensor * mesh.pipeline * mesh.context;
  options.tensor = mesh.tensor;
  options.pipeline = mesh.pipeline;
  options.schedule = mesh.schedule;
  options.context = mesh.context;
  options.stage = mesh.stage;
  options.global_batch = kGlobalBatch;
  const bool two = mesh.stage % 2 == 1 || mesh.pipeline > 1;
  options.micro_batch = kGlobalBatch / mesh.data / (two ? 2 : 1);
  options.width = 48;
  options.attention_heads = 6;
  return options;
}

// Of 61 words two ranks have places for 24, and the third has 13.
std::vector<TinyFamily> Families() {
  return {{"gpt2", {.dropout = 0.1}},
          {"llama", {.llama = true, .kv_heads = 3, .qkv_bias = true}},
          {"qwen3", {.llama = true, .kv_heads = 6, .qk_norm = true}},
          {"one head of keys", {.llama = true, .kv_heads = 1, .qkv_bias = true}},
          {"gemma3", {.llama = true, .kv_heads = 3, .tied = true, .gemma3 = true}},
          {"bert", {.dropout = 0.1, .bert = true, .documents = true}},
          {"heads", {.documents = true, .heads = true}}};
}

TEST(TensorByThree, TrainsAsOneRankDoes) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const Trained alone = Train(job.Spec(On({}, family.options)));
    for (const Mesh& mesh : {Mesh{1, 3, 0}, Mesh{1, 3, 1}, Mesh{2, 3, 2}, Mesh{2, 3, 3}}) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      ExpectAlike(Train(job.Spec(On(mesh, family.options))), alone, 1e-5);
    }
  }
}

TEST(TensorByThree, InBf16) {
  const TinyJob job;
  for (TinyFamily family : Families()) {
    family.options.precision = v1::PRECISION_BF16;
    const Trained alone = Train(job.Spec(On({}, family.options)));
    for (const Mesh& mesh : {Mesh{1, 3, 1}, Mesh{2, 3, 3}}) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      ExpectAlike(Train(job.Spec(On(mesh, family.options))), alone, 2e-3);
    }
  }
}

TEST(TensorByThree, WithRecomputation) {
  const TinyJob job;
  for (const v1::Recompute recompute : {v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_FULL}) {
    for (TinyFamily family : Families()) {
      const Trained alone = Train(job.Spec(On({}, family.options)));
      family.options.recompute = recompute;
      SCOPED_TRACE(family.name);
      ExpectAlike(Train(job.Spec(On({2, 3, 3}, family.options))), alone, 1e-5);
    }
  }
}

// Twelve ranks: two data ranks, of two stages or two context ranks of three tensor ranks each.
TEST(TensorByThree, WithStagesAndContextRanks) {
  const TinyJob job;
  for (TinyFamily family : Families()) {
    for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
      family.options.precision = precision;
      const double tolerance = precision == v1::PRECISION_FP32 ? 1e-5 : 2e-3;
      const Trained alone = Train(job.Spec(On({}, family.options)));
      for (const Mesh& mesh :
           {Mesh{2, 3, 1, 2, 1, v1::PIPELINE_SCHEDULE_ZERO_BUBBLE},
            Mesh{1, 3, 1, 2, 1, v1::PIPELINE_SCHEDULE_1F1B}, Mesh{2, 3, 3, 1, 2}}) {
        SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
        ExpectAlike(Train(job.Spec(On(mesh, family.options))), alone, tolerance);
      }
    }
  }
}

// To the bit, and every element is saved once.
TEST(TensorByThree, BeginsWithTheValuesOfOneRank) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const Trained alone = TrainUntil(job.Spec(On({}, family.options)), 0);
    for (const Mesh& mesh : {Mesh{1, 3, 0}, Mesh{2, 3, 1}, Mesh{3, 3, 3}}) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      const Snapshot divided = TrainUntil(job.Spec(On(mesh, family.options)), 0).snapshot;
      EXPECT_TRUE(divided.data == alone.snapshot.data);
      auto layout = state::StateLayout::FromProto(divided.tensors);
      ASSERT_TRUE(layout.ok()) << layout.status();
      EXPECT_EQ(CheckCoverage(*layout, divided.covered), absl::OkStatus());
    }
  }
}

TEST(TensorByThree, GradientsOfEveryParameterAreThoseOfOneRank) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const auto spec = [&](const Mesh& mesh) {
      return WithOneStepOfSgd(job.Spec(On(mesh, family.options)));
    };
    SCOPED_TRACE(family.name);
    const Snapshot start = TrainUntil(spec({}), 0).snapshot;
    ExpectSameStep(start, Train(spec({})).snapshot, Train(spec({2, 3, 1})).snapshot);
  }
}

TEST(TensorByThree, GoesOnAtEveryOtherMesh) {
  const TinyJob job;
  for (TinyFamily family : Families()) {
    if (family.options.llama) family.options.kv_heads = 6;
    const Trained whole = Train(job.Spec(On({}, family.options)));
    const std::vector<Mesh> meshes = {{1, 3, 1}, {2, 2, 3}, {2, 1, 0}, {1, 3, 1, 2, 1}};
    for (const Mesh& from : meshes) {
      const Snapshot snapshot = TrainUntil(job.Spec(On(from, family.options)), 5).snapshot;
      for (const Mesh& to : meshes) {
        if (from.tensor != 3 && to.tensor != 3) continue;
        SCOPED_TRACE(absl::StrCat(family.name, " from ", NameOf(from), " to ", NameOf(to)));
        ExpectGoesOn(job.Spec(On(to, family.options)), snapshot, whole);
      }
    }
  }
}

TEST(TensorByThree, HasTheSameBitsAgainAndAfterAResume) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    ExpectSameBits(job.Spec(On({2, 3, 2}, family.options)));
  }
}

}  // namespace
}  // namespace milepost::runtime
