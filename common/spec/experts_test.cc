// What a spec says of experts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "common/spec/parse.h"
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
      {"resources.device",
       [](auto* s) { s->mutable_resources()->set_device(v1::DEVICE_KIND_CUDA); }},
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

}  // namespace
}  // namespace milepost
