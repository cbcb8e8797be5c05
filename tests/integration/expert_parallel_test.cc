// Expert parallelism: ranks that share out a layer's experts train as one rank does, at every ZeRO
// stage and number of data ranks, alone, in the stages of a pipeline and beside tensor ranks, and
// their state goes on at any other mesh.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "engine/runtime/testing/mesh_runs.h"
#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_job.h"
#include "engine/state/layout.h"

namespace milepost::runtime {
namespace {

constexpr auto kOneF1B = v1::PIPELINE_SCHEDULE_1F1B;
constexpr auto kZeroBubble = v1::PIPELINE_SCHEDULE_ZERO_BUBBLE;

struct Mesh {
  int ranks = 1;
  int expert = 1;
  int stage = 1;
  int context = 1;
  int pipeline = 1;
  v1::PipelineSchedule schedule = kOneF1B;
  int tensor = 1;
};

std::string NameOf(const Mesh& mesh) {
  return absl::StrCat(mesh.ranks, " ranks, expert ", mesh.expert, ", stage ", mesh.stage,
                      ", context ", mesh.context, ", pipeline ", mesh.pipeline, ", schedule ",
                      mesh.schedule, ", tensor ", mesh.tensor);
}

// Experts are balanced over a micro-batch: all have the same ones.
TinyOptions On(const Mesh& mesh, TinyOptions options) {
  options.ranks = mesh.ranks;
  options.expert = mesh.expert;
  options.context = mesh.context;
  options.stage = mesh.stage;
  options.pipeline = mesh.pipeline;
  options.schedule = mesh.schedule;
  options.tensor = mesh.tensor;
  options.global_batch = 8;
  options.micro_batch = 2;
  return options;
}

std::vector<TinyFamily> Families() {
  return {{"mixtral", {.llama = true, .kv_heads = 4, .experts = 4}},
          {"packed mixtral", {.llama = true, .tied = true, .experts = 8, .documents = true}},
          {"qwen3 moe", {.llama = true, .qk_norm = true, .experts = 8, .per_token = 3}},
          {"one for each token", {.llama = true, .experts = 4, .per_token = 1}},
          {"all for each token", {.llama = true, .experts = 4, .per_token = 4}}};
}

TEST(ExpertParallel, TrainsAsOneRankDoes) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const Trained alone = Train(job.Spec(On({}, family.options)));
    std::vector<Mesh> meshes = {{2, 2, 1}, {4, 2, 3}};
    if (family.name == "mixtral") {  // the rest is no matter of the family
      meshes.insert(meshes.end(),
                    {{2, 2, 0}, {2, 2, 2}, {2, 2, 3}, {4, 2, 0}, {4, 2, 1}, {4, 2, 2}});
    }
    meshes.insert(meshes.end(), {{4, 4, 0}, {4, 4, 2}});
    for (const Mesh& mesh : meshes) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      ExpectAlike(Train(job.Spec(On(mesh, family.options))), alone, 1e-5);
    }
  }
}

// Of these one rank has several groups.
TEST(ExpertParallel, EightRanksWithTwoExpertsEach) {
  const TinyJob job;
  TinyOptions options{.llama = true, .experts = 8, .per_token = 3};
  const auto on = [&](const Mesh& mesh) {
    TinyOptions with = On(mesh, options);
    with.global_batch = 16;
    return job.Spec(with);
  };
  const Trained alone = Train(on({}));
  for (const Mesh& mesh : {Mesh{8, 4, 1}, Mesh{8, 4, 3}, Mesh{8, 8, 2}}) {
    SCOPED_TRACE(NameOf(mesh));
    ExpectAlike(Train(on(mesh)), alone, 1e-5);
  }
}

TEST(ExpertParallel, WithRecomputation) {
  const TinyJob job;
  for (const v1::Recompute recompute : {v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_FULL}) {
    for (TinyFamily family : Families()) {
      const Trained alone = Train(job.Spec(On({}, family.options)));
      family.options.recompute = recompute;
      SCOPED_TRACE(family.name);
      ExpectAlike(Train(job.Spec(On({4, 2, 3}, family.options))), alone, 1e-5);
    }
  }
}

