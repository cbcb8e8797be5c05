#include "engine/plan/fit/fit.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/spec/auto_fields.h"
#include "common/spec/validate.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/fit/stage_drafts.h"
#include "engine/plan/planner/planner.h"
#include "engine/plan/testing/plan_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// 12 sequences a rank: micro-batches of 1, 2, 3, 4, 6 and 12.
v1::JobSpec Spec(int ranks = 4) {
  v1::JobSpec spec = SpecOf({.layers = 6, .width = 128, .heads = 4, .context = 128});
  spec.set_name("test");
  spec.mutable_data()->set_train("/train.npy");
  spec.mutable_train()->set_steps(10);
  spec.mutable_train()->mutable_batch()->set_global(12 * ranks);
  spec.mutable_train()->mutable_batch()->set_micro(12);
  spec.mutable_train()->mutable_zero()->set_stage(1);
  spec.mutable_resources()->set_ranks(ranks);
  NormalizeJobSpec(&spec);
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  return spec;
}

v1::JobSpec AutoSpec(int ranks = 4) {
  v1::JobSpec spec = Spec(ranks);
  spec.mutable_train()->mutable_batch()->set_micro(kAuto);
  spec.mutable_train()->mutable_batch()->clear_accumulation();
  spec.mutable_train()->mutable_zero()->set_stage(kAuto);
  spec.mutable_train()->set_recompute(v1::RECOMPUTE_AUTO);
  return spec;
}

RankPlace PlaceWith(int64_t bytes) {
  return {.memory_bytes = bytes,
          .memory_of = "the test",
          .profile = ForThreads(*BuiltInProfile("cpu"), 1),
          .threads = 1};
}

int64_t Needs(const v1::JobSpec& spec) {
  const auto plan = PlanTraining(spec, *OptionsFromSpec(spec, 1));
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? RequiredBytes(*plan, plan->arena_bytes, /*arena_in_host_memory=*/true) : 0;
}

// Every setting that `auto` may take, assessed one by one.
std::vector<Setting> EverySetting(const v1::JobSpec& spec, const RankPlace& place) {
  std::vector<Setting> all;
  for (int64_t micro : {1, 2, 3, 4, 6, 12}) {
    for (int stage : {0, 1, 2, 3}) {
      for (Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        Setting setting = {
            .micro = micro, .accumulation = 12 / micro, .stage = stage, .recompute = recompute};
        EXPECT_EQ(Assess(spec, place, /*exact=*/true, &setting), absl::OkStatus());
        all.push_back(setting);
      }
    }
  }
  return all;
}

TEST(Settings, MicrosAreTheDivisors) {
  EXPECT_THAT(MicrosUpTo(Spec(), 100), testing::ElementsAre(1, 2, 3, 4, 6, 12));
  EXPECT_THAT(MicrosUpTo(Spec(), 4), testing::ElementsAre(1, 2, 3, 4));
}

// Its 17 tokens are no multiple of 16; some micro-batches of them are.
TEST(Fit, AutoLeavesOutMicroBatchesWithoutALayerIn8Bits) {
  v1::JobSpec spec = Spec(1);
  v1::VitSpec& vit = *spec.mutable_model()->mutable_vit();
  vit.set_layers(2);
  vit.set_width(64);
  vit.set_heads(4);
  vit.set_classes(10);
  vit.set_image_size(32);
  vit.set_patch_size(8);
  spec.mutable_data()->clear_sequence_length();
  spec.mutable_train()->set_precision(v1::PRECISION_FP8);
  spec.mutable_train()->mutable_batch()->set_global(96);
  spec.mutable_train()->mutable_batch()->set_micro(kAuto);
  spec.mutable_train()->mutable_batch()->clear_accumulation();
  NormalizeJobSpec(&spec);
  EXPECT_THAT(MicrosUpTo(spec, 100), testing::ElementsAre(16, 32, 48, 96));
  const auto resolved = ResolveAuto(spec, PlaceWith(int64_t{1} << 34));
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->spec.train().batch().micro() % 16, 0);
  spec.mutable_train()->mutable_batch()->set_global(6);
  EXPECT_THAT(ResolveAuto(spec, PlaceWith(int64_t{1} << 34)).status().message(),
              HasSubstr("no layer can be one of 8 bits"));
}

