// Tensor parallelism: ranks that divide each layer train as one rank does, at every ZeRO stage and
// number of data ranks, and their state goes on at any other mesh.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
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
  int stage = 1;
  int group = 0;
};

std::string NameOf(const Mesh& mesh) {
  return absl::StrCat("data ", mesh.data, ", tensor ", mesh.tensor, ", stage ", mesh.stage,
                      ", group ", mesh.group);
}

TinyOptions On(const Mesh& mesh, TinyOptions options) {
  options.ranks = mesh.data * mesh.tensor;
  options.tensor = mesh.tensor;
  options.stage = mesh.stage;
  options.group = mesh.group;
  options.global_batch = kGlobalBatch;
  options.micro_batch = kGlobalBatch / mesh.data / (1 + mesh.stage % 2);
  return options;
}

std::vector<TinyFamily> Families() {
  return {{"gpt2", {.dropout = 0.1}},
          {"llama", {.llama = true, .kv_heads = 4, .qkv_bias = true}},
          {"one head of keys", {.llama = true, .kv_heads = 1, .qkv_bias = true}},
          {"windows", {.llama = true, .tied = true, .activation = v1::LlamaSpec::ACTIVATION_GEGLU}},
          {"qwen3", {.llama = true, .kv_heads = 4, .qk_norm = true}},
          {"gemma3", {.llama = true, .tied = true, .gemma3 = true}},
          {"no pre-norms", {.llama = true, .kv_heads = 4, .no_pre_norms = true}},
          {"bert", {.dropout = 0.1, .bert = true, .documents = true}},
          {"heads", {.documents = true, .heads = true}}};
}

TEST(TensorParallel, TrainsAsOneRankDoes) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const Trained alone = Train(job.Spec(On({}, family.options)));
    std::vector<Mesh> meshes = {{1, 2, 1}, {2, 2, 0}, {2, 2, 3}};
    if (family.name == "gpt2") {  // the rest is no matter of the family
      meshes.insert(meshes.end(),
                    {{1, 2, 0}, {2, 2, 1}, {2, 2, 2}, {3, 2, 2}, {4, 2, 3, /*group=*/2}});
    }
    for (const Mesh& mesh : meshes) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      ExpectAlike(Train(job.Spec(On(mesh, family.options))), alone, 1e-5);
    }
    if (family.name != "gpt2") continue;
    TinyOptions passing = On({2, 2, 2}, family.options);  // gradients of two micro-steps
    passing.micro_batch /= 2;
    ExpectAlike(Train(job.Spec(passing)), alone, 1e-5);
  }
}

TEST(TensorParallel, FourRanksDivideEachHeadOfFour) {
  const TinyJob job;
  for (const TinyOptions& options :
       {TinyOptions{}, TinyOptions{.llama = true, .kv_heads = 4}, TinyOptions{.bert = true},
        // Two and four neighbours have the same head of keys.
        TinyOptions{.llama = true, .kv_heads = 2, .qk_norm = true},
        TinyOptions{.llama = true, .kv_heads = 1, .tied = true, .gemma3 = true}}) {
    const Trained alone = Train(job.Spec(On({}, options)));
    for (const Mesh& mesh : {Mesh{1, 4, 1}, Mesh{2, 4, 3}}) {
      SCOPED_TRACE(NameOf(mesh));
      ExpectAlike(Train(job.Spec(On(mesh, options))), alone, 1e-5);
    }
  }
}

// More logits than are kept: they are made twice, chunk by chunk.
TEST(TensorParallel, WithSeveralChunksOfRows) {
  const TinyJob job;
  constexpr int64_t kVocabulary = 200001;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    const bool llama = precision == v1::PRECISION_BF16;  // not tied
    const auto spec = [&](const Mesh& mesh) {
      TinyOptions options = On(mesh, {.precision = precision, .llama = llama, .kv_heads = 4});
      options.micro_batch = kGlobalBatch / mesh.data;
      options.steps = 2;
      v1::JobSpec made = job.Spec(options);
      llama ? made.mutable_model()->mutable_llama()->set_vocabulary(kVocabulary)
            : made.mutable_model()->mutable_gpt2()->set_vocabulary(kVocabulary);
      return made;
    };
    SCOPED_TRACE(v1::Precision_Name(precision));
    ExpectAlike(Train(spec({1, 2, 1})), Train(spec({})), llama ? 2e-3 : 1e-5);
  }
}

