#include "engine/kernels/cuda/libraries/job_choices.h"

#include <gtest/gtest.h>

#include <string>

namespace milepost::kernels::cuda {
namespace {

constexpr size_t kMost = 64 << 10;

Algorithm Numbered(uint64_t number) { return {.words = {number}}; }

TEST(JobChoices, AreThoseOfEachDeviceThatTheJobMet) {
  JobChoices first("H200");
  first.Put("m=1", Numbered(1));
  first.Put("m=1", Numbered(9));  // the first one counts
  const std::string of_h200 = first.Text(kMost);

  JobChoices second("A100");
  EXPECT_TRUE(absl::IsFailedPrecondition(second.Use(of_h200)));
  EXPECT_EQ(second.Find("m=1"), nullptr);
  second.Put("m=1", Numbered(2));
  const std::string of_both = second.Text(kMost);

  JobChoices third("H200");
  ASSERT_EQ(third.Use(of_both), absl::OkStatus());
  ASSERT_NE(third.Find("m=1"), nullptr);
  EXPECT_EQ(third.Find("m=1")->words[0], 1u);
  third.Put("m=2", Numbered(3));
  JobChoices fourth("A100");
  ASSERT_EQ(fourth.Use(third.Text(kMost)), absl::OkStatus());
  EXPECT_EQ(fourth.Find("m=1")->words[0], 2u);
  EXPECT_EQ(fourth.Find("m=2"), nullptr);
  EXPECT_EQ(third.Text(10), JobChoices(third).Text(0));
  EXPECT_LT(third.Text(0).size(), third.Text(kMost).size());
}

TEST(JobChoices, DamageCostsItsTableAlone) {
  JobChoices first("H200");
  first.Put("m=1", Numbered(1));
  JobChoices second("A100");
  EXPECT_FALSE(second.Use(first.Text(kMost)).ok());
  second.Put("m=1", Numbered(2));
  std::string text = second.Text(kMost);
  text[text.find("m=1")] = 'x';  // of the A100's
  JobChoices damaged("A100");
  EXPECT_TRUE(absl::IsDataLoss(damaged.Use(text)));
  EXPECT_EQ(damaged.Find("m=1"), nullptr);
  JobChoices whole("H200");
  ASSERT_EQ(whole.Use(text), absl::OkStatus());
  EXPECT_EQ(whole.Find("m=1")->words[0], 1u);
  EXPECT_FALSE(whole.Use("nothing of ours").ok());
  EXPECT_FALSE(whole.Use("").ok());
}

}  // namespace
}  // namespace milepost::kernels::cuda