TEST(Settings, TheLeastBytesAreNearlyTheExactOnes) {
  for (Setting setting : EverySetting(Spec(), PlaceWith(0))) {
    const int64_t exact = setting.bytes;
    ASSERT_EQ(Assess(Spec(), PlaceWith(0), /*exact=*/false, &setting), absl::OkStatus());
    EXPECT_LE(setting.bytes, exact);
    EXPECT_GE(setting.bytes, exact * 0.9) << Difference(SettingOf(Spec()), setting);
  }
}

TEST(Fit, NothingToChooseChangesNothing) {
  const auto resolved = ResolveAuto(Spec(), PlaceWith(0));
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_TRUE(resolved->choices.empty());
  EXPECT_EQ(SpecDigest(resolved->spec), SpecDigest(Spec()));
}

// Against all settings there are, at memories from the least to plenty.
TEST(Fit, AutoIsAsFastAsAnythingThatFits) {
  const v1::JobSpec spec = AutoSpec();
  std::vector<Setting> all = EverySetting(spec, PlaceWith(0));
  std::sort(all.begin(), all.end(),
            [](const Setting& a, const Setting& b) { return a.bytes < b.bytes; });
  for (size_t i = 0; i < all.size(); i += 9) {
    const int64_t memory = all[i].bytes;
    SCOPED_TRACE(absl::StrCat(memory, " bytes"));
    double fastest = all[i].seconds;
    for (size_t k = 0; k <= i; ++k) fastest = std::min(fastest, all[k].seconds);
    const auto resolved = ResolveAuto(spec, PlaceWith(memory));
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    EXPECT_FALSE(HasAutoFields(resolved->spec));
    EXPECT_EQ(ValidateJobSpec(resolved->spec), absl::OkStatus());
    EXPECT_EQ(resolved->spec.train().batch().global(), 48);
    EXPECT_LE(Needs(resolved->spec), memory);
    Setting chosen = SettingOf(resolved->spec);
    ASSERT_EQ(Assess(spec, PlaceWith(memory), true, &chosen), absl::OkStatus());
    EXPECT_LE(chosen.seconds, fastest * 1.021);
    EXPECT_EQ(resolved->choices.size(), 3u);
  }
}

// Where the model itself is too large, 4 bits are among the remedies, if they are one.
TEST(Fit, AdaptersModelsIn4BitsAreARemedy) {
  v1::JobSpec spec = Spec(1);
  spec.mutable_train()->set_precision(v1::PRECISION_BF16);
  spec.mutable_train()->set_init_from("/models/tiny");
  spec.mutable_train()->mutable_batch()->set_micro(1);
  spec.mutable_train()->mutable_batch()->set_accumulation(12);
  spec.mutable_model()->mutable_lora()->set_rank(2);
  spec.mutable_model()->mutable_gpt2()->set_width(512);
  spec.mutable_model()->mutable_gpt2()->set_heads(8);
  NormalizeJobSpec(&spec);
  ASSERT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  const auto refusal = [&](int64_t memory) {
    return std::string(PlanThatFits(spec, PlaceWith(memory)).status().message());
  };
  const int64_t wide = Needs(spec);
  v1::JobSpec packed = spec;
  packed.mutable_model()->mutable_lora()->set_quantize_base(v1::BASE_QUANTIZATION_NF4);
  const int64_t narrow = Needs(packed);
  EXPECT_LT(narrow, 0.8 * wide);
  EXPECT_THAT(refusal(narrow), HasSubstr("model.lora.quantize_base: nf4, needs "));
  EXPECT_THAT(refusal(narrow / 4), Not(HasSubstr("quantize_base")));
  spec = packed;
  EXPECT_EQ(refusal(narrow), "");
  EXPECT_THAT(refusal(narrow / 4), Not(HasSubstr("quantize_base")));
}