TEST(ExpertParallel, InBf16) {
  const TinyJob job;
  for (TinyFamily family : Families()) {
    family.options.precision = v1::PRECISION_BF16;
    const Trained alone = Train(job.Spec(On({}, family.options)));
    for (const Mesh& mesh : {Mesh{2, 2, 1}, Mesh{4, 2, 3}}) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      ExpectAlike(Train(job.Spec(On(mesh, family.options))), alone, 2e-3);
    }
  }
}

// Experts are balanced over a rank's own tokens, and here these are fewer.
TEST(ExpertParallel, WithContextRanks) {
  const TinyJob job;
  for (TinyFamily family : Families()) {
    family.options.balance = 0;
    const Trained alone = Train(job.Spec(On({}, family.options)));
    for (const Mesh& mesh : {Mesh{4, 2, 1, 2}, Mesh{4, 4, 3, 2}, Mesh{4, 2, 2, 4}}) {
      if (family.options.kv_heads < 4 && mesh.context == 4) continue;
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      ExpectAlike(Train(job.Spec(On(mesh, family.options))), alone, 1e-5);
    }
  }
}

// Of four layers. Experts are balanced over all of them, whatever stage they are in.
std::vector<Mesh> MeshesOfStages() {
  std::vector<Mesh> meshes;
  for (const v1::PipelineSchedule schedule : {kOneF1B, kZeroBubble}) {
    meshes.insert(meshes.end(), {{2, 1, 1, 1, 2, schedule},
                                 {4, 1, 0, 1, 4, schedule},
                                 {4, 2, 1, 1, 2, schedule},
                                 {4, 2, 3, 1, 2, schedule},
                                 {8, 4, 2, 1, 2, schedule}});
  }
  return meshes;
}

// Those of `meshes` whose tensor ranks divide the family's heads. From ZeRO stage 3 on with
// recomputation.
void ExpectLossesOfOneRank(const TinyJob& job, const TinyFamily& family,
                           const std::vector<Mesh>& meshes) {
  const Trained alone = Train(job.Spec(On({}, family.options)));
  const bool fp32 = family.options.precision == v1::PRECISION_FP32;
  for (const Mesh& mesh : meshes) {
    SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
    TinyOptions options = On(mesh, family.options);
    if (mesh.stage == 3) options.recompute = v1::RECOMPUTE_FULL;
    ExpectAlike(Train(job.Spec(options)), alone, fp32 ? 1e-5 : 2e-3);
  }
}

// With ten times the losses that balance experts: a gradient without them would be another.
void ExpectGradientsOfOneRank(const TinyJob& job, TinyFamily family,
                              const std::vector<Mesh>& meshes) {
  family.options.balance = 0.2;
  const auto spec = [&](const Mesh& mesh) {
    return WithOneStepOfSgd(job.Spec(On(mesh, family.options)));
  };
  const Snapshot start = TrainUntil(spec({}), 0).snapshot;
  const Snapshot alone = Train(spec({})).snapshot;
  for (const Mesh& mesh : meshes) {
    SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
    ExpectSameStep(start, alone, Train(spec(mesh)).snapshot);
  }
}

TEST(ExpertParallel, InTheStagesOfAPipeline) {
  const TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    for (TinyFamily family : Families()) {
      family.options.layers = 4;
      family.options.precision = precision;
      ExpectLossesOfOneRank(job, family, MeshesOfStages());
    }
  }
}

// What balances the experts of a stage goes back to it from the last one.
TEST(ExpertParallel, GradientsInStagesAreThoseOfOneRank) {
  const TinyJob job;
  for (TinyFamily family : Families()) {
    family.options.layers = 4;
    ExpectGradientsOfOneRank(job, family, MeshesOfStages());
  }
}

std::vector<Mesh> MeshesOfTensorRanks() {
  return {{2, 1, 1, 1, 1, kOneF1B, 2},  // alone
          {4, 1, 3, 1, 1, kOneF1B, 2},  // with data ranks
          {4, 2, 2, 1, 1, kOneF1B, 2},  // that share out the experts
          {8, 4, 3, 1, 1, kOneF1B, 2},     {4, 1, 1, 1, 2, kOneF1B, 2},  // with stages
          {8, 2, 1, 1, 2, kZeroBubble, 2},                               // with both
          {4, 1, 0, 1, 1, kOneF1B, 4}};
}

