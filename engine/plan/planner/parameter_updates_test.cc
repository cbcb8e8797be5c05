#include "engine/plan/parameter_updates.h"

#include <random>
#include <string>
#include <utility>

#include "common/spec/validate.h"
#include "engine/graph/name_pattern.h"
#include "engine/plan/printing/printer.h"
#include "engine/plan/testing/plan_fixture.h"
#include "engine/plan/verification/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using graph::MatchesName;
using graph::NearestToPattern;
using testing::ElementsAre;
using testing::HasSubstr;

v1::ParameterGroupSpec& AddGroup(v1::JobSpec& spec, const std::string& match) {
  v1::ParameterGroupSpec& group = *spec.mutable_train()->mutable_optimizer()->add_groups();
  group.set_match(match);
  return group;
}

v1::JobSpec Freezing(const std::vector<std::string>& patterns) {
  v1::JobSpec spec = SpecOf({});
  for (const std::string& pattern : patterns) AddGroup(spec, pattern).set_freeze(true);
  return spec;
}

std::string Refusal(const v1::JobSpec& spec) {
  const absl::Status status = PlanTraining(spec, OptionsOf(2, 1, DType::kF32)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(ParameterUpdates, PatternsMatchNamesAndTheirEnds) {
  const std::string name = "transformer.h.0.attn.c_attn.weight";
  for (const char* pattern :
       {"transformer.h.0.attn.c_attn.weight", "h.*.attn.*", "*", "*.weight", "weight",
        "h.?.attn.c_attn.*", "transformer.*", "attn.c_attn.weight", "h.0.*weight*"}) {
    EXPECT_TRUE(MatchesName(pattern, name)) << pattern;
  }
  for (const char* pattern :
       {"h.*.mlp.*", "transformer", "h.0", "eight", ".weight", "h.??.attn.*", "*.bias", "ttn.*"}) {
    EXPECT_FALSE(MatchesName(pattern, name)) << pattern;
  }
}

// Against the plainest way there is.
bool Slowly(const std::string& pattern, const std::string& name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*') {
    return Slowly(pattern.substr(1), name) || (!name.empty() && Slowly(pattern, name.substr(1)));
  }
  return !name.empty() && (pattern[0] == '?' || pattern[0] == name[0]) &&
         Slowly(pattern.substr(1), name.substr(1));
}

TEST(ParameterUpdates, PatternsMatchAsTheyWouldCharacterByCharacter) {
  std::mt19937 random(7);
  const auto text = [&](absl::string_view of, size_t most) {
    std::string made(random() % most, ' ');
    for (char& c : made) c = of[random() % of.size()];
    return made;
  };
  int matched = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string pattern = text("ab.**?", 8);
    const std::string name = text("ab.", 9);
    bool expected = Slowly(pattern, name);
    for (size_t dot = 0; dot < name.size(); ++dot) {
      expected |= name[dot] == '.' && Slowly(pattern, name.substr(dot + 1));
    }
    matched += expected ? 1 : 0;
    ASSERT_EQ(MatchesName(pattern, name), expected) << pattern << " and " << name;
  }
  EXPECT_GT(matched, 1000);
  // Longer than a word of 64 positions.
  const std::string name(300, 'a');
  EXPECT_TRUE(MatchesName(std::string(150, '?') + "*" + std::string(150, 'a'), name));
  EXPECT_FALSE(MatchesName(std::string(150, '?') + "*" + std::string(151, 'a'), name));
}

TEST(ParameterUpdates, TheNearestNamesNeedTheFewestChanges) {
  const std::vector<std::string> names = {"wte.weight", "h.0.attn.c_attn.weight",
                                          "h.0.mlp.c_fc.weight", "ln_f.bias"};
  EXPECT_THAT(NearestToPattern("h.*.atn.*", names, 1), ElementsAre("h.0.attn.c_attn.weight"));
  EXPECT_THAT(NearestToPattern("wtf.weight", names, 1), ElementsAre("wte.weight"));
  EXPECT_THAT(NearestToPattern("ln_f.bais", names, 1), ElementsAre("ln_f.bias"));
  EXPECT_EQ(NearestToPattern("x", names, 9).size(), 4u);
}

TEST(ParameterUpdates, TheFirstMatchCounts) {
  v1::JobSpec spec = SpecOf({});
  AddGroup(spec, "h.0.*").set_lr_scale(0.5);
  AddGroup(spec, "h.*").set_weight_decay(0.25);
  AddGroup(spec, "*.bias").set_freeze(true);
  const auto plan = PlanTraining(spec, OptionsOf(1, 0, DType::kF32));
  ASSERT_TRUE(plan.ok()) << plan.status();
  int frozen = 0;
  for (const FlatGroup& group : plan->groups) {
    for (const GroupParameter& p : group.parameters) {
      frozen += group.frozen ? 1 : 0;
      const bool first = MatchesName("h.0.*", p.name);
      EXPECT_EQ(p.lr_scale, first ? 0.5F : 1.0F) << p.name;
      EXPECT_EQ(p.weight_decay.value_or(-1), !first && MatchesName("h.*", p.name) ? 0.25F : -1.0F);
    }
  }
  EXPECT_EQ(frozen, 1);  // ln_f.bias: the others are in layers
  ASSERT_EQ(plan->parameter_groups.size(), 3u);
  EXPECT_EQ(plan->parameter_groups[0].tensors, 12);
  EXPECT_EQ(plan->parameter_groups[1].tensors, 12);
  EXPECT_EQ(plan->parameter_groups[2].parameters, 64);
}

