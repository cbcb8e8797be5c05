// Micro-batches that are trained side by side train as those that come one after the other.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/spec/validate.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/testing/mesh_runs.h"
#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

struct Together {
  int data = 1;
  int tensor = 1;
  int context = 1;  // of the data ranks
  int expert = 1;   // likewise
  int stage = 1;
  int64_t accumulation = 4;
  int side_by_side = 2;
};

std::string NameOf(const Together& t) {
  return absl::StrCat("data ", t.data, ", tensor ", t.tensor, ", context ", t.context, ", expert ",
                      t.expert, ", stage ", t.stage, ", ", t.side_by_side, " of ", t.accumulation);
}

v1::JobSpec InTurn(const TinyJob& job, const Together& t, TinyOptions options) {
  options.ranks = t.data * t.tensor;
  options.tensor = t.tensor;
  options.context = t.context;
  options.expert = t.expert;
  options.stage = t.stage;
  options.steps = 4;
  options.micro_batch = 1;
  options.global_batch = t.data / t.context * t.accumulation;
  return job.Spec(options);
}

v1::JobSpec SideBySide(const TinyJob& job, const Together& t, const TinyOptions& options) {
  v1::JobSpec spec = InTurn(job, t, options);
  spec.mutable_train()->mutable_batch()->set_side_by_side(t.side_by_side);
  NormalizeJobSpec(&spec);
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  return spec;
}

const Together kTogether[] = {{},
                              {.accumulation = 2},
                              {.accumulation = 6, .side_by_side = 3},
                              {.accumulation = 4, .side_by_side = 4},
                              {.data = 2, .stage = 0},
                              {.data = 2, .stage = 1},
                              {.tensor = 2},
                              {.tensor = 2, .accumulation = 2},
                              {.data = 2, .tensor = 2, .stage = 0},
                              {.data = 2, .context = 2},
                              {.data = 4, .tensor = 2, .context = 2}};

std::vector<TinyFamily> Families() {
  return {{"gpt2", {.dropout = 0.1}},
          {"packed llama", {.llama = true, .kv_heads = 4, .tied = true, .documents = true}},
          {"bert", {.dropout = 0.1, .bert = true, .documents = true}},
          {"heads", {.documents = true, .heads = true}}};
}

// What an op adds to a gradient adds up in the same order.
TEST(SideBySide, HasTheBitsOfMicroBatchesInTurn) {
  const TinyJob job;
  for (const bool documents : {false, true}) {
    for (const Together& t : kTogether) {
      SCOPED_TRACE(NameOf(t));
      const TinyOptions options{.llama = true, .kv_heads = 4, .documents = documents};
      const Trained in_turn = Train(InTurn(job, t, options));
      const Trained together = Train(SideBySide(job, t, options));
      EXPECT_EQ(together.losses, in_turn.losses);
      EXPECT_EQ(together.norms, in_turn.norms);
      ExpectSameState(together.snapshot, in_turn.snapshot);
    }
  }
}

// A table that is the head's too has a gradient of two ops, which add to it in another order.
TEST(SideBySide, TrainsAlikeWhereWeightsAreTied) {
  const TinyJob job;
  for (const TinyFamily& family : Families()) {
    for (const Together& t : kTogether) {
      SCOPED_TRACE(absl::StrCat(family.name, ": ", NameOf(t)));
      ExpectAlike(Train(SideBySide(job, t, family.options)), Train(InTurn(job, t, family.options)),
                  1e-5);
    }
  }
}

TEST(SideBySide, SoDoExpertsAndWhatIsMadeAgain) {
  const TinyJob job;
  const Together meshes[] = {{.data = 2, .expert = 2}, {.data = 2, .tensor = 2, .expert = 2}};
  for (const Together& t : meshes) {
    for (const v1::Recompute recompute : {v1::RECOMPUTE_NONE, v1::RECOMPUTE_FULL}) {
      for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
        SCOPED_TRACE(NameOf(t));
        const TinyOptions options{.recompute = recompute,
                                  .precision = precision,
                                  .llama = true,
                                  .kv_heads = 4,
                                  .experts = 4};
        const Trained in_turn = Train(InTurn(job, t, options));
        const Trained together = Train(SideBySide(job, t, options));
        EXPECT_EQ(together.losses, in_turn.losses);
        ExpectSameState(together.snapshot, in_turn.snapshot);
      }
    }
  }
}

// Where shards are reduced, that is done once for all of them: sums have another order.
TEST(SideBySide, TrainsAlikeWhereGradientsAreSharded) {
  const TinyJob job;
  for (const int stage : {2, 3}) {
    for (Together t : {Together{.data = 2}, {.data = 2, .tensor = 2}, {.data = 4, .context = 2}}) {
      t.stage = stage;
      SCOPED_TRACE(NameOf(t));
      const TinyOptions options{.llama = true, .kv_heads = 4};
      ExpectAlike(Train(SideBySide(job, t, options)), Train(InTurn(job, t, options)), 1e-5);
      ExpectSameBits([&] {
        v1::JobSpec spec = SideBySide(job, t, options);
        spec.mutable_train()->set_steps(10);
        return spec;
      }());
    }
  }
}