TEST(ExpertParallel, TensorRanksDivideEveryExpert) {
  const TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    for (TinyFamily family : Families()) {
      family.options.precision = precision;
      ExpectLossesOfOneRank(job, family, MeshesOfTensorRanks());
    }
  }
}

TEST(ExpertParallel, GradientsOfTensorRanksAreThoseOfOneRank) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    ExpectGradientsOfOneRank(job, family, MeshesOfTensorRanks());
  }
}

void Freeze(const char* match, v1::JobSpec* spec) {
  v1::ParameterGroupSpec& group = *spec->mutable_train()->mutable_optimizer()->add_groups();
  group.set_match(match);
  group.set_freeze(true);
}

TEST(ExpertParallel, TensorRanksWithWhatElseThereIs) {
  const TinyJob job;
  struct Case {
    std::string name;
    Mesh mesh;
    void (*change)(v1::JobSpec*);
  };
  const Mesh tensor = {4, 2, 1, 1, 1, kOneF1B, 2};
  const auto nothing = [](v1::JobSpec*) {};
  const std::vector<Case> cases = {
      {"context", {8, 2, 1, 2, 1, kOneF1B, 2}, nothing},
      {"middle stage", {8, 1, 1, 1, 4, kZeroBubble, 2}, nothing},
      {"average", tensor,
       [](v1::JobSpec* s) { s->mutable_train()->mutable_ema()->set_decay(0.9); }},
      {"frozen router", tensor, [](v1::JobSpec* s) { Freeze("*block_sparse_moe.gate*", s); }},
      {"frozen experts", tensor, [](v1::JobSpec* s) { Freeze("*experts*", s); }}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    const auto spec = [&](const Mesh& mesh) {
      v1::JobSpec made = job.Spec(
          On(mesh, {.layers = 4, .llama = true, .kv_heads = 4, .experts = 4, .balance = 0}));
      one.change(&made);
      NormalizeJobSpec(&made);
      EXPECT_EQ(ValidateJobSpec(made), absl::OkStatus());
      return made;
    };
    ExpectAlike(Train(spec(one.mesh)), Train(spec({})), 1e-5);
  }
}

TEST(ExpertParallel, StagesGoOnAtEveryOtherMeshAndHaveTheSameBitsAgain) {
  const TinyJob job;
  const TinyOptions options{.layers = 4, .llama = true, .kv_heads = 4, .experts = 4};
  const Trained whole = Train(job.Spec(On({}, options)));
  const std::vector<Mesh> others = {
      {1, 1, 0}, {4, 2, 3}, {4, 2, 1, 1, 2}, {4, 1, 1, 1, 4}, {4, 2, 2, 1, 1, kOneF1B, 2}};
  for (const Mesh& from : others) {
    const Snapshot snapshot = TrainUntil(job.Spec(On(from, options)), 5).snapshot;
    for (const Mesh& to : others) {
      SCOPED_TRACE(absl::StrCat("from ", NameOf(from), " to ", NameOf(to)));
      ExpectGoesOn(job.Spec(On(to, options)), snapshot, whole);
    }
  }
  ExpectSameBits(job.Spec(On({4, 2, 3, 1, 2, kZeroBubble}, options)));
  ExpectSameBits(job.Spec(On({8, 2, 3, 1, 2, kZeroBubble, 2}, options)));
}

// Whatever tokens pick, there is room for it: here one rank's experts get all of them.
TEST(ExpertParallel, AllTokensMayPickTheSameExperts) {
  const TinyJob job;
  const TinyOptions options{.llama = true, .experts = 4};
  Snapshot start = TrainUntil(job.Spec(On({}, options)), 0).snapshot;
  for (size_t t = 0; t < start.tensors.size(); ++t) {  // of equal logits the first ones
    if (!absl::StrContains(start.tensors[t].name(), "block_sparse_moe.gate.")) continue;
    if (start.tensors[t].kind() != "master") continue;
    std::fill_n(start.data[t].at(0), start.data[t].size() * sizeof(float), 0);
  }
  const Trained alone = Train(job.Spec(On({}, options)), &start);
  for (const Mesh& mesh : {Mesh{2, 2, 1}, Mesh{4, 2, 3}, Mesh{4, 4, 2}}) {
    SCOPED_TRACE(NameOf(mesh));
    ExpectAlike(Train(job.Spec(On(mesh, options)), &start), alone, 1e-5);
  }
}

