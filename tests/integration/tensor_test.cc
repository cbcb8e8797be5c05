// Tensor parallelism: ranks that divide each layer train as one rank does, at every ZeRO stage and
// number of data ranks, and their state goes on at any other mesh.
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

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

struct TensorFamily {
  std::string name;
  TinyOptions options;
};

std::vector<TensorFamily> Families() {
  return {{"gpt2", {.dropout = 0.1}},
          {"llama", {.llama = true, .kv_heads = 4, .qkv_bias = true}},
          {"windows", {.llama = true, .tied = true, .activation = v1::LlamaSpec::ACTIVATION_GEGLU}},
          {"qwen3", {.llama = true, .kv_heads = 4, .qk_norm = true}},
          {"gemma3", {.llama = true, .tied = true, .gemma3 = true}},
          {"bert", {.dropout = 0.1, .bert = true, .documents = true}},
          {"heads", {.documents = true, .heads = true}}};
}

struct Trained {
  std::vector<double> losses, norms;
  EvaluationReport evaluation;
  Snapshot snapshot;
};

// Until step `until`, from the begin or from a snapshot.
Trained TrainUntil(const v1::JobSpec& spec, int64_t until, const Snapshot* from = nullptr) {
  Trained trained;
  std::mutex mutex;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    ASSERT_EQ(from == nullptr ? session.InitializeParameters() : Restore(session, *from),
              absl::OkStatus());
    EXPECT_EQ(session.allocated_bytes(), session.plan().arena_bytes);
    while (session.step() < until) {
      auto report = session.Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      if (rank != 0) continue;
      trained.losses.push_back(report->train_loss);
      trained.norms.push_back(report->grad_norm);
    }
    auto evaluation = session.Evaluate();
    ASSERT_TRUE(evaluation.ok()) << evaluation.status();
    if (rank == 0) trained.evaluation = *std::move(evaluation);
    Save(session, trained.snapshot, mutex);
  });
  return trained;
}

Trained Train(const v1::JobSpec& spec, const Snapshot* from = nullptr) {
  return TrainUntil(spec, spec.train().steps(), from);
}

void ExpectAlike(const Trained& trained, const Trained& alone, double tolerance) {
  EXPECT_LT(LargestRelativeDifference(trained.losses, alone.losses), tolerance);
  EXPECT_LT(LargestRelativeDifference(trained.norms, alone.norms), 10 * tolerance);
  EXPECT_NEAR(trained.evaluation.loss, alone.evaluation.loss,
              tolerance * std::abs(alone.evaluation.loss));
  ASSERT_EQ(trained.evaluation.heads.size(), alone.evaluation.heads.size());
  for (size_t i = 0; i < alone.evaluation.heads.size(); ++i) {
    EXPECT_EQ(trained.evaluation.heads[i].targets, alone.evaluation.heads[i].targets);
  }
}

TEST(TensorParallel, TrainsAsOneRankDoes) {
  const TinyJob job;
  for (const TensorFamily& family : Families()) {
    const Trained alone = Train(job.Spec(On({}, family.options)));
    for (const Mesh& mesh : {Mesh{1, 2, 0}, Mesh{1, 2, 1}, Mesh{2, 2, 0}, Mesh{2, 2, 1},
                             Mesh{2, 2, 2}, Mesh{2, 2, 3}, Mesh{3, 2, 2}, Mesh{4, 2, 3, 2}}) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      ExpectAlike(Train(job.Spec(On(mesh, family.options))), alone, 1e-5);
    }
  }
}

TEST(TensorParallel, FourRanksDivideEachHeadOfFour) {
  const TinyJob job;
  for (const TinyOptions& options :
       {TinyOptions{}, TinyOptions{.llama = true, .kv_heads = 4}, TinyOptions{.bert = true}}) {
    const Trained alone = Train(job.Spec(On({}, options)));
    for (const Mesh& mesh : {Mesh{1, 4, 1}, Mesh{2, 4, 3}}) {
      SCOPED_TRACE(NameOf(mesh));
      ExpectAlike(Train(job.Spec(On(mesh, options))), alone, 1e-5);
    }
  }
}

TEST(TensorParallel, WithRecomputation) {
  const TinyJob job;
  for (const v1::Recompute recompute : {v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_FULL}) {
    for (TensorFamily family : Families()) {
      const Trained alone = Train(job.Spec(On({}, family.options)));
      family.options.recompute = recompute;
      SCOPED_TRACE(family.name);
      ExpectAlike(Train(job.Spec(On({2, 2, 3}, family.options))), alone, 1e-5);
    }
  }
}

