// Context parallelism: ranks that divide the tokens of their sequences train as one rank does, at
// every ZeRO stage and number of data and tensor ranks, and their state goes on at any other mesh.
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
  int context = 1;
  int tensor = 1;
  int stage = 1;
  int group = 0;
};

std::string NameOf(const Mesh& mesh) {
  return absl::StrCat("data ", mesh.data, ", context ", mesh.context, ", tensor ", mesh.tensor,
                      ", stage ", mesh.stage, ", group ", mesh.group);
}

// At odd stages with two micro-batches.
TinyOptions On(const Mesh& mesh, TinyOptions options) {
  options.ranks = mesh.data * mesh.context * mesh.tensor;
  options.tensor = mesh.tensor;
  options.context = mesh.context;
  options.stage = mesh.stage;
  options.group = mesh.group;
  options.global_batch = kGlobalBatch;
  options.micro_batch = kGlobalBatch / mesh.data / (1 + mesh.stage % 2);
  return options;
}

// OLMo 3's norms of all heads at once have no tensor ranks.
std::vector<TinyFamily> Families() {
  return {{"gpt2", {.dropout = 0.1}},
          {"packed gpt2", {.dropout = 0.1, .documents = true}},
          {"llama", {.llama = true, .kv_heads = 4, .qkv_bias = true}},
          {"packed llama", {.llama = true, .tied = true, .documents = true}},
          {"qwen3", {.llama = true, .kv_heads = 4, .qk_norm = true}},
          {"gemma3", {.llama = true, .tied = true, .gemma3 = true}},
          {"olmo3", {.llama = true, .kv_heads = 4, .olmo3 = true}},
          {"bert", {.dropout = 0.1, .bert = true, .documents = true}},
          {"distilbert", {.dropout = 0.1, .bert = true, .distilbert = true}},
          {"heads", {.documents = true, .heads = true}}};
}

TEST(ContextParallel, TrainsAsOneRankDoes) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const Trained alone = Train(job.Spec(On({}, family.options)));
    std::vector<Mesh> meshes = {{1, 2, 1, 1}, {2, 2, 1, 0}, {2, 2, 1, 3}};
    if (family.name == "gpt2") {  // the rest is no matter of the family
      meshes.insert(meshes.end(), {{1, 2, 1, 0},
                                   {1, 2, 1, 3},
                                   {2, 2, 1, 1},
                                   {2, 2, 1, 2},
                                   {3, 2, 1, 2},
                                   {2, 2, 1, 3, /*group=*/2},
                                   {4, 2, 1, 2, /*group=*/4}});
    }
    for (const Mesh& mesh : meshes) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      ExpectAlike(Train(job.Spec(On(mesh, family.options))), alone, 1e-5);
    }
  }
}

TEST(ContextParallel, FourRanksHaveAHeadEach) {
  const TinyJob job;
  for (const TinyOptions& options :
       {TinyOptions{.dropout = 0.1}, TinyOptions{.llama = true, .kv_heads = 4, .qk_norm = true},
        TinyOptions{.dropout = 0.1, .bert = true}}) {
    const Trained alone = Train(job.Spec(On({}, options)));
    for (const Mesh& mesh : {Mesh{1, 4, 1, 1}, Mesh{2, 4, 1, 3}}) {
      SCOPED_TRACE(NameOf(mesh));
      ExpectAlike(Train(job.Spec(On(mesh, options))), alone, 1e-5);
    }
  }
}

// Two heads of keys, or one, for four ranks.
TEST(ContextParallel, RanksShareHeadsOfKeysThatAreFewer) {
  const TinyJob job;
  for (const int64_t kv_heads : {1, 2}) {
    for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
      const TinyOptions options{
          .precision = precision, .llama = true, .kv_heads = kv_heads, .qk_norm = true};
      const double tolerance = precision == v1::PRECISION_FP32 ? 1e-5 : 2e-3;
      const Trained alone = Train(job.Spec(On({}, options)));
      for (const Mesh& mesh : {Mesh{1, 4, 1, 1}, Mesh{2, 4, 1, 2}}) {
        SCOPED_TRACE(absl::StrCat(kv_heads, " heads on ", NameOf(mesh)));
        ExpectAlike(Train(job.Spec(On(mesh, options))), alone, tolerance);
      }
    }
    const auto spec = [&](const Mesh& mesh) {
      return WithOneStepOfSgd(
          job.Spec(On(mesh, {.llama = true, .kv_heads = kv_heads, .qkv_bias = true})));
    };
    const Snapshot start = TrainUntil(spec({}), 0).snapshot;
    ExpectSameStep(start, Train(spec({})).snapshot, Train(spec({1, 4, 1, 1})).snapshot);
  }
}