// Of 8 ranks with places for 16 words each the last three have none of 65.
TEST(TensorParallel, RanksWithoutWords) {
  const TinyJob job;
  const auto spec = [&](const Mesh& mesh) {
    TinyOptions options = On(mesh, {.layers = 1, .width = 64});
    options.ranks = mesh.data;
    options.tensor = 1;
    v1::JobSpec made = job.Spec(options);
    made.mutable_model()->mutable_gpt2()->set_heads(8);
    made.mutable_model()->mutable_gpt2()->set_vocabulary(65);
    made.mutable_resources()->set_ranks(mesh.data * mesh.tensor);
    made.mutable_resources()->mutable_mesh()->set_tensor(mesh.tensor);
    NormalizeJobSpec(&made);
    EXPECT_EQ(ValidateJobSpec(made), absl::OkStatus());
    return made;
  };
  const Trained alone = Train(spec({}));
  for (const int stage : {0, 1, 3}) {
    SCOPED_TRACE(stage);
    const Snapshot half = TrainUntil(spec({1, 8, stage}), 5).snapshot;
    auto layout = state::StateLayout::FromProto(half.tensors);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(CheckCoverage(*layout, half.covered), absl::OkStatus());
    ExpectAlike(Train(spec({1, 8, stage})), alone, 1e-5);
    const Trained rest = Train(spec({2, 2, 1}), &half);
    EXPECT_NEAR(rest.losses.back(), alone.losses.back(), 1e-5 * alone.losses.back());
  }
}

TEST(TensorParallel, WithRecomputation) {
  const TinyJob job;
  for (const v1::Recompute recompute : {v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_FULL}) {
    for (TinyFamily family : Families()) {
      const Trained alone = Train(job.Spec(On({}, family.options)));
      family.options.recompute = recompute;
      SCOPED_TRACE(family.name);
      ExpectAlike(Train(job.Spec(On({2, 2, 3}, family.options))), alone, 1e-5);
    }
  }
}

TEST(TensorParallel, InBf16) {
  const TinyJob job;
  for (TinyFamily family : Families()) {
    family.options.precision = v1::PRECISION_BF16;
    const Trained alone = Train(job.Spec(On({}, family.options)));
    for (const Mesh& mesh : {Mesh{1, 2, 1}, Mesh{2, 2, 3}}) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      ExpectAlike(Train(job.Spec(On(mesh, family.options))), alone, 2e-3);
    }
  }
}

// To the bit, whatever the mesh: also of what lies in columns.
TEST(TensorParallel, BeginsWithTheValuesOfOneRank) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const Trained alone = TrainUntil(job.Spec(On({}, family.options)), 0);
    for (const Mesh& mesh : {Mesh{1, 2, 0}, Mesh{2, 2, 1}, Mesh{3, 2, 3}}) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      const Trained divided = TrainUntil(job.Spec(On(mesh, family.options)), 0);
      EXPECT_TRUE(divided.snapshot.data == alone.snapshot.data);
    }
  }
}

TEST(TensorParallel, EverySavedElementIsSavedOnce) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    for (const Mesh& mesh : {Mesh{1, 2, 0}, Mesh{2, 2, 0}, Mesh{3, 2, 3}, Mesh{4, 2, 2, 2}}) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      const Snapshot snapshot = TrainUntil(job.Spec(On(mesh, family.options)), 0).snapshot;
      auto layout = state::StateLayout::FromProto(snapshot.tensors);
      ASSERT_TRUE(layout.ok()) << layout.status();
      EXPECT_EQ(CheckCoverage(*layout, snapshot.covered), absl::OkStatus());
    }
  }
}

TEST(TensorParallel, GradientsOfEveryParameterAreThoseOfOneRank) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const auto spec = [&](const Mesh& mesh) {
      return WithOneStepOfSgd(job.Spec(On(mesh, family.options)));
    };
    SCOPED_TRACE(family.name);
    const Snapshot start = TrainUntil(spec({}), 0).snapshot;
    ExpectSameStep(start, Train(spec({})).snapshot, Train(spec({2, 2, 1})).snapshot);
  }
}

TEST(TensorParallel, GoesOnAtEveryOtherMesh) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    const Trained whole = Train(job.Spec(On({}, family.options)));
    std::vector<Mesh> others = {{1, 1, 0}, {1, 2, 1}, {2, 2, 3}};
    if (family.name == "gpt2") others.insert(others.end(), {{3, 2, 2}, {2, 1, 3}});
    for (const Mesh& from : others) {
      const Snapshot snapshot = TrainUntil(job.Spec(On(from, family.options)), 5).snapshot;
      for (const Mesh& to : others) {
        SCOPED_TRACE(absl::StrCat(family.name, " from ", NameOf(from), " to ", NameOf(to)));
        ExpectGoesOn(job.Spec(On(to, family.options)), snapshot, whole);
      }
    }
  }
}

