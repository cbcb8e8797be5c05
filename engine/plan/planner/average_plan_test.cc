// What averages of parameters (train.ema) cost, and what is proven of the plans that keep them.
#include <string>
#include <utility>

#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/testing/plan_fixture.h"
#include "engine/plan/verification/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using testing::HasSubstr;

constexpr std::pair<int, int> kLayouts[] = {{1, 0}, {2, 0}, {2, 1}, {2, 2}, {3, 3}};

PlanOptions Averaging(int world, int stage, DType dtype) {
  PlanOptions options = OptionsOf(world, stage, dtype);
  options.averages = true;
  return options;
}

TEST(AveragePlan, FourBytesForEachParameterOfAShard) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const bool masters : {true, false}) {
      if (!masters && dtype != DType::kBf16) continue;
      for (const auto& [world, stage] : kLayouts) {
        PlanOptions options = Averaging(world, stage, dtype);
        options.masters = masters;
        const auto with = PlanTraining(SpecOf({}), options);
        options.averages = false;
        const auto without = PlanTraining(SpecOf({}), options);
        ASSERT_TRUE(with.ok() && without.ok()) << with.status();  // and so verified
        int64_t shards = 0, saved = 0;
        for (const FlatGroup& group : with->groups) {
          shards += group.shard_elements;
          saved += group.padded_elements / world;
          EXPECT_EQ(StatesOf(group).back().kind, "ema");
        }
        // Nothing else: what takes the parameters' place needs no memory of its own.
        EXPECT_EQ(with->arena_bytes - without->arena_bytes, 4 * shards);
        EXPECT_EQ(SnapshotBytes(*with) - SnapshotBytes(*without), 4 * saved);
        EXPECT_TRUE(without->exchange.ops.empty());
      }
    }
  }
}

StepPlan PlanOf(int world, int stage) {
  return *PlanTraining(SpecOf({}), Averaging(world, stage, DType::kBf16));
}

PlannedOp& Find(Program& program, graph::OpKind kind) {
  for (PlannedOp& op : program.ops) {
    if (op.op.kind == kind) return op;
  }
  ADD_FAILURE() << "no " << graph::Name(kind);
  return program.ops[0];
}

TEST(AveragePlan, ALostAverageIsFound) {
  StepPlan plan = PlanOf(2, 1);
  std::erase_if(plan.train.ops, [](const PlannedOp& op) {
    return op.op.kind == graph::OpKind::kAverageParameters && op.op.attributes.group == 1;
  });
  EXPECT_FALSE(Verify(plan).ok());
}

TEST(AveragePlan, AnAverageOfWhatIsNotUpdatedYetIsFound) {
  StepPlan plan = PlanOf(1, 0);
  PlannedOp& average = Find(plan.train, graph::OpKind::kAverageParameters);
  PlannedOp& update = Find(plan.train, graph::OpKind::kOptimizer);
  std::swap(average, update);
  EXPECT_THAT(Verify(plan).message(), HasSubstr("is not updated yet"));
}

TEST(AveragePlan, AGroupThatIsNotExchangedIsFound) {
  StepPlan plan = PlanOf(1, 0);
  plan.exchange.ops.pop_back();
  EXPECT_THAT(Verify(plan).message(), HasSubstr("is left out"));
}

TEST(AveragePlan, AGroupThatIsNotGatheredIsFound) {
  StepPlan plan = PlanOf(2, 1);
  ASSERT_EQ(plan.gather.ops.size(), plan.groups.size());
  plan.gather.ops.pop_back();
  EXPECT_THAT(Verify(plan).message(), HasSubstr("is left out"));
  EXPECT_TRUE(PlanOf(3, 3).gather.ops.empty());
}

}  // namespace
}  // namespace milepost::plan