// Long enough for several blocks of queries.
TinyOptions OnLongSequences(const Mesh& mesh, TinyOptions options) {
  options.ranks = mesh.data * mesh.context * mesh.tensor;
  options.tensor = mesh.tensor;
  options.context = mesh.context;
  options.stage = mesh.stage;
  options.sequence = 240;
  options.global_batch = 4;
  options.micro_batch = 4 / mesh.data / (1 + mesh.stage % 2);
  return options;
}

struct FewHeads {
  std::string name;
  TinyOptions options;
  std::vector<Mesh> meshes;
};

// Of one head two or three ranks have a part of the queries each; of two heads, four or six; of
// four, eight, which share two heads of keys besides.
std::vector<FewHeads> CasesOfFewHeads() {
  return {{"gpt2", {.attention_heads = 1, .dropout = 0.1}, {{1, 2, 1, 1}, {2, 3, 1, 3}}},
          {"packed gpt2",
           {.attention_heads = 2, .dropout = 0.1, .documents = true},
           {{1, 4, 1, 0}, {1, 6, 1, 2}, {1, 2, 2, 1}, {2, 2, 2, 3}}},
          {"packed qwen3",
           {.attention_heads = 2, .llama = true, .kv_heads = 1, .qk_norm = true, .documents = true},
           {{1, 4, 1, 1}, {2, 4, 1, 3}}},
          {"llama", {.llama = true, .kv_heads = 2, .qkv_bias = true}, {{1, 8, 1, 2}, {1, 6, 1, 1}}},
          {"gemma3", {.llama = true, .kv_heads = 4, .tied = true, .gemma3 = true}, {{1, 8, 1, 3}}},
          {"bert",
           {.attention_heads = 2, .dropout = 0.1, .bert = true, .documents = true},
           {{1, 4, 1, 1}, {2, 4, 1, 0}}}};
}

TEST(ContextParallel, RanksShareTheQueriesOfFewHeads) {
  const TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    const double tolerance = precision == v1::PRECISION_FP32 ? 1e-5 : 2e-3;
    for (FewHeads few : CasesOfFewHeads()) {
      few.options.precision = precision;
      const Trained alone = Train(job.Spec(OnLongSequences({}, few.options)));
      for (const Mesh& mesh : few.meshes) {
        SCOPED_TRACE(absl::StrCat(few.name, " on ", NameOf(mesh)));
        TinyOptions options = OnLongSequences(mesh, few.options);
        if (mesh.stage == 3) options.recompute = v1::RECOMPUTE_FULL;
        ExpectAlike(Train(job.Spec(options)), alone, tolerance);
      }
    }
  }
}

TEST(ContextParallel, GradientsOfSharedQueriesAreThoseOfOneRank) {
  const TinyJob job;
  for (const FewHeads& few : CasesOfFewHeads()) {
    const auto spec = [&](const Mesh& mesh) {
      return WithOneStepOfSgd(job.Spec(OnLongSequences(mesh, few.options)));
    };
    const Snapshot start = TrainUntil(spec({}), 0).snapshot;
    const Snapshot alone = Train(spec({})).snapshot;
    for (const Mesh& mesh : few.meshes) {
      SCOPED_TRACE(absl::StrCat(few.name, " on ", NameOf(mesh)));
      ExpectSameStep(start, alone, Train(spec(mesh)).snapshot);
    }
  }
}

TEST(ContextParallel, SharedQueriesHaveTheSameBitsAgainAndGoOnElsewhere) {
  const TinyJob job;
  for (const FewHeads& few : CasesOfFewHeads()) {
    SCOPED_TRACE(few.name);
    const v1::JobSpec spec = job.Spec(OnLongSequences(few.meshes[0], few.options));
    ExpectSameBits(spec);
    const Trained whole = Train(job.Spec(OnLongSequences({}, few.options)));
    ExpectGoesOn(job.Spec(OnLongSequences({}, few.options)), TrainUntil(spec, 5).snapshot, whole);
    ExpectGoesOn(spec, TrainUntil(job.Spec(OnLongSequences({}, few.options)), 5).snapshot, whole);
  }
}

