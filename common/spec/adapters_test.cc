// What a spec says of adapters, and of preferences beside them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/spec/parse.h"
#include "common/spec/spec_fixture.h"
#include "common/spec/validate.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

using ::testing::IsEmpty;
using v1::JobSpec;

JobSpec WithLora(const std::function<void(JobSpec*)>& change = [](JobSpec*) {}) {
  auto spec = ParseJobSpecYaml(kSpecYaml, "f.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status();
  spec->mutable_model()->mutable_lora()->set_rank(8);
  spec->mutable_train()->set_init_from("/models/tiny");
  spec->mutable_train()->mutable_dpo();
  spec->mutable_data()->set_document_separator(3);
  change(&*spec);
  NormalizeJobSpec(&*spec);
  return *std::move(spec);
}

TEST(AdaptersTest, HaveDefaults) {
  const JobSpec spec = WithLora();
  EXPECT_THAT(CheckJobSpec(spec), IsEmpty());
  EXPECT_EQ(spec.model().lora().alpha(), 8);
  EXPECT_FALSE(spec.model().lora().rank_stabilized());
  EXPECT_FALSE(spec.model().lora().has_dora());  // checkpoints from before it go on
  EXPECT_EQ(StateDigest(spec), StateDigest(WithLora([](JobSpec* s) {
              s->mutable_model()->mutable_lora()->set_dora(false);
            })));
  EXPECT_EQ(spec.train().dpo().beta(), 0.1);
  EXPECT_EQ(StateDigest(spec), StateDigest(WithLora([](JobSpec* s) {
              s->mutable_model()->mutable_lora()->set_dropout(0.1);
              s->mutable_model()->mutable_lora()->set_quantize_base(v1::BASE_QUANTIZATION_NF4);
              s->mutable_train()->mutable_dpo()->set_beta(1);
            })));
  EXPECT_NE(StateDigest(spec), StateDigest(WithLora([](JobSpec* s) {
              s->mutable_model()->mutable_lora()->add_targets("c_attn");
            })));
  EXPECT_NE(StateDigest(spec), StateDigest(WithLora([](JobSpec* s) {
              s->mutable_model()->mutable_lora()->set_dora(true);
            })));
}

TEST(AdaptersTest, FindsEachBrokenRule) {
  const std::vector<std::pair<const char*, std::function<void(JobSpec*)>>> cases = {
      {"model.lora.rank", [](auto* s) { s->mutable_model()->mutable_lora()->set_rank(1025); }},
      {"model.lora.alpha", [](auto* s) { s->mutable_model()->mutable_lora()->set_alpha(0); }},
      {"model.lora.dropout", [](auto* s) { s->mutable_model()->mutable_lora()->set_dropout(1); }},
      {"model.lora.dropout",
       [](auto* s) {
         s->mutable_model()->mutable_lora()->set_dora(true);
         s->mutable_model()->mutable_lora()->set_dropout(0.1);
       }},
      {"model.lora.targets[0]",
       [](auto* s) { s->mutable_model()->mutable_lora()->add_targets(""); }},
      {"model.lora.also_train[0]",
       [](auto* s) {
         s->mutable_train()->clear_dpo();
         s->mutable_model()->mutable_lora()->add_also_train(std::string(257, 'a'));
       }},
      {"model.lora", [](auto* s) { s->mutable_train()->clear_init_from(); }},
      {"model.lora.quantize_base",
       [](auto* s) {
         s->mutable_model()->mutable_lora()->set_quantize_base(v1::BASE_QUANTIZATION_NF4);
         s->mutable_train()->clear_dpo();
         s->mutable_train()->set_precision(v1::PRECISION_FP8);
       }},
      {"train.dpo.beta", [](auto* s) { s->mutable_train()->mutable_dpo()->set_beta(0); }},
      {"train.dpo.label_smoothing",
       [](auto* s) { s->mutable_train()->mutable_dpo()->set_label_smoothing(0.5); }},
      {"train.dpo", [](auto* s) { s->mutable_data()->clear_document_separator(); }},
      {"train.dpo",
       [](auto* s) {
         s->mutable_model()->clear_lora();
         s->mutable_train()->clear_init_from();
       }},
      {"train.dpo",
       [](auto* s) { s->mutable_model()->mutable_lora()->add_also_train("ln_f.weight"); }},
      {"train.dpo", [](auto* s) { s->mutable_train()->set_precision(v1::PRECISION_FP8); }},
  };
  for (const auto& [field, change] : cases) {
    const auto violations = CheckJobSpec(WithLora(change));
    ASSERT_EQ(violations.size(), 1u) << field;
    EXPECT_EQ(violations[0].field, field);
  }
  // Their model is not in a checkpoint: both are given. Nor is what preferences compare with.
  for (const bool lora : {true, false}) {
    const JobSpec spec = WithLora([lora](JobSpec* s) {
      if (!lora) s->mutable_model()->clear_lora();
      s->mutable_checkpoint()->set_resume_from("checkpoints/3");
    });
    EXPECT_THAT(CheckJobSpec(spec), IsEmpty());
    EXPECT_TRUE(KeepsInitialWeights(spec));
  }
}

}  // namespace
}  // namespace milepost