TEST(TensorParallel, HasTheSameBitsAgainAndAfterAResume) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    ExpectSameBits(job.Spec(On({2, 2, 2}, family.options)));
  }
}

TEST(TensorParallel, WithAnAverageOfTheWeights) {
  const TinyJob job;
  const auto spec = [&](const Mesh& mesh) {
    v1::JobSpec made = job.Spec(On(mesh, {.llama = true}));
    made.mutable_train()->mutable_ema()->set_decay(0.9);
    NormalizeJobSpec(&made);
    return made;
  };
  const Trained alone = Train(spec({}));
  for (const Mesh& mesh : {Mesh{1, 2, 0}, Mesh{2, 2, 2}, Mesh{2, 2, 3}}) {
    SCOPED_TRACE(NameOf(mesh));
    ExpectAlike(Train(spec(mesh)), alone, 1e-5);
  }
}

TEST(TensorParallel, OfImages) {
  const TinyImages job;
  const auto spec = [&](const Mesh& mesh) {
    v1::JobSpec made = job.Spec({.ranks = mesh.data,
                                 .stage = mesh.stage,
                                 .global_batch = kGlobalBatch,
                                 .micro_batch = kGlobalBatch / mesh.data / 2,
                                 .heads = true,
                                 .vit = true,
                                 .dropout = 0.1});
    made.mutable_resources()->set_ranks(mesh.data * mesh.tensor);
    made.mutable_resources()->mutable_mesh()->set_tensor(mesh.tensor);
    NormalizeJobSpec(&made);
    EXPECT_EQ(ValidateJobSpec(made), absl::OkStatus());
    return made;
  };
  const Trained alone = Train(spec({}));
  for (const Mesh& mesh : {Mesh{1, 2, 0}, Mesh{2, 2, 3}}) {
    SCOPED_TRACE(NameOf(mesh));
    ExpectAlike(Train(spec(mesh)), alone, 1e-5);
  }
}

// Norms are those of the whole model: here every step is clipped.
TEST(TensorParallel, ClipsByTheWholeModelsNorm) {
  const TinyJob job;
  const auto spec = [&](const Mesh& mesh) {
    v1::JobSpec made = job.Spec(On(mesh, {.llama = true, .kv_heads = 1, .qk_norm = true}));
    made.mutable_train()->set_clip_norm(0.05);
    return made;
  };
  const Trained alone = Train(spec({}));
  for (const double norm : alone.norms) EXPECT_GT(norm, 0.05);
  ExpectAlike(Train(spec({2, 2, 2})), alone, 1e-5);
}

// What is frozen has no gradient and no norm: divided matrices, biases behind them, norms of heads.
TEST(TensorParallel, WithFrozenParameters) {
  const TinyJob job;
  for (const char* match : {"*.h.*.mlp.*", "*.c_proj.bias", "*attn*", "*.h.0.*"}) {
    const auto spec = [&](const Mesh& mesh) {
      v1::JobSpec made = job.Spec(On(mesh, {}));
      v1::ParameterGroupSpec& group = *made.mutable_train()->mutable_optimizer()->add_groups();
      group.set_match(match);
      group.set_freeze(true);
      return made;
    };
    SCOPED_TRACE(match);
    ExpectAlike(Train(spec({2, 2, 1})), Train(spec({})), 1e-5);
  }
  const auto spec = [&](const Mesh& mesh) {
    v1::JobSpec made = job.Spec(On(mesh, {.llama = true, .kv_heads = 1, .qk_norm = true}));
    for (const char* match : {"*.q_norm.*", "*.k_proj.*"}) {
      v1::ParameterGroupSpec& group = *made.mutable_train()->mutable_optimizer()->add_groups();
      group.set_match(match);
      group.set_freeze(true);
    }
    return made;
  };
  ExpectAlike(Train(spec({2, 2, 1})), Train(spec({})), 1e-5);
}

// Of gradients that are rounded on the wire, or kept in fewer bits.
TEST(TensorParallel, WithGradientsInFewerBits) {
  const TinyJob job;
  for (const bool kept : {false, true}) {
    const auto spec = [&](const Mesh& mesh) {
      TinyOptions options = On(mesh, {.precision = v1::PRECISION_BF16});
      options.micro_batch = kGlobalBatch / mesh.data;
      v1::JobSpec made = job.Spec(options);
      if (kept) made.mutable_train()->set_grad_dtype(v1::GRAD_DTYPE_BF16);
      if (!kept) made.mutable_train()->set_grad_reduce(v1::GRAD_REDUCE_BF16);
      EXPECT_EQ(ValidateJobSpec(made), absl::OkStatus());
      return made;
    };
    ExpectAlike(Train(spec({2, 2, 1})), Train(spec({2, 1, 1})), 2e-3);
  }
}