// What does the least harm and fits, at memories from plenty to too little.
TEST(Fit, LowMemoryStoresAsMuchAsFits) {
  v1::JobSpec spec = Spec();
  spec.mutable_train()->set_precision(v1::PRECISION_BF16);
  spec.mutable_train()->mutable_batch()->set_micro(12);
  spec.mutable_train()->mutable_batch()->set_accumulation(1);
  spec.mutable_train()->set_memory(v1::MEMORY_USE_LOW);
  ASSERT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  const std::vector<v1::JobSpec> storages = StoragesOf(spec);
  ASSERT_EQ(storages.size(), 5u);
  std::vector<int64_t> bytes;
  for (const v1::JobSpec& storage : storages) {
    EXPECT_EQ(ValidateJobSpec(storage), absl::OkStatus());
    Setting setting = SettingOf(storage);
    ASSERT_EQ(Assess(storage, PlaceWith(0), /*exact=*/true, &setting), absl::OkStatus());
    if (!bytes.empty()) {
      EXPECT_LT(setting.bytes, bytes.back());
    }
    bytes.push_back(setting.bytes);
  }
  for (size_t i = 0; i < storages.size(); ++i) {
    const auto resolved = ResolveAuto(spec, PlaceWith(bytes[i]));
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    EXPECT_EQ(SpecDigest(resolved->spec), SpecDigest(storages[i])) << i;
    EXPECT_FALSE(HasAutoFields(resolved->spec));
  }
  const auto last = ResolveAuto(spec, PlaceWith(bytes[4]));
  ASSERT_EQ(last->choices.size(), 3u);
  EXPECT_EQ(last->choices[0].field(), "train.optimizer.type");
  EXPECT_EQ(last->choices[1].field(), "train.optimizer.master");
  EXPECT_EQ(last->choices[2].field(), "train.grad_dtype");
  EXPECT_THAT(last->choices[2].reason(),
              HasSubstr("train.memory: low; does not fit with what is given, nor with "
                        "train.optimizer.state_dtype: bf16, nor with "
                        "train.optimizer.type: adamw_8bit, nor with"));
  EXPECT_EQ(ResolveAuto(spec, PlaceWith(bytes[0]))->choices[0].value(), "exact");
  EXPECT_THAT(ResolveAuto(spec, PlaceWith(bytes[4] - 1)).status().message(),
              HasSubstr("train.memory: low, with train.optimizer.type: adamw_8bit and "));
}

// Sums of micro-steps are not kept in bf16: one that auto leaves to itself has all sequences.
TEST(Fit, LowMemoryMindsTheMicroSteps) {
  v1::JobSpec spec = AutoSpec();
  spec.mutable_train()->set_precision(v1::PRECISION_BF16);
  spec.mutable_train()->set_memory(v1::MEMORY_USE_LOW);
  EXPECT_EQ(StoragesOf(spec).size(), 5u);
  spec.mutable_train()->mutable_batch()->set_micro(2);
  spec.mutable_train()->mutable_batch()->set_accumulation(6);
  const std::vector<v1::JobSpec> storages = StoragesOf(spec);
  ASSERT_EQ(storages.size(), 4u);
  EXPECT_EQ(storages.back().train().grad_dtype(), v1::GRAD_DTYPE_FP32);
  spec.mutable_train()->mutable_optimizer()->set_type(v1::OptimizerSpec::TYPE_MUON);
  EXPECT_EQ(StoragesOf(spec).size(), 1u);
}

TEST(Fit, ChoicesSayWhy) {
  const v1::JobSpec spec = AutoSpec();
  Setting tight = {.micro = 2, .accumulation = 6, .stage = 3, .recompute = Recompute::kFull};
  ASSERT_EQ(Assess(spec, PlaceWith(0), true, &tight), absl::OkStatus());
  const auto resolved = ResolveAuto(spec, PlaceWith(tight.bytes));
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  ASSERT_EQ(resolved->choices.size(), 3u);
  EXPECT_EQ(resolved->choices[0].field(), "train.batch.micro");
  EXPECT_EQ(resolved->choices[0].value(), absl::StrCat(resolved->spec.train().batch().micro()));
  EXPECT_THAT(resolved->choices[0].reason(),
              AllOf(HasSubstr("does not fit"), HasSubstr("a step"), HasSubstr("of the test")));
  EXPECT_EQ(resolved->choices[1].field(), "train.zero.stage");
  EXPECT_THAT(resolved->choices[1].reason(), HasSubstr("0 does not fit"));
  EXPECT_EQ(resolved->choices[2].field(), "train.recompute");
}

