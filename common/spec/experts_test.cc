// What a spec says of experts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "common/spec/auto_fields.h"
#include "common/spec/parse.h"
#include "common/spec/sizes.h"
#include "common/spec/to_yaml.h"
#include "common/spec/validate.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using v1::JobSpec;

// A Llama of two layers, with eight experts in each.
JobSpec WithExperts(const std::function<void(JobSpec*)>& change = [](JobSpec*) {}) {
  auto spec = ParseJobSpecYaml(
      "name: n\n"
      "model: {llama: {layers: 2, width: 64, heads: 4, hidden: 96, context: 48, vocabulary: 256, "
      "experts: {count: 8, per_token: 2}}}\n"
      "data: {train: /data/train.npy}\ntrain: {steps: 5, batch: {global: 8, micro: 8}}\n",
      "f.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status();
  change(&*spec);
  NormalizeJobSpec(&*spec);
  return *std::move(spec);
}

v1::ExpertsSpec* ExpertsOf(JobSpec* spec) {
  return spec->mutable_model()->mutable_llama()->mutable_experts();
}

TEST(ExpertsTest, HaveDefaults) {
  const JobSpec spec = WithExperts();
  EXPECT_THAT(CheckJobSpec(spec), IsEmpty());
  const v1::ExpertsSpec& experts = spec.model().llama().experts();
  EXPECT_EQ(experts.hidden(), 96);
  EXPECT_TRUE(experts.normalize());
  EXPECT_EQ(experts.balance_loss(), 0.001);
  EXPECT_TRUE(experts.has_z_loss());
  EXPECT_EQ(experts.z_loss(), 0);
}

// The weight of a token's only expert would always be 1: nothing of the model's loss would train
// the router.
TEST(ExpertsTest, TheWeightOfAnOnlyExpertIsItsProbability) {
  const JobSpec one = WithExperts([](JobSpec* s) { ExpertsOf(s)->set_per_token(1); });
  EXPECT_FALSE(one.model().llama().experts().normalize());
  EXPECT_THAT(CheckJobSpec(one), IsEmpty());
  const JobSpec given = WithExperts([](JobSpec* s) {
    ExpertsOf(s)->set_per_token(1);
    ExpertsOf(s)->set_normalize(true);
  });
  EXPECT_TRUE(given.model().llama().experts().normalize());
}

struct BrokenExperts {
  const char* field;
  std::function<void(JobSpec*)> change;
};

TEST(ExpertsTest, EachBrokenRuleIsFound) {
  constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();
  const std::vector<BrokenExperts> cases = {
      {"model.llama.experts.count", [](auto* s) { ExpertsOf(s)->set_count(1025); }},
      {"model.llama.experts.count",
       [](auto* s) {
         ExpertsOf(s)->set_count(512);
         s->mutable_model()->mutable_llama()->set_layers(25);
       }},
      {"model.llama.experts.per_token", [](auto* s) { ExpertsOf(s)->set_per_token(9); }},
      {"model.llama.experts.per_token", [](auto* s) { ExpertsOf(s)->set_per_token(0); }},
      {"model.llama.experts.hidden", [](auto* s) { ExpertsOf(s)->set_hidden(-1); }},
      {"model.llama.experts.balance_loss", [](auto* s) { ExpertsOf(s)->set_balance_loss(-0.1); }},
      {"model.llama.experts.z_loss", [](auto* s) { ExpertsOf(s)->set_z_loss(kNoNumber); }},
  };
  for (const auto& [field, change] : cases) {
    const auto violations = CheckJobSpec(WithExperts(change));
    ASSERT_EQ(violations.size(), 1u) << field;
    EXPECT_EQ(violations[0].field, field);
  }
}

// As many as a Qwen3 of 235 billion parameters has.
TEST(ExpertsTest, MayBeManyInAllLayers) {
  EXPECT_THAT(CheckJobSpec(WithExperts([](auto* s) {
                ExpertsOf(s)->set_count(128);
                s->mutable_model()->mutable_llama()->set_layers(94);
              })),
              IsEmpty());
}

// All of these are for a Llama without experts.
TEST(ExpertsTest, WhatIsNotForThemIsRefused) {
  const auto llama = [](JobSpec* spec) { return spec->mutable_model()->mutable_llama(); };
  const std::vector<BrokenExperts> cases = {
      {"model.llama.qkv_bias", [&](auto* s) { llama(s)->set_qkv_bias(true); }},
      {"model.llama.wide_qk_norm", [&](auto* s) { llama(s)->set_wide_qk_norm(true); }},
      {"model.llama.norm_offset", [&](auto* s) { llama(s)->set_norm_offset(true); }},
      {"model.llama.post_norms", [&](auto* s) { llama(s)->set_post_norms(true); }},
      {"model.llama.scale_embedding", [&](auto* s) { llama(s)->set_scale_embedding(true); }},
      {"model.llama.activation",
       [&](auto* s) { llama(s)->set_activation(v1::LlamaSpec::ACTIVATION_GEGLU); }},
      {"train.precision", [](auto* s) { s->mutable_train()->set_precision(v1::PRECISION_FP8); }},
      {"model.lora",
       [](auto* s) {
         s->mutable_model()->mutable_lora()->set_rank(4);
         s->mutable_train()->set_init_from("/model");
       }},
      {"train.dpo",
       [](auto* s) {
         s->mutable_train()->mutable_dpo();
         s->mutable_train()->set_init_from("/model");
         s->mutable_data()->set_document_separator(3);
       }},
      {"model.heads",
       [](auto* s) {
         v1::TaskHeadSpec* head = s->mutable_model()->add_heads();
         head->set_name("kind");
         head->set_classes(3);
         v1::LabelSource* labels = s->mutable_data()->add_labels();
         labels->set_head("kind");
         labels->set_train("/labels.npy");
       }},
  };
  for (const auto& [field, change] : cases) {
    const auto violations = CheckJobSpec(WithExperts(change));
    ASSERT_EQ(violations.size(), 1u) << field;
    EXPECT_EQ(violations[0].field, field);
    EXPECT_THAT(violations[0].message, HasSubstr("model.llama.experts"));
    EXPECT_THAT(CheckJobSpec(WithExperts([&](JobSpec* s) {
                  change(s);
                  s->mutable_model()->mutable_llama()->clear_experts();
                })),
                IsEmpty())
        << field;
  }
}

// How much balance counts may change on the way.
TEST(ExpertsTest, DigestsOfAStateLeaveOutTheirLosses) {
  const JobSpec spec = WithExperts();
  const auto digest = [](const std::function<void(v1::ExpertsSpec*)>& change) {
    return StateDigest(WithExperts([&](JobSpec* s) { change(ExpertsOf(s)); }));
  };
  EXPECT_EQ(digest([](auto* e) { e->set_balance_loss(0.5); }), StateDigest(spec));
  EXPECT_EQ(digest([](auto* e) { e->set_z_loss(0.5); }), StateDigest(spec));
  EXPECT_NE(digest([](auto* e) { e->set_per_token(1); }), StateDigest(spec));
  EXPECT_NE(StateDigest(WithExperts(
                [](JobSpec* s) { s->mutable_model()->mutable_llama()->clear_experts(); })),
            StateDigest(spec));
}

JobSpec OnExpertRanks(
    int ranks, int expert, const std::function<void(JobSpec*)>& change = [](JobSpec*) {}) {
  return WithExperts([&](JobSpec* s) {
    s->mutable_train()->mutable_batch()->set_global(48);
    s->mutable_train()->mutable_batch()->set_micro(2);
    s->mutable_resources()->set_ranks(ranks);
    s->mutable_resources()->mutable_mesh()->set_expert(expert);
    change(s);
  });
}

TEST(ExpertsTest, RanksShareThemOut) {
  const JobSpec spec = OnExpertRanks(8, 4);
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  EXPECT_EQ(ExpertRanks(spec.resources()), 4);
  EXPECT_EQ(DataRanks(spec.resources()), 8);
  EXPECT_EQ(StateDigest(spec), StateDigest(OnExpertRanks(8, 1)));
  EXPECT_FALSE(OnExpertRanks(8, 1).resources().has_mesh());
  const auto back = ParseJobSpecYaml(MessageToYaml(spec), "f.yaml");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->resources().mesh().expert(), 4);
}