// A budget of activations, states in fewer bits, on the host and on disk, scaled losses, islands,
// averages, factors.
TEST(SideBySide, WithWhatOtherJobsHave) {
  const TinyJob job;
  const std::pair<const char*, void (*)(v1::JobSpec*)> changes[] = {
      {"budget",
       [](v1::JobSpec* s) {
         s->mutable_train()->set_recompute(v1::RECOMPUTE_BUDGET);
         s->mutable_train()->set_recompute_budget(1 << 20);
       }},
      {"8-bit states",
       [](v1::JobSpec* s) {
         s->mutable_train()->mutable_optimizer()->set_type(v1::OptimizerSpec::TYPE_ADAMW_8BIT);
       }},
      {"offload",
       [](v1::JobSpec* s) {
         s->mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
       }},
      {"disk",
       [](v1::JobSpec* s) {
         v1::OffloadSpec* offload = s->mutable_train()->mutable_offload();
         offload->set_optimizer(v1::OFFLOAD_TARGET_NVME);
         offload->set_path(std::filesystem::path(s->data().train()).parent_path().string());
       }},
      {"halves", [](v1::JobSpec* s) { s->mutable_train()->set_precision(v1::PRECISION_FP16); }},
      {"islands",
       [](v1::JobSpec* s) {
         s->mutable_train()->mutable_sync()->set_every(2);
         s->mutable_train()->mutable_sync()->set_islands(2);
       }},
      {"average", [](v1::JobSpec* s) { s->mutable_train()->mutable_ema()->set_decay(0.9); }},
      {"powersgd", [](v1::JobSpec* s) {
         s->mutable_train()->mutable_zero()->set_stage(0);
         s->mutable_train()->mutable_powersgd()->set_rank(2);
       }}};
  for (const auto& [name, change] : changes) {
    SCOPED_TRACE(name);
    v1::JobSpec in_turn = InTurn(job, {.data = 2}, {.llama = true});
    change(&in_turn);
    v1::JobSpec together = in_turn;
    together.mutable_train()->mutable_batch()->set_side_by_side(2);
    NormalizeJobSpec(&in_turn);
    NormalizeJobSpec(&together);
    ASSERT_EQ(ValidateJobSpec(together), absl::OkStatus());
    const Trained want = Train(in_turn), got = Train(together);
    EXPECT_EQ(got.losses, want.losses);
    ExpectSameState(got.snapshot, want.snapshot);
  }
}

// Of other losses and other weights.
TEST(SideBySide, WithPreferencesAndAdapters) {
  const TinyJob job;
  for (const TinyOptions& options :
       {TinyOptions{.llama = true, .kv_heads = 4, .documents = true, .dpo = 0.3},
        TinyOptions{.llama = true, .kv_heads = 4, .lora = 2},
        TinyOptions{.llama = true, .kv_heads = 4, .lora = 2, .nf4 = true}}) {
    const Trained want = Train(InTurn(job, {.data = 2}, options));
    const Trained got = Train(SideBySide(job, {.data = 2}, options));
    EXPECT_EQ(got.losses, want.losses);
    ExpectSameState(got.snapshot, want.snapshot);
  }
}

// As an elastic job at another size: of four that are asked for, two divide six.
TEST(SideBySide, AreAsManyAsDivideTheAccumulation) {
  const TinyJob job;
  v1::JobSpec spec = InTurn(job, {.accumulation = 6}, {.llama = true});
  spec.mutable_train()->mutable_batch()->set_side_by_side(4);
  const auto options = plan::OptionsFromSpec(spec, 1);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->side_by_side, 2);
  EXPECT_EQ(Train(spec).losses, Train(InTurn(job, {.accumulation = 6}, {.llama = true})).losses);
}

// A checkpoint goes on with another number of them.
TEST(SideBySide, CheckpointsGoOnInTurn) {
  const TinyJob job;
  const Together t{.data = 2, .tensor = 2};
  const TinyOptions options{.llama = true, .kv_heads = 4};
  const v1::JobSpec in_turn = InTurn(job, t, options), together = SideBySide(job, t, options);
  const Trained whole = Train(in_turn);
  const Snapshot half = TrainUntil(together, 2).snapshot;
  ExpectSameState(Train(in_turn, &half).snapshot, whole.snapshot);
  const Snapshot other = TrainUntil(in_turn, 2).snapshot;
  ExpectSameState(Train(together, &other).snapshot, whole.snapshot);
}

// Of a shard's parameters each gather serves all of them.
TEST(SideBySide, GathersShardedParametersOnce) {
  const TinyJob job;
  const Together t{.data = 4, .stage = 3};
  const auto wire = [](const v1::JobSpec& spec) {
    auto options = plan::OptionsFromSpec(spec, 1);
    EXPECT_TRUE(options.ok()) << options.status();
    auto plan = plan::PlanTraining(spec, *options);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan->wire_bytes_per_step;
  };
  const double in_turn = wire(InTurn(job, t, {})), together = wire(SideBySide(job, t, {}));
  EXPECT_NEAR(together, in_turn / 2, in_turn / 100);
}

}  // namespace
}  // namespace milepost::runtime