TEST(ExpertParallel, BeginsWithTheValuesOfOneRankAndSavesEachElementOnce) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const Trained alone = TrainUntil(job.Spec(On({}, family.options)), 0);
    for (const Mesh& mesh : {Mesh{2, 2, 0}, Mesh{4, 2, 1}, Mesh{4, 2, 3}, Mesh{4, 4, 3},
                             Mesh{4, 2, 1, 1, 1, kOneF1B, 2}, Mesh{8, 2, 3, 1, 2, kOneF1B, 2}}) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      const Snapshot snapshot = TrainUntil(job.Spec(On(mesh, family.options)), 0).snapshot;
      EXPECT_TRUE(snapshot.data == alone.snapshot.data);
      auto layout = state::StateLayout::FromProto(snapshot.tensors);
      ASSERT_TRUE(layout.ok()) << layout.status();
      EXPECT_EQ(CheckCoverage(*layout, snapshot.covered), absl::OkStatus());
    }
  }
}

TEST(ExpertParallel, GradientsOfEveryParameterAreThoseOfOneRank) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const auto spec = [&](const Mesh& mesh) {
      return WithOneStepOfSgd(job.Spec(On(mesh, family.options)));
    };
    SCOPED_TRACE(family.name);
    const Snapshot start = TrainUntil(spec({}), 0).snapshot;
    const Snapshot alone = Train(spec({})).snapshot;
    for (const Mesh& mesh : {Mesh{4, 2, 1}, Mesh{4, 4, 3}}) {
      SCOPED_TRACE(NameOf(mesh));
      ExpectSameStep(start, alone, Train(spec(mesh)).snapshot);
    }
  }
}

TEST(ExpertParallel, GoesOnAtEveryOtherMesh) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const Trained whole = Train(job.Spec(On({}, family.options)));
    const std::vector<Mesh> others = {{1, 1, 0}, {2, 2, 1}, {4, 2, 3}, {4, 4, 2}, {2, 1, 2}};
    for (const Mesh& from : others) {
      const Snapshot snapshot = TrainUntil(job.Spec(On(from, family.options)), 5).snapshot;
      for (const Mesh& to : others) {
        SCOPED_TRACE(absl::StrCat(family.name, " from ", NameOf(from), " to ", NameOf(to)));
        ExpectGoesOn(job.Spec(On(to, family.options)), snapshot, whole);
      }
    }
  }
}

TEST(ExpertParallel, HasTheSameBitsAgainAndAfterAResume) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    ExpectSameBits(job.Spec(On({4, 2, 2}, family.options)));
  }
}

struct ExpertCase {
  std::string name;
  void (*change)(v1::JobSpec*) = [](v1::JobSpec*) {};
  v1::Precision precision = v1::PRECISION_FP32;
  double tolerance = 1e-5;
};

void StepBy(v1::OptimizerSpec::Type type, v1::JobSpec* spec) {
  spec->mutable_train()->clear_optimizer();
  spec->mutable_train()->mutable_optimizer()->set_type(type);
  spec->mutable_train()->mutable_optimizer()->set_lr(1e-3);
}

