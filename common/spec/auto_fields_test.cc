// Fields with a word or a unit in the place of a number, from text to rules and back.
#include "common/spec/auto_fields.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "common/spec/parse.h"
#include "common/spec/spec_fixture.h"
#include "common/spec/to_yaml.h"
#include "common/spec/validate.h"

namespace milepost {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::JobSpec Parsed(const std::string& train, const std::string& resources) {
  std::string yaml = kSpecYaml;
  yaml.replace(yaml.find("  batch:\n    global: 16\n    micro: 4\n"), 36, train);
  auto spec = ParseJobSpecYaml(yaml + resources, "f.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : v1::JobSpec();
}

v1::JobSpec AllAuto() {
  return Parsed("  batch: {global: 16, micro: auto}\n  zero: {stage: auto}\n  recompute: auto\n",
                "  memory: 1.5GiB\n  profile: h200\n");
}

TEST(AutoFields, ReadBackAsTheyWereWritten) {
  const v1::JobSpec spec = AllAuto();
  EXPECT_TRUE(MicroIsAuto(spec));
  EXPECT_TRUE(StageIsAuto(spec));
  EXPECT_TRUE(RecomputeIsAuto(spec));
  EXPECT_EQ(spec.resources().memory(), int64_t{3} << 29);
  const std::string yaml = MessageToYaml(spec);
  EXPECT_THAT(yaml, HasSubstr("    micro: auto\n"));
  EXPECT_THAT(yaml, HasSubstr("    stage: auto\n"));
  EXPECT_THAT(yaml, HasSubstr("  recompute: auto\n"));
  const auto back = ParseJobSpecYaml(yaml, "f.yaml");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*back, spec));
}

TEST(AutoFields, AreValidAndStayAutoWhenNormalised) {
  v1::JobSpec spec = AllAuto();
  EXPECT_TRUE(HasAutoFields(spec));
  NormalizeJobSpec(&spec);
  EXPECT_THAT(CheckJobSpec(spec), IsEmpty());
  EXPECT_TRUE(MicroIsAuto(spec));
  EXPECT_FALSE(spec.train().batch().has_accumulation());
  v1::JobSpec given = Parsed("  batch: {global: 16, micro: 4}\n", "");
  NormalizeJobSpec(&given);
  EXPECT_FALSE(HasAutoFields(given));
  EXPECT_FALSE(given.resources().has_memory());
}

TEST(AutoFields, AutoMicroNeedsTheGlobalBatchAlone) {
  const auto problem = [](const std::string& batch) {
    v1::JobSpec spec = Parsed("  batch: " + batch + "\n", "");
    NormalizeJobSpec(&spec);
    const auto violations = CheckJobSpec(spec);
    return violations.size() == 1 ? violations[0].field + ": " + violations[0].message : "";
  };
  EXPECT_THAT(problem("{micro: auto, accumulation: 2}"),
              HasSubstr("train.batch.micro: auto chooses micro and accumulation together"));
  EXPECT_THAT(problem("{micro: auto}"), HasSubstr("give train.batch.global"));
  EXPECT_THAT(problem("{micro: auto, global: 15}"),
              HasSubstr("train.batch.global: must be a multiple of resources.ranks (2), got 15"));
}

TEST(AutoFields, OnlySomeFieldsMayBeAutoOrHaveUnits) {
  const auto error = [](const std::string& line) {
    const auto spec = ParseJobSpecYaml(line, "f.yaml");
    return std::string(spec.status().message());
  };
  EXPECT_THAT(error("train: {steps: auto}"), HasSubstr("expected a whole number, got 'auto'"));
  EXPECT_THAT(error("train: {batch: {micro: some}}"),
              HasSubstr("expected a whole number or auto, got 'some'"));
  EXPECT_THAT(error("train: {steps: 2GiB}"), HasSubstr("expected a whole number, got '2GiB'"));
  EXPECT_THAT(error("resources: {memory: 80Gigs}"),
              HasSubstr("f.yaml:1: resources.memory: expected bytes such as 80GiB"));
}

TEST(AutoFields, ABudgetBelongsToItsRecomputation) {
  const auto problem = [](const std::string& train) {
    v1::JobSpec spec = Parsed("  batch: {global: 16, micro: 4}\n" + train, "");
    NormalizeJobSpec(&spec);
    const auto violations = CheckJobSpec(spec);
    return violations.empty() ? "" : violations[0].field + ": " + violations[0].message;
  };
  EXPECT_EQ(problem("  recompute: budget\n  recompute_budget: 2GiB\n"), "");
  EXPECT_THAT(problem("  recompute: budget\n"), HasSubstr("train.recompute_budget: required"));
  EXPECT_THAT(problem("  recompute: full\n  recompute_budget: 2GiB\n"),
              HasSubstr("train.recompute_budget: only train.recompute: budget has it"));
}

}  // namespace
}  // namespace milepost