// Its one matrix is the classifier's, a head.
TEST(ParameterUpdates, MuonNeedsMatricesWithinLayers) {
  v1::JobSpec spec;
  v1::ResNetSpec& resnet = *spec.mutable_model()->mutable_resnet();
  resnet.set_depth(18);
  resnet.set_classes(10);
  resnet.set_image_size(32);
  NormalizeJobSpec(&spec);
  PlanOptions options = OptionsOf(2, 1, DType::kF32);
  options.sequence = 1;
  EXPECT_TRUE(PlanTraining(spec, options).ok());
  options.optimizer = Optimizer::kMuon;
  EXPECT_THAT(std::string(PlanTraining(spec, options).status().message()),
              HasSubstr("train.optimizer.type: muon updates the matrices"));
}

TEST(ParameterUpdates, RefusesPatternsThatDoNothing) {
  v1::JobSpec spec = SpecOf({});
  AddGroup(spec, "h.*.atn.*").set_lr_scale(0.1);
  EXPECT_THAT(Refusal(spec), HasSubstr("train.optimizer.groups[0].match: 'h.*.atn.*' matches no "
                                       "parameter; the nearest are transformer.h.0.attn."));
  spec = SpecOf({});
  AddGroup(spec, "h.*").set_lr_scale(0.1);
  AddGroup(spec, "h.1.*").set_lr_scale(0.2);
  EXPECT_THAT(Refusal(spec), HasSubstr("groups[1].match: 'h.1.*' matches nothing that an entry "
                                       "before it does not match (transformer.h.1."));
  EXPECT_THAT(Refusal(Freezing({"*"})), HasSubstr("every parameter is frozen"));
}

// Neither gradient nor state; the master is what checkpoints hold.
TEST(ParameterUpdates, FrozenParametersCostTheirParametersAndTheMaster) {
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    for (int world : {1, 2, 3}) {
      for (int stage : {0, 1, 2, 3}) {
        const PlanOptions options = OptionsOf(world, stage, dtype);
        const auto plan = PlanTraining(Freezing({"h.0.*", "wte.weight", "ln_f.weight"}), options);
        ASSERT_TRUE(plan.ok()) << plan.status();  // and so verified
        int64_t shards = 0;
        int64_t trained = 0;
        for (const FlatGroup& group : plan->groups) {
          shards += group.shard_elements;
          if (group.frozen) {
            EXPECT_EQ(group.gradient_buffer, kNoBuffer);
            EXPECT_EQ(group.state_buffers[0], kNoBuffer);
          } else {
            trained += group.shard_elements;
          }
        }
        const int64_t masters = dtype == DType::kF32 ? 0 : shards;
        EXPECT_EQ(ClassBytes(*plan, BufferClass::kOptimizer), 4 * (masters + 2 * trained));
      }
    }
  }
}

TEST(ParameterUpdates, HybridShardingOfFrozenParametersVerifies) {
  PlanOptions options = OptionsOf(4, 3, DType::kBf16);
  options.shard_ranks = 2;
  options.recompute = Recompute::kFull;
  EXPECT_EQ(PlanTraining(Freezing({"h.1.attn.*", "wpe.weight"}), options).status(),
            absl::OkStatus());
}

TEST(ParameterUpdates, TheBackwardEndsAboveFrozenLayers) {
  const PlanOptions options = OptionsOf(1, 0, DType::kF32);
  const auto all = PlanTraining(SpecOf({}), options);
  const auto top = PlanTraining(Freezing({"h.*", "wpe.weight"}), options);
  const auto low = PlanTraining(Freezing({"h.0.*", "wpe.weight", "wte.weight"}), options);
  ASSERT_TRUE(all.ok() && top.ok() && low.ok());
  EXPECT_LT(low->flops_per_step, all->flops_per_step * 0.75);
  EXPECT_LT(low->arena_bytes, all->arena_bytes);
  EXPECT_LT(low->train.ops.size(), top->train.ops.size());  // wte is below the layers
}

TEST(ParameterUpdates, FrozenGroupsWithStateAreRefused) {
  const auto valid = PlanTraining(Freezing({"h.0.*"}), OptionsOf(2, 1, DType::kBf16));
  ASSERT_TRUE(valid.ok());
  for (size_t i = 0; i < valid->groups.size(); ++i) {
    if (!valid->groups[i].frozen) continue;
    StepPlan plan = *valid;
    plan.groups[i].state_buffers[0] = plan.groups[i].master_buffer;
    EXPECT_THAT(Verify(plan).message(), HasSubstr("is frozen"));
    plan = *valid;
    PlannedOp gather;
    gather.op.kind = graph::OpKind::kGradNorm;
    gather.op.attributes.group = static_cast<int32_t>(i);
    gather.when = When::kUpdate;
    plan.train.ops.insert(plan.train.ops.end() - 1, gather);
    EXPECT_FALSE(VerifyValues(plan, plan.train).ok());
  }
}

TEST(ParameterUpdates, ThePlanShowsThem) {
  v1::JobSpec spec = Freezing({"wpe.weight"});
  v1::ParameterGroupSpec& group = AddGroup(spec, "*.bias");
  group.set_lr_scale(0.1);
  group.set_weight_decay(0.5);
  const auto plan = PlanTraining(spec, OptionsOf(1, 0, DType::kF32));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(PlanTable(*plan, {}), HasSubstr("frozen"));
  EXPECT_THAT(PlanTable(*plan, {}), HasSubstr("learning rate x 0.1, weight decay 0.5"));
  EXPECT_THAT(PlanJson(*plan, {}, -1), HasSubstr(R"("match":"*.bias","tensors":13)"));
}

}  // namespace
}  // namespace milepost::plan
