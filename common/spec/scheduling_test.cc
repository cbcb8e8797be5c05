#include "common/spec/scheduling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/duration.h"
#include "common/spec/parse.h"
#include "common/spec/to_yaml.h"

namespace milepost {
namespace {

using ::testing::HasSubstr;

TEST(DurationTest, ReadsWhatPeopleWrite) {
  EXPECT_EQ(ParseSeconds("90"), 90);
  EXPECT_EQ(ParseSeconds("0.5h"), 1800);
  EXPECT_EQ(ParseSeconds("1d12h"), 129600);
  EXPECT_EQ(ParseSeconds("2m30s"), 150);
  EXPECT_EQ(ParseSeconds("500ms"), 0.5);
  for (const char* bad :
       {"", "h", "1h30", "5 m", "-3s", "1e3", "1.2.3s", "99999999d", "1w", "nan"}) {
    EXPECT_EQ(ParseSeconds(bad), std::nullopt) << bad;
  }
}

TEST(SchedulingTest, DefaultsAreValid) {
  v1::JobSpec spec;
  NormalizeJobSpec(&spec);
  EXPECT_EQ(spec.scheduling().queue(), "default");
  EXPECT_TRUE(CheckScheduling(spec.scheduling()).empty());
}

TEST(SchedulingTest, SaysWhichFieldIsWrong) {
  v1::SchedulingSpec scheduling;
  scheduling.set_queue("a queue");
  scheduling.set_priority(1001);
  scheduling.set_time_limit(-1);
  for (const char* name : {"jobs/1", "jobs/1", "jobs/x"}) scheduling.add_depends_on(name);
  std::vector<std::string> fields;
  for (const FieldViolation& violation : CheckScheduling(scheduling)) {
    fields.push_back(violation.field);
  }
  EXPECT_THAT(fields, ::testing::ElementsAre("scheduling.queue", "scheduling.priority",
                                             "scheduling.time_limit", "scheduling.depends_on[1]",
                                             "scheduling.depends_on[2]"));
}

TEST(SchedulingTest, WhatIsPrintedCanBeReadAgain) {
  v1::JobSpec spec;
  for (const double seconds : {100'000.0, 1'000'000.0, 0.5}) {
    spec.mutable_scheduling()->set_time_limit(seconds);
    const auto again = ParseJobSpecYaml(MessageToYaml(spec), "spec");
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->scheduling().time_limit(), seconds);
  }
}

TEST(SchedulingTest, ATimeLimitMayHaveUnits) {
  const auto spec = ParseJobSpecYaml("scheduling: {time_limit: 36h, depends_on: [jobs/3]}", "spec");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->scheduling().time_limit(), 129600);
  EXPECT_EQ(spec->scheduling().depends_on(0), "jobs/3");
  EXPECT_THAT(ParseJobSpecYaml("scheduling: {time_limit: long}", "spec").status().message(),
              HasSubstr("expected a length of time such as 90m, 12h or 1d12h"));
}

}  // namespace
}  // namespace milepost
