#include "worker/script/script_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/proto_time.h"

namespace milepost::worker {
namespace {

using testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1'000'000);

std::string Status(const std::string& members) {
  return absl::StrCat("{\"trainerStatus\": {", members, "}}");
}

// What transformers 5.23 posts.
TEST(ScriptProgressTest, TakesWhatTransformersPosts) {
  ScriptProgress script;
  EXPECT_TRUE(std::isnan(script.progress().train_loss()));
  EXPECT_EQ(script.Take(Status(R"("lastUpdatedTime": "2026-11-26T12:00:00+00:00",
      "progressPercentage": 0, "metrics": [{"name": "total_steps", "value": "200"}])"),
                        kNow),
            absl::OkStatus());
  EXPECT_EQ(script.progress().step(), 0);
  EXPECT_EQ(script.progress().total_steps(), 200);
  EXPECT_EQ(script.Take(Status(R"("progressPercentage": 21, "estimatedRemainingSeconds": 90,
      "metrics": [{"name": "eval_loss", "value": "2.5"}, {"name": "loss", "value": "2.25"},
                  {"name": "learning_rate", "value": "0.001"},
                  {"name": "grad_norm", "value": "3.5"},
                  {"name": "current_step", "value": "42"}, {"name": "total_steps", "value": "200"},
                  {"name": "current_epoch", "value": "0.5"}])"),
                        kNow),
            absl::OkStatus());
  const v1::Progress& progress = script.progress();
  EXPECT_EQ(progress.step(), 42);
  EXPECT_EQ(progress.total_steps(), 200);
  EXPECT_EQ(progress.train_loss(), 2.25);
  EXPECT_EQ(progress.validation_loss(), 2.5);
  EXPECT_EQ(progress.validation_step(), 42) << "though its step came behind it";
  EXPECT_EQ(progress.lr(), 0.001);
  EXPECT_EQ(progress.grad_norm(), 3.5);
  EXPECT_EQ(progress.remaining_seconds(), 90);
  EXPECT_EQ(progress.metrics().at("current_epoch"), 0.5);
  EXPECT_EQ(progress.metrics_size(), 1);
  EXPECT_EQ(FromProto(progress.time()), kNow);
  EXPECT_EQ(script.Take(Status(R"("progressPercentage": 100, "estimatedRemainingSeconds": 0,
      "metrics": [{"name": "loss", "value": "2.0"}])"),
                        kNow),
            absl::OkStatus());
  EXPECT_EQ(progress.step(), 200) << "the last status has no step";
}

TEST(ScriptProgressTest, APercentageIsNoStepWhereStepsAreCounted) {
  ScriptProgress script;
  for (const char* percent : {"50", "100"}) {
    EXPECT_EQ(script.Take(Status(absl::StrCat(R"("metrics": [{"name": "current_step", "value": 7}],
                                                 "progressPercentage": )",
                                              percent)),
                          kNow),
              absl::OkStatus());
    EXPECT_EQ(script.progress().step(), 7);
    EXPECT_EQ(script.progress().total_steps(), 0);
  }
}

TEST(ScriptProgressTest, APercentageIsTheStepWhereThereIsNoOther) {
  ScriptProgress script;
  EXPECT_EQ(script.Take(Status(R"("progressPercentage": 21)"), kNow), absl::OkStatus());
  EXPECT_EQ(script.progress().step(), 21);
  EXPECT_EQ(script.progress().total_steps(), 100);
  EXPECT_EQ(script.Take(Status(R"("progressPercentage": 1e300)"), kNow), absl::OkStatus());
  EXPECT_EQ(script.progress().step(), 100);
  EXPECT_EQ(script.Take(Status(R"("progressPercentage": 2, "metrics": [
      {"name": "current_step", "value": 4}, {"name": "total_steps", "value": 200}])"),
                        kNow),
            absl::OkStatus());
  EXPECT_EQ(script.progress().step(), 4);
  EXPECT_EQ(script.progress().total_steps(), 200);
}

TEST(ScriptProgressTest, WhatIsNoStatusIsRefusedAndChangesNothing) {
  ScriptProgress script;
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("[]"), std::string("{\"trainerStatus\": 7}"),
        std::string("\0\xff", 2), std::string(60000, '[')}) {
    EXPECT_THAT(std::string(script.Take(body, kNow).message()),
                HasSubstr("expected a JSON object"));
  }
  EXPECT_FALSE(
      script.Take(Status(R"("metrics": {"loss": 1}, "progressPercentage": 5)"), kNow).ok());
  EXPECT_EQ(script.progress().step(), 0);
  // Metrics that are none are passed over; the others count.
  EXPECT_EQ(script.Take(Status(R"("metrics": [7, {"name": 1, "value": 2}, {"name": "a"},
      {"name": "b", "value": "x"}, {"name": "current_step", "value": "-1"},
      {"name": "total_steps", "value": "1e30"}, {"name": "loss", "value": "nan"},
      {"name": "c", "value": "1"}], "estimatedRemainingSeconds": -5)"),
                        kNow),
            absl::OkStatus());
  EXPECT_EQ(script.progress().step(), 0);
  EXPECT_EQ(script.progress().total_steps(), 0);
  EXPECT_EQ(script.progress().remaining_seconds(), 0);
  EXPECT_EQ(script.progress().metrics_size(), 1);
}

TEST(ScriptProgressTest, NamesAreBounded) {
  ScriptProgress script;
  std::string metrics = absl::StrCat(R"({"name": ")", std::string(1000, 'n'), R"(", "value": 1})");
  for (int i = 0; i < 1000; ++i) {
    absl::StrAppend(&metrics, R"(, {"name": "m)", i, R"(", "value": )", i, "}");
  }
  EXPECT_EQ(script.Take(Status(absl::StrCat("\"metrics\": [", metrics, "]")), kNow),
            absl::OkStatus());
  EXPECT_EQ(script.progress().metrics_size(), ScriptProgress::kMostMetrics);
  // Those that are known go on.
  EXPECT_EQ(script.Take(Status(R"("metrics": [{"name": "m5", "value": 50}])"), kNow),
            absl::OkStatus());
  EXPECT_EQ(script.progress().metrics().at("m5"), 50);
}

}  // namespace
}  // namespace milepost::worker