TEST(TensorParallel, InBf16) {
  const TinyJob job;
  for (TensorFamily family : Families()) {
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
  for (const TensorFamily& family : Families()) {
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
  for (const TensorFamily& family : Families()) {
    for (const Mesh& mesh : {Mesh{1, 2, 0}, Mesh{2, 2, 0}, Mesh{3, 2, 3}, Mesh{4, 2, 2, 2}}) {
      SCOPED_TRACE(absl::StrCat(family.name, " on ", NameOf(mesh)));
      const Snapshot snapshot = TrainUntil(job.Spec(On(mesh, family.options)), 0).snapshot;
      auto layout = state::StateLayout::FromProto(snapshot.tensors);
      ASSERT_TRUE(layout.ok()) << layout.status();
      EXPECT_EQ(CheckCoverage(*layout, snapshot.covered), absl::OkStatus());
    }
  }
}

// One step of SGD, as large as a gradient.
TEST(TensorParallel, GradientsOfEveryParameterAreThoseOfOneRank) {
  const TinyJob job;
  for (TensorFamily family : Families()) {
    family.options.steps = 1;
    const auto spec = [&](const Mesh& mesh) {
      v1::JobSpec made = job.Spec(On(mesh, family.options));
      v1::TrainSpec& train = *made.mutable_train();
      train.clear_optimizer();
      train.mutable_optimizer()->set_type(v1::OptimizerSpec::TYPE_SGD);
      train.mutable_optimizer()->set_lr(1);
      train.mutable_schedule()->set_warmup_steps(0);
      NormalizeJobSpec(&made);
      return made;
    };
    const Snapshot start = TrainUntil(spec({}), 0).snapshot;
    const Snapshot alone = Train(spec({})).snapshot;
    const Snapshot divided = Train(spec({2, 2, 1})).snapshot;
    ASSERT_EQ(alone.data.size(), divided.data.size());
    for (size_t t = 0; t < alone.data.size(); ++t) {
      if (alone.tensors[t].kind() != "master") continue;
      SCOPED_TRACE(absl::StrCat(family.name, ": ", alone.tensors[t].name()));
      double largest = 0, difference = 0;  // of the step
      for (size_t i = 0; i < alone.data[t].size(); ++i) {
        const double step = double{alone.data[t][i]} - start.data[t][i];
        largest = std::max(largest, std::abs(step));
        difference = std::max<double>(difference, std::abs(alone.data[t][i] - divided.data[t][i]));
      }
      EXPECT_GT(largest, 0);
      EXPECT_LE(difference, 1e-4 * largest + 1e-7);
    }
  }
}

TEST(TensorParallel, GoesOnAtEveryOtherMesh) {
  const TinyJob job;
  for (const TensorFamily& family : Families()) {
    const Trained whole = Train(job.Spec(On({}, family.options)));
    for (const Mesh& from : {Mesh{1, 1, 0}, Mesh{1, 2, 1}, Mesh{2, 2, 3}, Mesh{3, 2, 2}}) {
      const Snapshot snapshot = TrainUntil(job.Spec(On(from, family.options)), 5).snapshot;
      for (const Mesh& to : {Mesh{1, 1, 1}, Mesh{2, 1, 3}, Mesh{1, 2, 0}, Mesh{3, 2, 1}}) {
        SCOPED_TRACE(absl::StrCat(family.name, " from ", NameOf(from), " to ", NameOf(to)));
        const Trained rest = Train(job.Spec(On(to, family.options)), &snapshot);
        ASSERT_EQ(rest.losses.size(), 5);
        for (size_t i = 0; i < 5; ++i) {
          EXPECT_NEAR(rest.losses[i], whole.losses[5 + i], 1e-5 * whole.losses[5 + i]);
        }
      }
    }
  }
}

TEST(TensorParallel, HasTheSameBitsAgainAndAfterAResume) {
  const TinyJob job;
  for (const TensorFamily& family : Families()) {
    const v1::JobSpec spec = job.Spec(On({2, 2, 2}, family.options));
    const Trained once = Train(spec), again = Train(spec);
    EXPECT_EQ(once.losses, again.losses);
    EXPECT_TRUE(once.snapshot.data == again.snapshot.data);
    const Snapshot half = TrainUntil(spec, 5).snapshot;
    const Trained rest = Train(spec, &half);
    EXPECT_TRUE(rest.snapshot.data == once.snapshot.data);
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
