#include "common/spec/spec_fixture.h"

#include "common/spec/task_heads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/spec/parse.h"
#include "common/spec/validate.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using v1::JobSpec;

void AddHead(JobSpec* spec, const std::string& name) {
  v1::TaskHeadSpec* head = spec->mutable_model()->add_heads();
  head->set_name(name);
  head->set_classes(5);
  v1::LabelSource* labels = spec->mutable_data()->add_labels();
  labels->set_head(name);
  labels->set_train("/" + name + ".npy");
}

JobSpec WithHeads(const std::function<void(JobSpec*)>& change = [](JobSpec*) {}) {
  JobSpec spec = ParseJobSpecYaml(kSpecYaml, "f.yaml").value();
  spec.mutable_data()->clear_validation();
  AddHead(&spec, "tag");
  AddHead(&spec, "Other_2");
  NormalizeJobSpec(&spec);
  change(&spec);
  return spec;
}

v1::TaskHeadSpec* Head(JobSpec* spec) { return spec->mutable_model()->mutable_heads(1); }
v1::LabelSource* Labels(JobSpec* spec) { return spec->mutable_data()->mutable_labels(1); }

TEST(TaskHeads, WeighOneUnlessTheySayOtherwise) {
  const JobSpec spec = WithHeads();
  EXPECT_THAT(CheckJobSpec(spec), IsEmpty());
  EXPECT_EQ(spec.model().head_weight(), 1);
  EXPECT_EQ(spec.model().heads(1).weight(), 1);
  JobSpec none = ParseJobSpecYaml(kSpecYaml, "f.yaml").value();
  NormalizeJobSpec(&none);
  EXPECT_FALSE(none.model().has_head_weight());  // as specs were before there were any
  EXPECT_THAT(CheckJobSpec(none), IsEmpty());
}

TEST(TaskHeads, EveryBrokenRuleIsNamed) {
  struct Case {
    const char* field;
    const char* message;
    std::function<void(JobSpec*)> change;
  };
  const std::vector<Case> cases = {
      {"model.heads[1].name", "required: 1 to 63 letters", [](auto* s) { Head(s)->clear_name(); }},
      {"model.heads[1].name", "'_' only, got 'a.b'", [](auto* s) { Head(s)->set_name("a.b"); }},
      {"model.heads[1].name", "own head", [](auto* s) { Head(s)->set_name("mlm"); }},
      {"model.heads[1].name", "two heads are called", [](auto* s) { Head(s)->set_name("tag"); }},
      {"model.heads[1].name", "whatever the case", [](auto* s) { Head(s)->set_name("TAG"); }},
      {"model.heads[1].classes", "2 to", [](auto* s) { Head(s)->set_classes(1); }},
      {"model.heads[1].weight", "remove the head", [](auto* s) { Head(s)->set_weight(0); }},
      {"model.heads[1].weight", "got nan",
       [](auto* s) { Head(s)->set_weight(std::numeric_limits<double>::quiet_NaN()); }},
      {"model.heads", "at most 7",
       [](auto* s) {
         for (int i = 0; i < 6; ++i) AddHead(s, absl::StrCat("h", i));
       }},
      {"model.head_weight", "got -1", [](auto* s) { s->mutable_model()->set_head_weight(-1); }},
      {"model.head_weight", "no model.heads",
       [](auto* s) {
         s->mutable_model()->set_head_weight(0.5);
         s->mutable_model()->clear_heads();
         s->mutable_data()->clear_labels();
       }},
      {"data.labels", "head: Other_2",
       [](auto* s) { s->mutable_data()->mutable_labels()->RemoveLast(); }},
      {"data.labels[1].head", "no entry of model.heads", [](auto* s) { Labels(s)->set_head("x"); }},
      {"data.labels[1].head", "two entries", [](auto* s) { Labels(s)->set_head("tag"); }},
      {"data.labels[1].train", "required", [](auto* s) { Labels(s)->clear_train(); }},
      {"data.labels[1].train", "absolute", [](auto* s) { Labels(s)->set_train("a.npy"); }},
      {"data.labels[1].train", ".npy", [](auto* s) { Labels(s)->set_train("/a.bin"); }},
      {"data.labels[1].train", "control", [](auto* s) { Labels(s)->set_train("/a\n.npy"); }},
      {"data.labels[1].train", "characters",
       [](auto* s) { Labels(s)->set_train("/" + std::string(5000, 'a')); }},
      {"data.labels[1].validation", "no data.validation",
       [](auto* s) { Labels(s)->set_validation("/v.npy"); }},
      {"data.labels[0].validation", "required",
       [](auto* s) { s->mutable_data()->set_validation("/v.npy"); }},
      {"model.heads", "data.mixture",
       [](auto* s) {
         s->mutable_data()->clear_train();
         s->mutable_data()->add_mixture()->set_path("/a.npy");
       }},
  };
  for (const Case& c : cases) {
    const std::vector<FieldViolation> found = CheckTaskHeads(WithHeads(c.change));
    ASSERT_FALSE(found.empty()) << c.field << " " << c.message;
    bool named = false;
    for (const FieldViolation& violation : found) {
      named |= violation.field == c.field && absl::StrContains(violation.message, c.message);
    }
    EXPECT_TRUE(named) << c.field << ": " << c.message << "; found " << found[0].field << ": "
                       << found[0].message;
  }
}

// Tar shards, and folders of them, may hold labels themselves; a .npy may not.
TEST(TaskHeads, LabelsOfShardsNeedNoFile) {
  JobSpec spec = WithHeads([](JobSpec* s) {
    s->mutable_model()->mutable_resnet()->set_classes(3);
    for (v1::LabelSource& labels : *s->mutable_data()->mutable_labels()) labels.clear_train();
    s->mutable_data()->set_train("/shards/a-{0..3}.tar");
  });
  EXPECT_THAT(CheckTaskHeads(spec), IsEmpty());
  spec.mutable_data()->set_train("/images.npy");
  EXPECT_EQ(CheckTaskHeads(spec).size(), 2u);
}

TEST(TaskHeads, WeightsMayChangeOnResumption) {
  const JobSpec base = WithHeads();
  JobSpec other = base;
  other.mutable_model()->set_head_weight(0.25);
  other.mutable_model()->mutable_heads(0)->set_weight(3);
  EXPECT_EQ(StateDigest(base), StateDigest(other));
  EXPECT_NE(LineageDigest(base), LineageDigest(other));
  other.mutable_model()->mutable_heads(0)->set_classes(6);
  EXPECT_NE(StateDigest(base), StateDigest(other));
}

}  // namespace
}  // namespace milepost