TEST(Fit, PlentyOfMemoryNeedsNoRecomputation) {
  const auto resolved = ResolveAuto(AutoSpec(), PlaceWith(int64_t{1} << 40));
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->spec.train().recompute(), v1::RECOMPUTE_NONE);
  EXPECT_THAT(resolved->choices[0].reason(), Not(HasSubstr("does not fit")));
  const auto alone = ResolveAuto(AutoSpec(1), PlaceWith(int64_t{1} << 40));
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_THAT(alone->choices[1].reason(), HasSubstr("no ranks to share it out among"));
}

TEST(Fit, EachFieldMayBeAutoAlone) {
  v1::JobSpec spec = Spec();
  spec.mutable_train()->mutable_zero()->set_stage(kAuto);
  const int64_t most = Needs(Spec());
  auto resolved = ResolveAuto(spec, PlaceWith(most));
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  ASSERT_EQ(resolved->choices.size(), 1u);
  EXPECT_EQ(resolved->spec.train().batch().micro(), 12);
  spec = Spec();
  spec.mutable_train()->set_recompute(v1::RECOMPUTE_AUTO);
  resolved = ResolveAuto(spec, PlaceWith(most - 1));
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->choices[0].value(), "selective");
  EXPECT_THAT(resolved->choices[0].reason(), HasSubstr("none does not fit"));
  EXPECT_EQ(resolved->spec.train().zero().stage(), 1);
}

TEST(Fit, AutoNeedsToKnowTheMemory) {
  const absl::Status status = ResolveAuto(AutoSpec(), PlaceWith(0)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("train.batch.micro: auto needs to know"),
                                      HasSubstr("resources.memory")));
}

TEST(Fit, AutoThatCannotFitSaysWhatTheLeastIs) {
  const absl::Status status = ResolveAuto(AutoSpec(), PlaceWith(100'000)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("does not fit whatever is chosen"),
                                      HasSubstr("train.batch.micro: 1, train.zero.stage: 3 and "
                                                "train.recompute: full"),
                                      HasSubstr("the test has 97.66 KiB")));
}

TEST(Fit, WhatDoesNotFitIsToldTheNearestThatDoes) {
  const v1::JobSpec spec = Spec();
  const RankPlace place = PlaceWith(Needs(spec) - 1);
  const absl::Status status = PlanThatFits(spec, place).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const std::vector<std::string> lines = absl::StrSplit(status.message(), '\n');
  ASSERT_EQ(lines.size(), 7u) << status.message();
  EXPECT_THAT(lines[0], AllOf(HasSubstr("does not fit: a rank needs"), HasSubstr("the test has"),
                              HasSubstr("while it starts or saves a checkpoint")));
  // One change each, then two.
  EXPECT_THAT(status.message(), AllOf(HasSubstr("\n  train.recompute: selective "),
                                      HasSubstr("\n  train.zero.stage: 2 "),
                                      HasSubstr("\n  train.batch.micro: 6 (accumulation 2) ")));
  EXPECT_THAT(lines[1], Not(HasSubstr(", ")));
  EXPECT_THAT(lines[1], HasSubstr(" a step"));
  EXPECT_LT(status.message().size(), 2000u);  // travels in a gRPC status
}

// A mesh: a rank saves its part of what tensor ranks divide, and a share of what they have alike.
TEST(Fit, RanksOfAMeshSaveTheWholeModelTogether) {
  v1::JobSpec spec = Spec(1);
  spec.mutable_train()->mutable_batch()->set_micro(6);
  spec.mutable_train()->mutable_batch()->set_accumulation(2);
  const auto alone = PlanTraining(spec, *OptionsFromSpec(spec, 1));
  spec.mutable_resources()->set_ranks(4);
  spec.mutable_resources()->mutable_mesh()->set_tensor(2);
  spec.mutable_train()->mutable_batch()->clear_accumulation();
  NormalizeJobSpec(&spec);
  const auto mesh = PlanTraining(spec, *OptionsFromSpec(spec, 1));
  ASSERT_TRUE(alone.ok() && mesh.ok()) << mesh.status();
  const double whole = static_cast<double>(SnapshotBytes(*alone));
  EXPECT_NEAR(4.0 * static_cast<double>(SnapshotBytes(*mesh)), whole, 0.01 * whole);
  // No more is told of the model's work than is done for it.
  EXPECT_NEAR(2.0 * mesh->flops_per_step * 2, alone->flops_per_step, 1e-6 * alone->flops_per_step);
}

