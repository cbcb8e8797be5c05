#include "common/spec/labels.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "milepost/v1/job.pb.h"

namespace milepost {
namespace {

std::string Refusal(const std::string& key, const std::string& value) {
  v1::Job job;
  (*job.mutable_labels())["fine"] = "too";
  (*job.mutable_labels())[key] = value;
  return std::string(CheckLabels(job.labels()).message());
}

TEST(LabelsTest, HaveAForm) {
  EXPECT_EQ(Refusal("team", "vision"), "");
  EXPECT_EQ(Refusal("example.org/team_2", ""), "");
  EXPECT_EQ(Refusal(std::string(63, 'k'), std::string(63, 'v')), "");
  EXPECT_NE(Refusal("", "x"), "");
  EXPECT_NE(Refusal("-team", "x"), "");
  EXPECT_NE(Refusal("te am", "x"), "");
  EXPECT_NE(Refusal("team=", "x"), "");
  EXPECT_NE(Refusal(std::string(64, 'k'), "x"), "");
  EXPECT_EQ(Refusal("team", "a b"),
            "labels: the value 'a b' of team must have at most 63 letters, digits, '-', '_' and "
            "'.'");
  EXPECT_NE(Refusal("team", "a/b"), "");
  EXPECT_NE(Refusal("team", std::string(64, 'v')), "");
  EXPECT_NE(Refusal("team", "\x1b[2J").find("\\x1b"), std::string::npos);
}

TEST(LabelsTest, AreBounded) {
  v1::Job job;
  for (int i = 0; i < kMostLabels; ++i) (*job.mutable_labels())[absl::StrCat("k", i)] = "v";
  EXPECT_TRUE(CheckLabels(job.labels()).ok());
  (*job.mutable_labels())["one-more"] = "v";
  EXPECT_EQ(CheckLabels(job.labels()).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace milepost