TEST(ExpertsTest, SaysWhatExpertRanksBreak) {
  const auto message = [](int ranks, int expert, const std::function<void(JobSpec*)>& change) {
    return std::string(ValidateJobSpec(OnExpertRanks(ranks, expert, change)).message());
  };
  const auto none = [](JobSpec*) {};
  EXPECT_THAT(message(6, 4, none),
              HasSubstr("resources.mesh.expert: must divide ranks (6), got 4; nearest: 2"));
  EXPECT_THAT(message(12, 6, none),
              HasSubstr("must divide model.llama.experts.count (8), got 6; nearest: 4"));
  EXPECT_THAT(message(4, 1025, none), HasSubstr("resources.mesh.expert"));
  EXPECT_THAT(message(4, 2,
                      [](JobSpec* s) {
                        s->mutable_resources()->set_min_ranks(3);
                        s->mutable_resources()->set_max_ranks(4);
                      }),
              HasSubstr("resources.min_ranks: must be a multiple of resources.mesh.expert (2)"));
  const auto on_gpus = [](JobSpec* s) { s->mutable_resources()->set_device(v1::DEVICE_KIND_CUDA); };
  EXPECT_EQ(message(4, 2, on_gpus), "");
  EXPECT_EQ(message(4, 1, on_gpus), "");
  // Context ranks are data ranks to experts: these need not be multiples of each other.
  const auto with_context = [](JobSpec* s) {
    s->mutable_resources()->mutable_mesh()->set_context(2);
  };
  EXPECT_EQ(message(4, 4, with_context), "");
  const auto with_stages = [](JobSpec* s) {
    s->mutable_resources()->mutable_mesh()->set_pipeline(2);
  };
  EXPECT_EQ(message(8, 4, with_stages), "");
  EXPECT_THAT(message(4, 4, with_stages),
              HasSubstr("must divide (ranks / pipeline) (2), got 4; nearest: 2"));
  const auto with_tensor_ranks = [](int64_t hidden) {
    return [=](JobSpec* s) {
      ExpertsOf(s)->set_hidden(hidden);
      s->mutable_resources()->mutable_mesh()->set_tensor(2);
      s->mutable_resources()->mutable_mesh()->set_pipeline(2);
    };
  };
  EXPECT_EQ(message(8, 2, with_tensor_ranks(96)), "");
  EXPECT_THAT(message(8, 2, with_tensor_ranks(95)),
              HasSubstr("must divide model.llama.experts.hidden (95), got 2; nearest: 1"));
  const std::pair<const char*, void (*)(JobSpec*)> refused[] = {
      {"model.llama.experts",
       [](JobSpec* s) { s->mutable_model()->mutable_llama()->clear_experts(); }},
      {"train.zero.group", [](JobSpec* s) { s->mutable_train()->mutable_zero()->set_group(2); }},
      {"train.optimizer.type",
       [](JobSpec* s) {
         s->mutable_train()->mutable_optimizer()->set_type(v1::OptimizerSpec::TYPE_MUON);
       }},
      {"checkpoint.redundancy", [](JobSpec* s) { s->mutable_checkpoint()->set_redundancy(1); }},
      {"auto chooses no expert",
       [](JobSpec* s) { s->mutable_resources()->mutable_mesh()->set_tensor(kAuto); }}};
  for (const auto& [what, change] : refused) {
    EXPECT_THAT(message(4, 2, change), HasSubstr(what));
  }
}

// Sizes at which ranks do not share experts out evenly are left out.
TEST(ExpertsTest, ElasticJobsHaveWholeGroups) {
  const JobSpec spec = OnExpertRanks(8, 4, [](JobSpec* s) {
    s->mutable_resources()->set_min_ranks(4);
    s->mutable_resources()->set_max_ranks(12);
  });
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  EXPECT_THAT(PossibleSizes(spec), ::testing::ElementsAre(4, 8, 12));
}

}  // namespace
}  // namespace milepost