TEST(ContextParallel, StagesShareTheQueriesOfFewHeads) {
  const TinyJob job;
  const TinyOptions options = {
      .layers = 4, .attention_heads = 2, .llama = true, .kv_heads = 1, .documents = true};
  const Trained alone = Train(job.Spec(OnLongSequences({}, options)));
  for (const v1::PipelineSchedule schedule :
       {v1::PIPELINE_SCHEDULE_1F1B, v1::PIPELINE_SCHEDULE_ZERO_BUBBLE}) {
    TinyOptions with = OnLongSequences({1, 4, 1, 1}, options);
    with.ranks *= 2;
    with.pipeline = 2;
    with.schedule = schedule;
    with.micro_batch = 1;
    ExpectAlike(Train(job.Spec(with)), alone, 1e-5);
  }
}

TEST(ContextParallel, WithTensorRanks) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    if (family.options.olmo3) continue;
    TinyOptions options = family.options;
    options.kv_heads = 4;
    const Trained alone = Train(job.Spec(On({}, options)));
    for (const Mesh& mesh : {Mesh{1, 2, 2, 1}, Mesh{2, 2, 2, 3}}) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      ExpectAlike(Train(job.Spec(On(mesh, options))), alone, 1e-5);
    }
  }
}

// What it is for: more ranks than sequences, and three that divide 24 tokens and 6 heads.
TEST(ContextParallel, WithFewerSequencesThanRanks) {
  const TinyJob job;
  const auto spec = [&](int context) {
    v1::JobSpec made = job.Spec({.global_batch = 1, .micro_batch = 1, .width = 48});
    made.mutable_model()->mutable_gpt2()->set_heads(6);
    made.mutable_resources()->set_ranks(context);
    made.mutable_resources()->mutable_mesh()->set_context(context);
    NormalizeJobSpec(&made);
    EXPECT_EQ(ValidateJobSpec(made), absl::OkStatus());
    return made;
  };
  const Trained alone = Train(spec(1));
  for (const int context : {2, 3, 6}) {
    SCOPED_TRACE(context);
    ExpectAlike(Train(spec(context)), alone, 1e-5);
  }
}

TEST(ContextParallel, WithRecomputation) {
  const TinyJob job;
  for (const v1::Recompute recompute : {v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_FULL}) {
    for (TinyFamily family : Families()) {
      const Trained alone = Train(job.Spec(On({}, family.options)));
      family.options.recompute = recompute;
      SCOPED_TRACE(family.name);
      ExpectAlike(Train(job.Spec(On({2, 2, 1, 3}, family.options))), alone, 1e-5);
    }
  }
}

TEST(ContextParallel, InBf16) {
  const TinyJob job;
  for (TinyFamily family : Families()) {
    family.options.precision = v1::PRECISION_BF16;
    const Trained alone = Train(job.Spec(On({}, family.options)));
    for (const Mesh& mesh : {Mesh{1, 2, 1, 1}, Mesh{2, 2, 1, 3}}) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      ExpectAlike(Train(job.Spec(On(mesh, family.options))), alone, 2e-3);
    }
  }
}

TEST(ContextParallel, BeginsWithTheValuesOfOneRankAndSavesEachElementOnce) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const Trained alone = TrainUntil(job.Spec(On({}, family.options)), 0);
    for (const Mesh& mesh : {Mesh{1, 2, 1, 0}, Mesh{2, 2, 1, 1}, Mesh{2, 2, 1, 3, 2}}) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      const Snapshot snapshot = TrainUntil(job.Spec(On(mesh, family.options)), 0).snapshot;
      EXPECT_TRUE(snapshot.data == alone.snapshot.data);
      auto layout = state::StateLayout::FromProto(snapshot.tensors);
      ASSERT_TRUE(layout.ok()) << layout.status();
      EXPECT_EQ(CheckCoverage(*layout, snapshot.covered), absl::OkStatus());
    }
  }
}

