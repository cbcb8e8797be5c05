#include "engine/plan/passes/recompute_budget.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/plan/passes/memory_pass.h"
#include "engine/plan/passes/recompute_pass.h"
#include "engine/plan/planner/planner.h"
#include "engine/plan/printing/printer.h"
#include "engine/plan/testing/plan_fixture.h"
#include "engine/plan/verification/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using testing::HasSubstr;

constexpr TestModel kBudgetModel = {.layers = 8, .width = 64, .heads = 4, .context = 64};

StepPlan Plan(PlanOptions options, Recompute recompute, int64_t budget = 0) {
  options.sequence = 64;
  options.recompute = recompute;
  options.recompute_budget = budget;
  absl::StatusOr<StepPlan> plan = PlanTraining(SpecOf(kBudgetModel), options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : StepPlan{};
}

int64_t Count(const StepPlan& plan, Recompute level) {
  return std::count(plan.recompute_of_block.begin(), plan.recompute_of_block.end(), level);
}

TEST(RecomputeBudget, KeepsWithinIt) {
  for (int stage : {0, 3}) {
    const PlanOptions options = OptionsOf(2, stage, DType::kBf16);
    const StepPlan none = Plan(options, Recompute::kNone);
    const int64_t most = PeakActivationBytes(none);
    const int64_t least = PeakActivationBytes(Plan(options, Recompute::kFull));
    ASSERT_LT(least, most);
    double flops = 0;
    for (int eighth = 8; eighth >= 0; --eighth) {
      const int64_t budget = least + (most - least) * eighth / 8;
      SCOPED_TRACE(absl::StrCat("stage ", stage, ", ", budget, " of ", most, " bytes"));
      const StepPlan plan = Plan(options, Recompute::kBudget, budget);
      EXPECT_LE(PeakActivationBytes(plan), budget);
      EXPECT_LE(plan.bytes_by_class[static_cast<int>(BufferClass::kActivations)], budget);
      EXPECT_EQ(Verify(plan), absl::OkStatus());
      EXPECT_EQ(plan.flops_per_step, none.flops_per_step);
      EXPECT_GE(plan.recompute_flops_per_step, flops) << "a smaller budget costs no less";
      flops = plan.recompute_flops_per_step;
    }
    EXPECT_GT(flops, 0);
  }
}

TEST(RecomputeBudget, SpendsNoFlopsWhereCheapOutputsAreEnough) {
  const PlanOptions options = OptionsOf(1, 0, DType::kBf16);
  const int64_t most = PeakActivationBytes(Plan(options, Recompute::kNone));
  const int64_t selective = PeakActivationBytes(Plan(options, Recompute::kSelective));
  const StepPlan all = Plan(options, Recompute::kBudget, most);
  EXPECT_EQ(Count(all, Recompute::kNone), 10);
  const StepPlan some = Plan(options, Recompute::kBudget, (most + selective) / 2);
  EXPECT_EQ(Count(some, Recompute::kFull), 0);
  EXPECT_GT(Count(some, Recompute::kSelective), 0);
  EXPECT_GT(Count(some, Recompute::kNone), 2);  // embedding and head make nothing again anyway
  EXPECT_EQ(some.recompute_flops_per_step, 0);
  // The first layers are the ones that do.
  EXPECT_EQ(some.recompute_of_block[1], Recompute::kSelective);
  EXPECT_EQ(some.recompute_of_block[8], Recompute::kNone);
}

// One block fewer would not be within it.
TEST(RecomputeBudget, MakesNoMoreAgainThanItMust) {
  const PlanOptions options = OptionsOf(1, 0, DType::kF32);
  const int64_t selective = PeakActivationBytes(Plan(options, Recompute::kSelective));
  const int64_t full = PeakActivationBytes(Plan(options, Recompute::kFull));
  const int64_t budget = (selective + full) / 2;
  const StepPlan plan = Plan(options, Recompute::kBudget, budget);
  const int64_t made_again = Count(plan, Recompute::kFull);
  EXPECT_GT(made_again, 1);
  EXPECT_LT(made_again, 8);
  // By hand: the same with the last of them selective instead.
  PlanOptions drafted = options;
  drafted.sequence = 64;
  drafted.recompute = Recompute::kBudget;
  drafted.recompute_budget = budget - 1;
  const int64_t tight = PeakActivationBytes(plan);
  drafted.recompute_budget = tight;
  EXPECT_EQ(PlanTraining(SpecOf(kBudgetModel), drafted)->recompute_of_block,
            plan.recompute_of_block);
  drafted.recompute_budget = tight - 1;
  const auto tighter = PlanTraining(SpecOf(kBudgetModel), drafted);
  ASSERT_TRUE(tighter.ok());
  EXPECT_GE(tighter->recompute_flops_per_step, plan.recompute_flops_per_step);
  EXPECT_NE(tighter->recompute_of_block, plan.recompute_of_block);
}

TEST(RecomputeBudget, SaysTheLeastThatIsPossible) {
  PlanOptions options = OptionsOf(1, 0, DType::kF32);
  const int64_t least = PeakActivationBytes(Plan(options, Recompute::kFull));
  options.sequence = 64;
  options.recompute = Recompute::kBudget;
  options.recompute_budget = 1000;
  const absl::Status status = PlanTraining(SpecOf(kBudgetModel), options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("train.recompute_budget: 1000 bytes are too few"));
  EXPECT_THAT(status.message(), HasSubstr(absl::StrCat(least, " are needed")));
}

TEST(RecomputeBudget, IsPrinted) {
  const PlanOptions options = OptionsOf(1, 0, DType::kF32);
  const int64_t full = PeakActivationBytes(Plan(options, Recompute::kFull));
  const StepPlan plan = Plan(options, Recompute::kBudget, full);
  EXPECT_THAT(PlanTable(plan), HasSubstr("full in "));
  EXPECT_THAT(PlanJson(plan), HasSubstr("\"recompute_blocks\""));
}

TEST(KeptBytes, IsWhatTheBackwardReads) {
  const StepPlan none = Plan(OptionsOf(1, 0, DType::kBf16), Recompute::kNone);
  const StepPlan full = Plan(OptionsOf(1, 0, DType::kBf16), Recompute::kFull);
  const int64_t unit = 2 * 64 * 64 * 2;             // one activation, bf16
  const int64_t statistics = 2 * 64 * (4 + 4) * 4;  // of two norms, and attention's sums
  EXPECT_EQ(KeptBytes(none.train.graph)[3], 16 * unit + statistics);
  EXPECT_EQ(KeptBytes(full.train.graph)[3], unit);
}

}  // namespace
}  // namespace milepost::plan