// Of heads of keys that neighbours share as well: with stages too, and made once more or not.
TEST(Fit, RanksThatShareHeadsTellOfTheModelsWorkOnce) {
  v1::JobSpec spec = Spec(1);
  v1::LlamaSpec& model = *spec.mutable_model()->mutable_llama();
  model.set_layers(2);
  model.set_width(64);
  model.set_heads(4);
  model.set_kv_heads(1);
  model.set_hidden(96);
  model.set_context(32);
  model.set_vocabulary(96);
  spec.mutable_data()->set_sequence_length(32);
  spec.mutable_train()->mutable_batch()->set_micro(6);
  spec.mutable_train()->mutable_batch()->set_accumulation(2);
  NormalizeJobSpec(&spec);
  for (const v1::Recompute recompute : {v1::RECOMPUTE_NONE, v1::RECOMPUTE_FULL}) {
    spec.mutable_train()->set_recompute(recompute);
    const auto alone = PlanTraining(spec, *OptionsFromSpec(spec, 1));
    ASSERT_TRUE(alone.ok()) << alone.status();
    for (const int pipeline : {1, 2}) {
      v1::JobSpec on = spec;
      on.mutable_resources()->set_ranks(4 * pipeline);
      on.mutable_resources()->mutable_mesh()->set_tensor(4);
      on.mutable_resources()->mutable_mesh()->set_pipeline(pipeline);
      NormalizeJobSpec(&on);
      const auto mesh = PlanTraining(on, *OptionsFromSpec(on, 1));
      ASSERT_TRUE(mesh.ok()) << mesh.status();
      EXPECT_NEAR(4.0 * pipeline * mesh->flops_per_step, alone->flops_per_step,
                  1e-6 * alone->flops_per_step);
      if (pipeline > 1) continue;
      EXPECT_NEAR(4.0 * mesh->recompute_flops_per_step, alone->recompute_flops_per_step,
                  1e-6 * alone->flops_per_step);
      const double whole = static_cast<double>(SnapshotBytes(*alone));
      EXPECT_NEAR(4.0 * static_cast<double>(SnapshotBytes(*mesh)), whole, 0.06 * whole);
    }
  }
}

TEST(Fit, WhatDoesNotFitOnAMeshIsToldWhatHelps) {
  v1::JobSpec spec = Spec(4);
  spec.mutable_resources()->mutable_mesh()->set_tensor(2);
  spec.mutable_train()->mutable_batch()->clear_accumulation();
  NormalizeJobSpec(&spec);
  const absl::Status status = PlanThatFits(spec, PlaceWith(1000)).status();
  EXPECT_THAT(status.message(), HasSubstr("a larger resources.mesh.tensor, "));
  EXPECT_THAT(status.message(), Not(HasSubstr("train.memory")));
}

TEST(Fit, WhatFitsIsPlanned) {
  const v1::JobSpec spec = Spec();
  const auto fitting = PlanThatFits(spec, PlaceWith(Needs(spec)));
  ASSERT_TRUE(fitting.ok()) << fitting.status();
  EXPECT_EQ(fitting->plan.arena_bytes + SnapshotBytes(fitting->plan), Needs(spec));
  EXPECT_TRUE(PlanThatFits(spec, PlaceWith(0)).ok()) << "unknown memory refuses nothing";
  EXPECT_THAT(PlanThatFits(spec, PlaceWith(1000)).status().message(),
              HasSubstr("no micro-batch, stage or recomputation makes it fit"));
}

// What a GPU has to hold is the arena: the copy of a checkpoint is its host's.
TEST(Fit, ADeviceOfItsOwnNeedsNoRoomForTheCopy) {
  const v1::JobSpec spec = Spec();
  const auto plan = PlanTraining(spec, *OptionsFromSpec(spec, 1));
  ASSERT_TRUE(plan.ok()) << plan.status();
  RankPlace place = PlaceWith(plan->arena_bytes);
  EXPECT_FALSE(CheckFits(spec, *plan, place).ok());
  place.host_memory = false;
  EXPECT_EQ(CheckFits(spec, *plan, place), absl::OkStatus());
  place.memory_bytes -= 1;
  EXPECT_THAT(CheckFits(spec, *plan, place).message(),
              AllOf(HasSubstr(absl::StrCat("does not fit: a rank needs ", plan->arena_bytes,
                                           " bytes, and the test has ", plan->arena_bytes - 1)),
                    Not(HasSubstr("checkpoint"))));
}

