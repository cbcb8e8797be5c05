// Plans of islands that train apart: what they keep and send, and what is proven of them.
#include <algorithm>
#include <utility>
#include <vector>

#include "engine/plan/testing/verify_fixture.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

PlanOptions OfIslands(int islands, int world, int stage, DType dtype = DType::kBf16) {
  PlanOptions options = OptionsOf(world, stage, dtype);
  options.islands = islands;
  options.outer_every = 10;
  options.outer_lr = 0.7;
  options.outer_momentum = 0.9;
  options.outer_nesterov = true;
  return options;
}

StepPlan IslandPlanOf(const PlanOptions& options) {
  absl::StatusOr<StepPlan> plan = PlanTraining(SpecOf({}), options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

// A step is that of a job of the island's ranks alone; beside it two numbers of each element stay.
TEST(OuterPlan, AStepIsAnIslandsOwn) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const int world : {1, 2, 3}) {
        const StepPlan with = IslandPlanOf(OfIslands(4, world, stage, dtype));
        absl::StatusOr<StepPlan> alone = PlanTraining(SpecOf({}), OptionsOf(world, stage, dtype));
        ASSERT_TRUE(alone.ok());
        EXPECT_EQ(with.train.ops.size(), alone->train.ops.size());
        EXPECT_EQ(with.wire_bytes_per_step, alone->wire_bytes_per_step);
        EXPECT_EQ(with.flops_per_step, alone->flops_per_step);
        int64_t shards = 0, gathered = 0;
        for (const FlatGroup& group : with.groups) {
          shards += group.shard_elements;
          gathered += group.padded_elements * ByteSize(group.parameter_dtype);
        }
        const auto kept = [](const StepPlan& plan) {
          return plan.bytes_by_class[static_cast<int>(BufferClass::kOptimizer)];
        };
        EXPECT_EQ(kept(with) - kept(*alone), 8 * shards);
        // Master, m and v, of which each byte passes three of four islands, twice.
        double sent = 2 * 0.75 * 3 * 4 * static_cast<double>(shards);
        const bool gathers = world > 1 && (stage == 1 || stage == 2);
        if (gathers) sent += (1 - 1.0 / world) * static_cast<double>(gathered);
        EXPECT_NEAR(with.outer_wire_bytes, sent, 1);
      }
    }
  }
}

TEST(OuterPlan, OneIslandSendsNothing) {
  EXPECT_EQ(IslandPlanOf(OfIslands(1, 1, 0)).outer_wire_bytes, 0);
  const StepPlan plan = IslandPlanOf(OfIslands(1, 2, 3));
  for (const PlannedOp& op : plan.outer.ops) EXPECT_EQ(op.op.kind, OpKind::kOuterUpdate);
}

// While one group's masters are moved the next one's travel.
TEST(OuterPlan, AveragesDoNotWaitForTheUpdatesBeforeThem) {
  const StepPlan plan = IslandPlanOf(OfIslands(2, 2, 3));
  for (const PlannedOp& op : plan.outer.ops) {
    if (op.op.kind != OpKind::kAverageIslands) continue;
    EXPECT_EQ(op.stream, Stream::kCommunication);
    EXPECT_TRUE(op.wait_for.empty());
  }
}

TEST(OuterPlan, RefusesAGroupThatIsForgottenOrDoneTwice) {
  const StepPlan plan = IslandPlanOf(OfIslands(2, 2, 1));
  const auto each = [&](Program StepPlan::*program) {
    const size_t count = (plan.*program).ops.size();
    for (size_t i = 0; i < count; ++i) {
      std::vector<int> order = Identity(plan.*program);
      order.erase(order.begin() + static_cast<std::ptrdiff_t>(i));
      StepPlan without = plan;
      Reorder(without.*program, order);
      ExpectRefused(without, "without " + Describe(plan.*program, i));
      StepPlan twice = plan;
      (twice.*program).ops.push_back((plan.*program).ops[i]);
      ExpectRefused(twice, "twice " + Describe(plan.*program, i));
    }
  };
  each(&StepPlan::anchor);
  each(&StepPlan::outer);
}

TEST(OuterPlan, RefusesAnUpdateBeforeItsSums) {
  StepPlan plan = IslandPlanOf(OfIslands(2, 2, 1));
  const int update = FindOp(plan.outer, OpKind::kOuterUpdate);
  std::vector<int> order = Identity(plan.outer);
  std::swap(order[update - 1], order[update]);
  Reorder(plan.outer, order);
  ExpectRefused(plan, "an update before a sum");
}

TEST(OuterPlan, RefusesTheWrongStateAndTheWrongBytes) {
  StepPlan plan = IslandPlanOf(OfIslands(2, 2, 1));
  const int sum = FindOp(plan.outer, OpKind::kAverageIslands);
  plan.outer.ops[sum].op.attributes.state = 2;
  ExpectRefused(plan, "v twice, and the master not at all");
  plan = IslandPlanOf(OfIslands(2, 2, 1));
  plan.outer.ops[sum].wire_bytes *= 2;
  ExpectRefused(plan, "twice the bytes", "bytes");
}

TEST(OuterPlan, IsForStatesInFp32InTheDevicesMemory) {
  const auto refused = [](auto change) {
    PlanOptions options = OfIslands(2, 2, 1);
    change(options);
    EXPECT_THAT(PlanTraining(SpecOf({}), options).status().message(),
                testing::HasSubstr("train.sync"));
  };
  refused([](PlanOptions& o) { o.state_dtype = DType::kBf16; });
  refused([](PlanOptions& o) { o.optimizer = Optimizer::kAdamW8Bit; });
  refused([](PlanOptions& o) { o.masters = false; });
  refused([](PlanOptions& o) { o.offload_optimizer = true; });
  refused([](PlanOptions& o) { o.averages = true; });
  refused([](PlanOptions& o) { o.outer_every = 0; });
}

}  // namespace
}  // namespace milepost::plan