TEST(ContextParallel, GradientsOfEveryParameterAreThoseOfOneRank) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const auto spec = [&](const Mesh& mesh) {
      return WithOneStepOfSgd(job.Spec(On(mesh, family.options)));
    };
    SCOPED_TRACE(family.name);
    const Snapshot start = TrainUntil(spec({}), 0).snapshot;
    ExpectSameStep(start, Train(spec({})).snapshot, Train(spec({2, 2, 1, 1})).snapshot);
  }
}

TEST(ContextParallel, GoesOnAtEveryOtherMesh) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const Trained whole = Train(job.Spec(On({}, family.options)));
    std::vector<Mesh> others = {{1, 1, 1, 0}, {1, 2, 1, 1}, {2, 2, 1, 3}};
    if (family.name == "gpt2") others.insert(others.end(), {{1, 4, 1, 2}, {2, 1, 2, 3}});
    for (const Mesh& from : others) {
      const Snapshot snapshot = TrainUntil(job.Spec(On(from, family.options)), 5).snapshot;
      for (const Mesh& to : others) {
        SCOPED_TRACE(absl::StrCat(family.name, " from ", NameOf(from), " to ", NameOf(to)));
        ExpectGoesOn(job.Spec(On(to, family.options)), snapshot, whole);
      }
    }
  }
}

TEST(ContextParallel, HasTheSameBitsAgainAndAfterAResume) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    ExpectSameBits(job.Spec(On({2, 2, 1, 2}, family.options)));
  }
}

struct DataRankCase {
  std::string name;
  void (*change)(v1::JobSpec*) = [](v1::JobSpec*) {};
  TinyOptions options = {};
  double tolerance = 1e-5;
};

void TakeOptimizer(v1::OptimizerSpec::Type type, v1::JobSpec* spec) {
  spec->mutable_train()->clear_optimizer();
  spec->mutable_train()->mutable_optimizer()->set_type(type);
  spec->mutable_train()->mutable_optimizer()->set_lr(1e-3);
}

// In fewer bits as other numbers of data ranks are held to (fewer_bits_test.cc).
std::vector<DataRankCase> CasesOfOptimizers() {
  return {
      {"lamb", [](v1::JobSpec* s) { TakeOptimizer(v1::OptimizerSpec::TYPE_LAMB, s); }},
      {"lion", [](v1::JobSpec* s) { TakeOptimizer(v1::OptimizerSpec::TYPE_LION, s); }},
      {"adan", [](v1::JobSpec* s) { TakeOptimizer(v1::OptimizerSpec::TYPE_ADAN, s); }},
      {"muon",
       [](v1::JobSpec* s) {
         TakeOptimizer(v1::OptimizerSpec::TYPE_MUON, s);
         s->mutable_train()->mutable_optimizer()->set_orthogonalization(v1::ORTHOGONALIZATION_FP32);
       }},
      {"8 bits",
       [](v1::JobSpec* s) { TakeOptimizer(v1::OptimizerSpec::TYPE_ADAMW_8BIT, s); },
       {},
       5e-3},
      {"rounded at random",
       [](v1::JobSpec* s) {
         s->mutable_train()->mutable_optimizer()->set_state_dtype(v1::STATE_DTYPE_BF16);
         s->mutable_train()->mutable_optimizer()->set_master(v1::MASTER_DTYPE_NONE);
       },
       {.precision = v1::PRECISION_BF16},
       5e-3}};
}

std::vector<DataRankCase> OtherCases() {
  return {{"average",
           [](v1::JobSpec* s) { s->mutable_train()->mutable_ema()->set_decay(0.9); },
           {.llama = true}},
          {"clipping", [](v1::JobSpec* s) { s->mutable_train()->set_clip_norm(0.05); }},
          {"frozen",
           [](v1::JobSpec* s) {
             v1::ParameterGroupSpec& group = *s->mutable_train()->mutable_optimizer()->add_groups();
             group.set_match("*attn*");
             group.set_freeze(true);
           }},
          {"lora", [](v1::JobSpec*) {}, {.llama = true, .lora = 3}},
          {"dora", [](v1::JobSpec*) {}, {.llama = true, .lora = 3, .dora = true}},
          {"experts", [](v1::JobSpec*) {}, {.llama = true, .experts = 4, .balance = 0}},
          {"fp16", [](v1::JobSpec*) {}, {.precision = v1::PRECISION_FP16}, 2e-3},
          {"offload",
           [](v1::JobSpec* s) {
             s->mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
             s->mutable_train()->mutable_offload()->set_activations(true);
           },
           {.layers = 6}}};
}