TEST(Fit, ABadProfileIsNamed) {
  v1::JobSpec spec = Spec();
  EXPECT_EQ(ProfileOf(spec, 2)->threads, 2);
  EXPECT_EQ(ProfileOf(spec, 2)->name, "cpu");
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  EXPECT_EQ(ProfileOf(spec, 2)->name, "h200");
  spec.mutable_resources()->set_profile("h20");
  EXPECT_THAT(ProfileOf(spec, 2).status().message(),
              AllOf(HasSubstr("resources.profile: "), HasSubstr("did you mean 'h200'")));
}

// A 70B Llama on 512 ranks, as the bench plans it: ops and buffers grow with the layers alone.
TEST(Fit, LargePlansStaySmall) {
  v1::JobSpec spec;
  v1::LlamaSpec* model = spec.mutable_model()->mutable_llama();
  model->set_layers(80);
  model->set_width(8192);
  model->set_heads(64);
  model->set_kv_heads(8);
  model->set_hidden(28672);
  model->set_context(8192);
  model->set_vocabulary(128256);
  spec.mutable_train()->set_steps(1);
  spec.mutable_train()->mutable_batch()->set_micro(1);
  spec.mutable_train()->mutable_batch()->set_accumulation(1);
  spec.mutable_train()->mutable_zero()->set_stage(3);
  spec.mutable_train()->set_recompute(v1::RECOMPUTE_FULL);
  spec.mutable_resources()->set_ranks(512);
  NormalizeJobSpec(&spec);
  RankPlace place = {
      .memory_of = "an h200", .host_memory = false, .profile = *BuiltInProfile("h200")};
  place.memory_bytes = UsableBytes(place.profile);
  const auto fitting = PlanThatFits(spec, place);
  ASSERT_TRUE(fitting.ok()) << fitting.status();
  const StepPlan& plan = fitting->plan;
  EXPECT_EQ(plan.parameters, 70'553'706'496);  // Hugging Face's Llama-3-70B
  EXPECT_LT(plan.train.ops.size(), 80u * 40);
  EXPECT_LT(plan.buffers.size(), 80u * 100);
  size_t accesses = 0;
  for (const PlannedOp& op : plan.train.ops) accesses += op.accesses.size();
  EXPECT_LT(accesses, plan.train.ops.size() * 16);
  EXPECT_LT(plan.arena_bytes, int64_t{40} << 30);
}

// A prime number of sequences: micro-batches of one are more than a pipeline takes, and one of all
// is more than is looked at.
TEST(Fit, APipelineWithoutAMicroBatchIsRefused) {
  v1::JobSpec spec = AutoSpec(2);
  spec.mutable_resources()->mutable_mesh()->set_pipeline(2);
  spec.mutable_train()->mutable_batch()->set_global(4099);
  NormalizeJobSpec(&spec);
  ASSERT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  EXPECT_THAT(ResolveAuto(spec, PlaceWith(int64_t{1} << 40)).status().message(),
              AllOf(HasSubstr("train.batch.micro: auto: no micro-batch"), HasSubstr("(4099)"),
                    HasSubstr("into at most 256 for a pipeline")));
}

// At any of its sizes, whatever a spec says of one.
TEST(Fit, MicroBatchesOfAPipelineAreBounded) {
  v1::JobSpec spec = Spec(2);
  spec.mutable_resources()->mutable_mesh()->set_pipeline(2);
  spec.mutable_train()->mutable_batch()->clear_accumulation();
  NormalizeJobSpec(&spec);
  PlanOptions options = *OptionsFromSpec(spec, 1);
  options.accumulation = 257;
  EXPECT_THAT(AtLargestStage(spec, options).status().message(),
              AllOf(HasSubstr("at most 256 micro-batches"), HasSubstr("resources.min_ranks")));
}

}  // namespace
}  // namespace milepost::plan
