#include "coordinator/core/job_filter.h"

#include <gtest/gtest.h>

#include <vector>

#include "google/protobuf/text_format.h"

namespace milepost::coordinator {
namespace {

template <typename Message>
Message Of(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

bool Matches(const std::string& request, const std::string& job) {
  return coordinator::Matches(Of<v1::ListJobsRequest>(request), Of<v1::Job>(job));
}

absl::Status Check(const std::string& request) {
  return CheckFilter(Of<v1::ListJobsRequest>(request));
}

TEST(JobFilterTest, EmptyMatchesEverything) {
  EXPECT_TRUE(Matches("", ""));
  EXPECT_TRUE(Check("").ok());
}

TEST(JobFilterTest, WhatIsReadIsFieldsOfAJob) {
  EXPECT_TRUE(Check("read_mask { paths: 'state' paths: 'spec.train.steps' }").ok());
  EXPECT_EQ(Check("read_mask { paths: 'state' paths: 'spec.stepps' }").message(),
            "read_mask: a job has no field 'spec.stepps'");
  v1::ListJobsRequest many;
  for (int i = 0; i < 101; ++i) many.mutable_read_mask()->add_paths("state");
  EXPECT_EQ(CheckFilter(many).message(), "read_mask: at most 100");
  EXPECT_EQ(FilterDigest(Of<v1::ListJobsRequest>("read_mask { paths: 'state' }")), FilterDigest({}))
      << "a page token stays good";
}

TEST(JobFilterTest, EachFieldNarrows) {
  const std::string job = R"(
      state: JOB_STATE_RUNNING
      spec { name: "gpt-large" scheduling { queue: "research" } }
      array { name: "arrays/4" })";
  EXPECT_TRUE(Matches("states: JOB_STATE_RUNNING", job));
  EXPECT_TRUE(Matches("states: JOB_STATE_QUEUED states: JOB_STATE_RUNNING", job));
  EXPECT_FALSE(Matches("states: JOB_STATE_QUEUED", job));
  EXPECT_TRUE(Matches("queue: 'research'", job));
  EXPECT_FALSE(Matches("queue: 'default'", job));
  EXPECT_TRUE(Matches("queue: 'default'", "state: JOB_STATE_QUEUED"));
  EXPECT_TRUE(Matches("name_prefix: 'gpt-'", job));
  EXPECT_FALSE(Matches("name_prefix: 'pt-'", job));
  EXPECT_TRUE(Matches("array: 'arrays/4'", job));
  EXPECT_FALSE(Matches("array: 'arrays/5'", job));
  EXPECT_FALSE(Matches("array: 'arrays/4'", ""));
  EXPECT_FALSE(Matches("states: JOB_STATE_RUNNING queue: 'default'", job)) << "all have to hold";
}

TEST(JobFilterTest, LabelRequirements) {
  const std::string job = "labels { key: 'team' value: 'vision' }";
  const auto one = [](const std::string& key, const std::string& op, const std::string& value) {
    return "label_requirements { key: '" + key + "' operator: OPERATOR_" + op + " value: '" +
           value + "' } ";
  };
  EXPECT_TRUE(Matches(one("team", "EQUALS", "vision"), job));
  EXPECT_FALSE(Matches(one("team", "EQUALS", "speech"), job));
  EXPECT_FALSE(Matches(one("team", "EQUALS", ""), job));
  EXPECT_FALSE(Matches(one("owner", "EQUALS", ""), job));
  EXPECT_FALSE(Matches(one("team", "NOT_EQUALS", "vision"), job));
  EXPECT_TRUE(Matches(one("team", "NOT_EQUALS", "speech"), job));
  EXPECT_TRUE(Matches(one("owner", "NOT_EQUALS", "ann"), job));
  EXPECT_TRUE(Matches(one("team", "EXISTS", ""), job));
  EXPECT_FALSE(Matches(one("owner", "EXISTS", ""), job));
  EXPECT_TRUE(Matches(one("owner", "ABSENT", ""), job));
  EXPECT_FALSE(Matches(one("team", "ABSENT", ""), job));
  EXPECT_FALSE(Matches(one("team", "EXISTS", "") + one("owner", "EXISTS", ""), job));
}

TEST(JobFilterTest, RefusesWhatCannotBeAskedFor) {
  const std::vector<std::string> bad = {
      "states: JOB_STATE_UNSPECIFIED",
      "queue: 'a b'",
      "array: 'jobs/4'",
      "array: 'arrays/04'",
      "label_requirements { key: '' operator: OPERATOR_EXISTS }",
      "label_requirements { key: 'a' }",
      "label_requirements { key: 'a' operator: OPERATOR_EQUALS value: 'x y' }",
  };
  for (const std::string& request : bad) {
    EXPECT_EQ(Check(request).code(), absl::StatusCode::kInvalidArgument) << request;
  }
  v1::ListJobsRequest request;
  request.add_states(static_cast<v1::JobState>(999));
  EXPECT_FALSE(CheckFilter(request).ok());
  request.Clear();
  request.set_name_prefix(std::string(64, 'x'));
  EXPECT_FALSE(CheckFilter(request).ok());
  request.Clear();
  for (int i = 0; i < 33; ++i) {
    *request.add_label_requirements() =
        Of<v1::LabelRequirement>("key: 'a' operator: OPERATOR_EXISTS");
  }
  EXPECT_FALSE(CheckFilter(request).ok());
}

TEST(JobFilterTest, DigestIsOfTheFilterAlone) {
  const auto digest = [](const std::string& request) {
    return FilterDigest(Of<v1::ListJobsRequest>(request));
  };
  EXPECT_EQ(digest("queue: 'a' page_size: 3 page_token: 'x'"), digest("queue: 'a'"));
  EXPECT_NE(digest("queue: 'a'"), digest("queue: 'b'"));
  EXPECT_NE(digest("queue: 'a'"), digest("queue: 'a' project: 'p'"));
  EXPECT_NE(digest(""), digest("states: JOB_STATE_FAILED"));
}

}  // namespace
}  // namespace milepost::coordinator