// To the rest of a job context ranks are data ranks.
TEST(ContextParallel, WithWhatDataRanksHave) {
  const TinyJob job;
  std::vector<DataRankCase> cases = CasesOfOptimizers();
  for (const DataRankCase& one : OtherCases()) cases.push_back(one);
  for (const DataRankCase& one : cases) {
    const auto spec = [&](const Mesh& mesh) {
      v1::JobSpec made = job.Spec(On(mesh, one.options));
      one.change(&made);
      NormalizeJobSpec(&made);
      EXPECT_EQ(ValidateJobSpec(made), absl::OkStatus()) << one.name;
      return made;
    };
    SCOPED_TRACE(one.name);
    const Trained alone = Train(spec({}));
    for (const Mesh& mesh : {Mesh{1, 2, 1, 1}, Mesh{2, 2, 1, 2}}) {
      SCOPED_TRACE(NameOf(mesh));
      ExpectAlike(Train(spec(mesh)), alone, one.tolerance);
    }
  }
}

// Each stage's ranks exchange heads, whatever the order of its passes.
TEST(ContextParallel, WithStages) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    if (family.options.olmo3) continue;
    TinyOptions options = family.options;
    options.kv_heads = 4;
    options.layers = 4;
    const Trained alone = Train(job.Spec(On({}, options)));
    std::vector<Mesh> meshes = {{2, 2, 1, 3}};
    if (family.name == "gpt2" || family.name == "bert") meshes.push_back({1, 2, 2, 1});
    for (const Mesh& mesh : meshes) {
      for (const v1::PipelineSchedule schedule :
           {v1::PIPELINE_SCHEDULE_1F1B, v1::PIPELINE_SCHEDULE_ZERO_BUBBLE}) {
        SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh), ", schedule ", schedule));
        TinyOptions with = On(mesh, options);
        with.ranks *= 2;
        with.pipeline = 2;
        with.schedule = schedule;
        with.micro_batch = 2;
        const Trained trained = Train(job.Spec(with));
        ExpectAlike(trained, alone, 1e-5);
      }
    }
  }
}

// With rows of a rank that layers of 8 bits take: multiples of 16.
TEST(ContextParallel, InFp8) {
  const TinyJob job;
  const auto spec = [&](int context) {
    return job.Spec({.ranks = context,
                     .context = context,
                     .precision = v1::PRECISION_FP8,
                     .global_batch = 16,
                     .micro_batch = 8});
  };
  ExpectAlike(Train(spec(2)), Train(spec(1)), 5e-3);
}

TEST(ContextParallel, SendsWhatIsPlanned) {
  const TinyJob job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    for (const Mesh& mesh : {Mesh{1, 4, 1, 0}, Mesh{1, 4, 1, 1}, Mesh{1, 4, 1, 3}, Mesh{1, 2, 2, 0},
                             Mesh{1, 2, 2, 1}, Mesh{1, 2, 2, 3}, Mesh{1, 8, 1, 1}}) {
      SCOPED_TRACE(NameOf(mesh));
      ExpectSendsWhatIsPlanned(job.Spec(
          On(mesh, {.precision = precision, .llama = true, .kv_heads = 2, .qk_norm = true})));
    }
  }
}

TEST(ContextParallel, ARankHoldsItsPartOfTheActivations) {
  const TinyJob job;
  TinyOptions options;
  options.layers = 8;
  options.width = 128;
  constexpr auto kActivations = static_cast<size_t>(plan::BufferClass::kActivations);
  int64_t bytes[2] = {0, 0};
  for (const int context : {1, 2}) {
    RunRanks(job.Spec(On({1, context, 1, 0}, options)), [&](int rank, TrainingSession& session) {
      if (rank == 0) bytes[context - 1] = session.plan().bytes_by_class[kActivations];
    });
  }
  // And what attention has made, once more by tokens.
  EXPECT_LT(bytes[1], 0.6 * static_cast<double>(bytes[0]));
}

}  // namespace
}  // namespace milepost::runtime