// What is planned is what is sent; and what is not divided has the same bits on all tensor ranks.
TEST(TensorParallel, SendsWhatIsPlannedAndKeepsTensorRanksAlike) {
  const TinyJob job;
  struct Held {
    int64_t begin;
    std::vector<float> values;
  };
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    for (const int stage : {0, 1, 3}) {
      const v1::JobSpec spec = job.Spec(On(
          {2, 2, stage},
          {.precision = precision, .dropout = 0.1, .llama = true, .kv_heads = 1, .qk_norm = true}));
      SCOPED_TRACE(absl::StrCat("stage ", stage));
      std::vector<std::vector<Held>> held(4);
      ExpectSendsWhatIsPlanned(spec, [&](size_t rank, TrainingSession& session) {
        for (const StateInterval& i : session.RestoreTargets()) {
          const auto* data = reinterpret_cast<const float*>(i.data);
          held[rank].push_back({i.begin, {data, data + i.elements()}});
        }
      });
      int alike = 0;
      for (const size_t rank : {0, 2}) {
        ASSERT_EQ(held[rank].size(), held[rank + 1].size());
        for (size_t i = 0; i < held[rank].size(); ++i) {
          const Held &one = held[rank][i], &other = held[rank + 1][i];
          if (one.begin != other.begin) continue;  // a part each
          EXPECT_EQ(one.values, other.values) << "stage " << stage;
          ++alike;
        }
      }
      EXPECT_GT(alike, 10);
    }
  }
}

// A step that no rank takes: all see the same norm.
TEST(TensorParallel, SkipsAStepOnAllRanks) {
  const TinyJob job;
  RunRanks(job.Spec(On({2, 2, 2}, {})), [](int, TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    for (const StateInterval& i : session.RestoreTargets()) {
      auto* values = reinterpret_cast<float*>(i.data);
      if (i.first > 0) values[0] = std::numeric_limits<float>::infinity();  // of tensor rank 1
    }
    ASSERT_EQ(session.FinishRestore(session.trainer_state()), absl::OkStatus());
    const auto report = session.Step(false);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->skipped);
  });
}

// By what validations say every rank decides the same, and stops together.
TEST(TensorParallel, AllRanksHaveTheSameValidationLoss) {
  const TinyJob job;
  std::mutex mutex;
  std::vector<double> losses;
  std::vector<bool> stops;
  RunRanks(job.Spec(On({2, 2, 0}, {})), [&](int rank, TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    if (rank % 2 == 1) {  // as if another CPU had computed otherwise
      for (const StateInterval& i : session.RestoreTargets()) {
        if (i.run == 0) reinterpret_cast<float*>(i.data)[0] += 1e-3F;
      }
      ASSERT_EQ(session.FinishRestore(session.trainer_state()), absl::OkStatus());
    } else {
      ASSERT_EQ(session.FinishRestore(session.trainer_state()), absl::OkStatus());
    }
    const auto evaluation = session.Evaluate();
    ASSERT_TRUE(evaluation.ok()) << evaluation.status();
    const auto report = session.Step(/*stop_requested=*/rank == 3);
    ASSERT_TRUE(report.ok()) << report.status();
    const std::lock_guard lock(mutex);
    losses.push_back(evaluation->loss);
    stops.push_back(report->stop_agreed);
  });
  EXPECT_EQ(losses, std::vector<double>(4, losses[0]));
  EXPECT_EQ(stops, std::vector<bool>(4, true));
}

TEST(TensorParallel, OtherOptimizers) {
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
    ExpectAlike(Train(spec({2, 2, 1})), Train(spec({})), 1e-5);
  }
}

// A rank holds about its part of each layer, and no more than one without a mesh of the rest.
TEST(TensorParallel, ARankHoldsItsPart) {
  const TinyJob job;
  TinyOptions options{.llama = true, .kv_heads = 4};
  options.layers = 8;
  options.width = 128;
  options.head_dim = 32;
  options.hidden = 256;
  int64_t bytes[2] = {0, 0};
  for (const int tensor : {1, 2}) {
    RunRanks(job.Spec(On({1, tensor, 0}, options)), [&](int rank, TrainingSession& session) {
      if (rank == 0) bytes[tensor - 1] = session.plan().bytes_by_class[0];
    });
  }
  EXPECT_LT(bytes[1], 0.53 * static_cast<double>(bytes[0]));
}

}  // namespace
}  // namespace milepost::runtime