// In fewer bits as other numbers of data ranks are held to (fewer_bits_test.cc).
std::vector<ExpertCase> Cases() {
  return {{"lion", [](v1::JobSpec* s) { StepBy(v1::OptimizerSpec::TYPE_LION, s); }},
          {"adan", [](v1::JobSpec* s) { StepBy(v1::OptimizerSpec::TYPE_ADAN, s); }},
          {"8 bits", [](v1::JobSpec* s) { StepBy(v1::OptimizerSpec::TYPE_ADAMW_8BIT, s); },
           v1::PRECISION_FP32, 5e-3},
          {"rounded at random",
           [](v1::JobSpec* s) {
             s->mutable_train()->mutable_optimizer()->set_state_dtype(v1::STATE_DTYPE_BF16);
             s->mutable_train()->mutable_optimizer()->set_master(v1::MASTER_DTYPE_NONE);
           },
           v1::PRECISION_BF16, 5e-3},
          {"average", [](v1::JobSpec* s) { s->mutable_train()->mutable_ema()->set_decay(0.9); }},
          {"clipping", [](v1::JobSpec* s) { s->mutable_train()->set_clip_norm(0.05); }},
          {"frozen experts",
           [](v1::JobSpec* s) {
             v1::ParameterGroupSpec& group = *s->mutable_train()->mutable_optimizer()->add_groups();
             group.set_match("*experts*");
             group.set_freeze(true);
           }},
          {"frozen beside experts",
           [](v1::JobSpec* s) {
             for (const char* match : {"*experts*", "*"}) {
               v1::ParameterGroupSpec& group =
                   *s->mutable_train()->mutable_optimizer()->add_groups();
               group.set_match(match);
               group.set_freeze(std::string(match) == "*");
             }
           }},
          {"sums in bf16",
           [](v1::JobSpec* s) { s->mutable_train()->set_grad_reduce(v1::GRAD_REDUCE_BF16); },
           v1::PRECISION_FP32, 2e-3},
          {"fp16", [](v1::JobSpec*) {}, v1::PRECISION_FP16, 2e-3},
          {"offload", [](v1::JobSpec* s) {
             s->mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
             s->mutable_train()->mutable_offload()->set_activations(true);
           }}};
}

// To the rest of a job expert ranks are data ranks.
TEST(ExpertParallel, WithWhatDataRanksHave) {
  const TinyJob job;
  for (const ExpertCase& one : Cases()) {
    const auto spec = [&](const Mesh& mesh) {
      v1::JobSpec made =
          job.Spec(On(mesh, {.precision = one.precision, .llama = true, .experts = 4}));
      one.change(&made);
      NormalizeJobSpec(&made);
      EXPECT_EQ(ValidateJobSpec(made), absl::OkStatus()) << one.name;
      return made;
    };
    SCOPED_TRACE(one.name);
    const Trained alone = Train(spec({}));
    for (const Mesh& mesh : {Mesh{2, 2, 1}, Mesh{4, 2, 2}, Mesh{4, 2, 3}}) {
      SCOPED_TRACE(NameOf(mesh));
      ExpectAlike(Train(spec(mesh)), alone, one.tolerance);
    }
  }
}

// Where all experts are used alike, what is planned is what is sent.
TEST(ExpertParallel, SendsWhatIsPlanned) {
  const TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    for (const Mesh& mesh : {Mesh{2, 2, 0}, Mesh{4, 2, 1}, Mesh{4, 2, 3}, Mesh{4, 4, 2},
                             Mesh{4, 2, 1, 1, 1, kOneF1B, 2}}) {
      SCOPED_TRACE(NameOf(mesh));
      ExpectSendsWhatIsPlanned(job.Spec(
          On(mesh, {.precision = precision, .llama = true, .experts = 4, .per_token = 4})));
    }
  }
}

TEST(ExpertParallel, ARankHoldsItsShareOfTheExperts) {
  const TinyJob job;
  TinyOptions options{.width = 64, .llama = true, .hidden = 256, .experts = 8};
  int64_t bytes[2] = {0, 0};
  for (const int expert : {1, 4}) {
    RunRanks(job.Spec(On({4, expert, 0}, options)), [&](int rank, TrainingSession& session) {
      constexpr auto kOptimizer = static_cast<size_t>(plan::BufferClass::kOptimizer);
      if (rank == 0) bytes[expert / 4] = session.plan().bytes_by_class[kOptimizer];
    });
  }
  // Nearly all parameters are experts'.
  EXPECT_LT(bytes[1], 0.3 * static_cast<double>(bytes[0]));
}

}  // namespace
}  // namespace milepost::runtime
