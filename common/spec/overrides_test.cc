#include "common/spec/overrides.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/spec/parse.h"
#include "common/spec/spec_fixture.h"
#include "common/spec/validate.h"

namespace milepost {
namespace {

using ::testing::HasSubstr;

v1::JobSpec ParsedOverrides(const std::string& yaml) {
  auto spec = ParseJobSpecYaml(yaml, "test.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

absl::Status Set(const std::vector<std::string>& texts, v1::JobSpec* spec) {
  Overrides overrides;
  for (const std::string& text : texts) {
    auto one = ParseOverride(text);
    if (!one.ok()) return one.status();
    *overrides.Add() = *one;
  }
  return ApplyOverrides(overrides, "--set", spec);
}

std::string Refusal(const std::vector<std::string>& texts) {
  v1::JobSpec spec = ParsedOverrides("{model: {gpt2: {layers: 2}}, train: {steps: 5}}");
  const v1::JobSpec before = spec;
  const absl::Status status = Set(texts, &spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(spec.SerializeAsString(), before.SerializeAsString());
  return std::string(status.message());
}

TEST(OverridesTest, SetsScalarsWhereverTheyLie) {
  v1::JobSpec spec = ParsedOverrides("{model: {gpt2: {layers: 2}}, train: {steps: 5}}");
  ASSERT_TRUE(Set({"train.optimizer.lr=3e-4", "train.precision = bf16", "name=other",
                   "scheduling.time_limit=90m", "train.recompute=auto", "model.gpt2.layers=4",
                   "resources.memory=2GiB"},
                  &spec)
                  .ok());
  EXPECT_EQ(
      spec.SerializeAsString(),
      ParsedOverrides("{name: other, model: {gpt2: {layers: 4}}, "
                      "train: {steps: 5, precision: bf16, recompute: auto, optimizer: {lr: 3e-4}}, "
                      "resources: {memory: 2GiB}, scheduling: {time_limit: 90m}}")
          .SerializeAsString());
}

TEST(OverridesTest, TheLastOneOfAPathCounts) {
  v1::JobSpec spec;
  ASSERT_TRUE(Set({"train.steps=7", "train.steps=9"}, &spec).ok());
  EXPECT_EQ(spec.train().steps(), 9);
}

TEST(OverridesTest, ListsAndMappingsAreReplacedAsAWhole) {
  v1::JobSpec spec = ParsedOverrides(
      "{scheduling: {depends_on: [jobs/1, jobs/2]}, train: {schedule: {type: constant, "
      "warmup_steps: 3}}}");
  ASSERT_TRUE(Set({"scheduling.depends_on=[jobs/3]", "train.schedule={type: linear}"}, &spec).ok());
  EXPECT_EQ(
      spec.SerializeAsString(),
      ParsedOverrides("{scheduling: {depends_on: [jobs/3]}, train: {schedule: {type: linear}}}")
          .SerializeAsString());
}

TEST(OverridesTest, NullTakesAFieldOut) {
  v1::JobSpec spec =
      ParsedOverrides("{train: {steps: 5, seed: 3}, scheduling: {depends_on: [jobs/1]}}");
  ASSERT_TRUE(
      Set({"train.seed=null", "scheduling.depends_on=", "report.tensorboard=null"}, &spec).ok());
  EXPECT_FALSE(spec.train().has_seed());
  EXPECT_EQ(spec.scheduling().depends_on_size(), 0);
  EXPECT_FALSE(spec.has_report());
}

TEST(OverridesTest, WhatFollowsFromTheOthersIsDerivedAnew) {
  v1::JobSpec spec =
      ParsedOverrides("{train: {batch: {global: 16, micro: 2}}, resources: {ranks: 2}}");
  NormalizeJobSpec(&spec);
  ASSERT_EQ(spec.train().batch().accumulation(), 4);
  v1::JobSpec larger = spec;
  ASSERT_TRUE(Set({"train.batch.global=32"}, &larger).ok());
  NormalizeJobSpec(&larger);
  EXPECT_EQ(larger.train().batch().accumulation(), 8);
  v1::JobSpec longer = spec;
  ASSERT_TRUE(Set({"train.batch.accumulation=1"}, &longer).ok());
  NormalizeJobSpec(&longer);
  EXPECT_EQ(longer.train().batch().global(), 4);
  v1::JobSpec wider = spec;
  ASSERT_TRUE(Set({"resources.ranks=4"}, &wider).ok());
  NormalizeJobSpec(&wider);
  EXPECT_EQ(wider.train().batch().global(), 16);
  EXPECT_EQ(wider.train().batch().accumulation(), 2);
}

TEST(OverridesTest, RefusesWithWhatItMayHaveMeant) {
  EXPECT_THAT(Refusal({"train.optimizer.ir=1"}),
              HasSubstr("--set: train.optimizer.ir: unknown field; did you mean 'lr'?"));
  EXPECT_THAT(Refusal({"train.optimiser.lr=1"}), HasSubstr("did you mean 'optimizer'?"));
  EXPECT_THAT(Refusal({"train.steps=many"}),
              HasSubstr("--set: train.steps: expected a whole number, got 'many'"));
  EXPECT_THAT(Refusal({"train.steps.x=1"}), HasSubstr("train.steps: expected"));
  EXPECT_THAT(Refusal({"train=7"}), HasSubstr("train: expected a mapping of fields, got '7'"));
  EXPECT_THAT(Refusal({"data.mixture.path=/x"}), HasSubstr("data.mixture: is a list"));
  EXPECT_THAT(Refusal({"train.steps=1", "train.precision=fp7"}), HasSubstr("train.precision"));
  EXPECT_THAT(Refusal({"train.steps"}), HasSubstr("expected path=value"));
  EXPECT_THAT(Refusal({"=1"}), HasSubstr("expected the path of a field"));
  EXPECT_THAT(Refusal({"data.mixture[0].path=1"}), HasSubstr("expected the path of a field"));
  EXPECT_THAT(Refusal({"train.steps=1\ndata: {}"}), HasSubstr("one line"));
  EXPECT_THAT(Refusal({"train.steps=*anchor"}), HasSubstr("--set: not valid YAML"));
  EXPECT_THAT(Refusal(std::vector<std::string>(101, "train.steps=1")), HasSubstr("at most 100"));
  EXPECT_THAT(Refusal({"a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a=1"}), HasSubstr("no field lies so deep"));
}

}  // namespace
}  // namespace milepost
