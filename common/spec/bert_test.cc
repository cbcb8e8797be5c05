// What a spec says of a BERT and its data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
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

JobSpec WithBert(const std::function<void(JobSpec*)>& change = [](JobSpec*) {}) {
  auto spec = ParseJobSpecYaml(kSpecYaml, "f.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status();
  v1::BertSpec* bert = spec->mutable_model()->mutable_bert();
  bert->set_layers(2);
  bert->set_width(64);
  bert->set_heads(4);
  bert->set_context(48);
  bert->set_vocabulary(256);
  spec->mutable_data()->mutable_masking()->set_mask_token(3);
  change(&*spec);
  NormalizeJobSpec(&*spec);
  return *std::move(spec);
}

TEST(BertTest, HasDefaults) {
  const JobSpec spec = WithBert();
  EXPECT_THAT(CheckJobSpec(spec), IsEmpty());
  EXPECT_EQ(spec.model().bert().hidden(), 256);
  EXPECT_EQ(spec.model().bert().segments(), 2);
  EXPECT_EQ(spec.model().bert().norm_epsilon(), 1e-12);
  EXPECT_EQ(spec.data().sequence_length(), 48);
  EXPECT_EQ(spec.data().masking().probability(), 0.15);
}

TEST(BertTest, EachBrokenRuleOfItAndItsDataIsFound) {
  const std::vector<std::pair<const char*, std::function<void(JobSpec*)>>> cases = {
      {"model.bert.heads", [](auto* s) { s->mutable_model()->mutable_bert()->set_heads(5); }},
      {"model.bert.layers", [](auto* s) { s->mutable_model()->mutable_bert()->set_layers(0); }},
      {"model.bert.hidden", [](auto* s) { s->mutable_model()->mutable_bert()->set_hidden(-1); }},
      {"model.bert.segments",
       [](auto* s) { s->mutable_model()->mutable_bert()->set_segments(-1); }},
      {"model.bert.dropout", [](auto* s) { s->mutable_model()->mutable_bert()->set_dropout(1); }},
      {"model.bert.norm_epsilon",
       [](auto* s) { s->mutable_model()->mutable_bert()->set_norm_epsilon(0); }},
      {"data.masking", [](auto* s) { s->mutable_data()->clear_masking(); }},
      {"data.masking.probability",
       [](auto* s) { s->mutable_data()->mutable_masking()->set_probability(0); }},
      {"data.masking.mask_token",
       [](auto* s) { s->mutable_data()->mutable_masking()->set_mask_token(256); }},
      {"data.masking.mask_token",
       [](auto* s) { s->mutable_data()->mutable_masking()->clear_mask_token(); }},
      {"data.masking.special_tokens[0]",
       [](auto* s) { s->mutable_data()->mutable_masking()->add_special_tokens(-1); }},
      {"data.document_separator", [](auto* s) { s->mutable_data()->set_document_separator(256); }},
      {"data.segment_separator", [](auto* s) { s->mutable_data()->set_segment_separator(-1); }},
      {"data.segment_separator",
       [](auto* s) {
         s->mutable_data()->set_segment_separator(3);
         s->mutable_model()->mutable_bert()->set_segments(0);
       }},
      {"data.padding", [](auto* s) { s->mutable_data()->set_padding(999); }},
  };
  for (const auto& [field, change] : cases) {
    const auto violations = CheckJobSpec(WithBert(change));
    ASSERT_EQ(violations.size(), 1u) << field;
    EXPECT_EQ(violations[0].field, field);
  }
}

TEST(BertTest, ADistilBertHasNoSegments) {
  const JobSpec spec =
      WithBert([](JobSpec* s) { s->mutable_model()->mutable_bert()->set_segments(0); });
  EXPECT_THAT(CheckJobSpec(spec), IsEmpty());
  EXPECT_EQ(spec.model().bert().segments(), 0);
}

TEST(BertTest, AGpt2HasNeitherMasksNorSegments) {
  const JobSpec gpt2 = WithBert([](JobSpec* s) {
    *s->mutable_model() = ParseJobSpecYaml(kSpecYaml, "f.yaml")->model();
    s->mutable_data()->set_segment_separator(3);
  });
  EXPECT_EQ(CheckJobSpec(gpt2).size(), 2u);
}

}  // namespace
}  // namespace milepost
