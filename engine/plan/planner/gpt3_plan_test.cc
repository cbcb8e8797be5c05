// A model no host here could train is planned all the same.
#include <gtest/gtest.h>

#include "common/spec/parse.h"
#include "engine/plan/planner/planner.h"
#include "engine/plan/verification/verify.h"

namespace milepost::plan {
namespace {

TEST(Gpt3Plan, Has175Billion) {
  const auto spec = LoadJobSpec("examples/gpt3-175b.yaml");  // tests run in the source folder
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto options = OptionsFromSpec(*spec, 1);
  ASSERT_TRUE(options.ok()) << options.status();
  const auto plan = PlanTraining(*spec, *options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(Verify(*plan).ok()) << Verify(*plan);
  constexpr int64_t kWidth = 12288;
  // Of a layer: qkv, attention's projection, the MLP's two products with their biases, two norms.
  constexpr int64_t kLayer = 12 * kWidth * kWidth + 13 * kWidth;
  EXPECT_EQ(plan->parameters, 96 * kLayer + (50257 + 2048 + 2) * kWidth);
}

}  // namespace
}  // namespace milepost::plan
