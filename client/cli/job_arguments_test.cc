#include "client/cli/job_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"

namespace milepost::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// "a=1 b=2; a=1 b=3"
std::string Expanded(const std::vector<std::string>& texts) {
  const auto elements = ExpandArray(texts);
  if (!elements.ok()) return absl::StrCat("! ", elements.status().message());
  std::string text;
  for (const v1::ArrayElement& element : *elements) {
    for (const v1::SpecOverride& one : element.overrides()) {
      absl::StrAppend(&text, one.path(), "=", one.value(), " ");
    }
    absl::StrAppend(&text, "; ");
  }
  return text;
}

TEST(JobArgumentsTest, ArraysAreProducts) {
  EXPECT_EQ(Expanded({"train.seed=1,2"}), "train.seed=1 ; train.seed=2 ; ");
  EXPECT_EQ(Expanded({"a=1,2  b=x,y"}), "a=1 b=x ; a=1 b=y ; a=2 b=x ; a=2 b=y ; ");
  EXPECT_EQ(Expanded({"a=1,2", "b=x"}), "a=1 b=x ; a=2 b=x ; ");
  EXPECT_EQ(Expanded({"a=[1, 2],[3] b={c: d, e: f} c='x, y'"}),
            "a=[1, 2] b={c: d, e: f} c='x, y' ; a=[3] b={c: d, e: f} c='x, y' ; ");
}

TEST(JobArgumentsTest, ArraysThatAreNone) {
  EXPECT_THAT(Expanded({}), HasSubstr("! --array: expected paths"));
  EXPECT_THAT(Expanded({"  "}), HasSubstr("! --array: expected paths"));
  EXPECT_THAT(Expanded({"a"}), HasSubstr("expected path=value"));
  EXPECT_THAT(Expanded({"a=1,,2"}), HasSubstr("a: expected values"));
  EXPECT_THAT(Expanded({"a="}), HasSubstr("a: expected values"));
  EXPECT_THAT(Expanded({"a=1 a=2"}), HasSubstr("a is given twice"));
  EXPECT_THAT(Expanded({"a=1,2,1"}), HasSubstr("a has a value twice"));
  std::string many = "a=0";
  for (int i = 1; i < 100; ++i) absl::StrAppend(&many, ",", i);
  EXPECT_THAT(Expanded({many, "b=1,2,3,4,5,6,7,8,9,10"}), HasSubstr("b=10"));
  EXPECT_THAT(Expanded({many, "b=1,2,3,4,5,6,7,8,9,10,11"}), HasSubstr("more than 1000 jobs"));
}

TEST(JobArgumentsTest, Selectors) {
  const auto all = ParseSelector("team=vision, owner!=ann,gpu,!old");
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), 4u);
  const auto text = [](const v1::LabelRequirement& one) {
    return absl::StrCat(one.key(), " ", v1::LabelRequirement::Operator_Name(one.operator_()), " ",
                        one.value());
  };
  EXPECT_EQ(text((*all)[0]), "team OPERATOR_EQUALS vision");
  EXPECT_EQ(text((*all)[1]), "owner OPERATOR_NOT_EQUALS ann");
  EXPECT_EQ(text((*all)[2]), "gpu OPERATOR_EXISTS ");
  EXPECT_EQ(text((*all)[3]), "old OPERATOR_ABSENT ");
  for (const char* bad : {"", "=x", "a,,b", "a b", "team=x y", "!"}) {
    EXPECT_FALSE(ParseSelector(bad).ok()) << bad;
  }
}

TEST(JobArgumentsTest, States) {
  EXPECT_THAT(*ParseState("Running"), ElementsAre(v1::JOB_STATE_RUNNING));
  EXPECT_THAT(*ParseState("ended"),
              ElementsAre(v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_FAILED, v1::JOB_STATE_CANCELLED));
  EXPECT_EQ(ParseState("active")->size(), 9u);
  EXPECT_THAT(std::string(ParseState("runing").status().message()),
              HasSubstr("did you mean 'running'?"));
}

TEST(JobArgumentsTest, LabelsAreAddedReplacedAndTakenAway) {
  v1::Job job;
  (*job.mutable_labels())["a"] = "1";
  (*job.mutable_labels())["b"] = "2";
  ASSERT_TRUE(ChangeLabels({"a=3", "b-", "c=", "absent-"}, job.mutable_labels()).ok());
  EXPECT_EQ(job.labels_size(), 2);
  EXPECT_EQ(job.labels().at("a"), "3");
  EXPECT_EQ(job.labels().at("c"), "");
  EXPECT_FALSE(ChangeLabels({"a"}, job.mutable_labels()).ok());
  EXPECT_FALSE(ChangeLabels({"=a"}, job.mutable_labels()).ok());
}

v1::Job WithLoss(const std::string& name, int64_t step, double train, double validation) {
  v1::Job job;
  job.set_name(name);
  job.mutable_progress()->set_step(step);
  job.mutable_progress()->set_train_loss(train);
  job.mutable_progress()->set_validation_loss(validation);
  job.mutable_progress()->set_validation_step(std::isnan(validation) ? 0 : step);
  return job;
}

TEST(SortJobsTest, TheLeastFirstAndThoseWithoutLast) {
  const double none = std::nan("");
  const std::vector<v1::Job> jobs = {WithLoss("a", 0, 0, none), WithLoss("b", 5, 2, 1),
                                     WithLoss("c", 5, none, none), WithLoss("d", 5, 1, 3)};
  const auto sorted = [&](const std::string& order) {
    std::vector<v1::Job> some = jobs;
    SortJobs(order, &some);
    std::string names;
    for (const v1::Job& job : some) names += job.name();
    return names;
  };
  EXPECT_EQ(sorted("newest"), "abcd");
  EXPECT_EQ(sorted("loss"), "dbac");
  EXPECT_EQ(sorted("validation"), "bdac");
}

}  // namespace
}  // namespace milepost::client
