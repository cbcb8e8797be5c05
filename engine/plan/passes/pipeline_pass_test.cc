#include "engine/plan/passes/pipeline_pass.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/models/model.h"
#include "engine/plan/planner/planner.h"
#include "engine/plan/testing/plan_fixture.h"
#include "engine/plan/verification/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using graph::OpKind;
using ::testing::HasSubstr;

constexpr PipelineSchedule kOrders[] = {PipelineSchedule::kOneForwardOneBackward,
                                        PipelineSchedule::kZeroBubble};

PlanOptions StageOptions(int stages, int stage, int64_t micro_batches,
                         PipelineSchedule schedule = kOrders[0]) {
  PlanOptions options = OptionsOf(1, 0, DType::kF32);
  options.pipeline = stages;
  options.stage = stage;
  options.schedule = schedule;
  options.accumulation = micro_batches;
  return options;
}

StepPlan PlanStage(const PlanOptions& options, int64_t layers = 4) {
  auto plan = PlanTraining(SpecOf({.layers = layers}), options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

std::vector<std::string> TransfersOf(const Program& program, Stream stream) {
  std::vector<std::string> transfers;
  for (const PlannedOp& op : program.ops) {
    if (op.stream != stream) continue;
    transfers.push_back(absl::StrCat(op.op.kind == OpKind::kStageSend ? "to " : "from ",
                                     op.op.attributes.peer_stage, ": ",
                                     op.op.attributes.micro_batch));
  }
  return transfers;
}

// The parameters of all stages are those of the model, each at one stage, but for the embedding,
// which is the head of the last one too.
TEST(PipelinePass, EveryParameterHasItsStage) {
  std::multiset<std::string> held;
  size_t parameters = 0;
  for (int stage = 0; stage < 3; ++stage) {
    const StepPlan plan = PlanStage(StageOptions(3, stage, 4));
    for (const FlatGroup& group : plan.groups) {
      for (const GroupParameter& p : group.parameters) {
        held.insert(p.name);
        EXPECT_EQ(group.shared, p.name == "transformer.wte.weight") << p.name;
      }
    }
    parameters = plan.train.graph.parameters.size();
  }
  EXPECT_EQ(held.size(), parameters + 1);
  EXPECT_EQ(held.count("transformer.wte.weight"), 2);
}

// Both ends of a stream between two stages come to the same transfers in the same order.
TEST(PipelinePass, SendsMeetReceives) {
  for (const PipelineSchedule schedule : kOrders) {
    std::vector<StepPlan> plans;
    for (int stage = 0; stage < 4; ++stage) {
      plans.push_back(PlanStage(StageOptions(4, stage, 6, schedule)));
    }
    for (int stage = 0; stage + 1 < 4; ++stage) {
      for (const bool forward : {true, false}) {
        const Stream stream = forward ? Stream::kStageActivations : Stream::kStageGradients;
        const int from = forward ? stage : stage + 1, to = forward ? stage + 1 : stage;
        std::vector<std::string> sent, received;
        for (const std::string& one : TransfersOf(plans[from].train, stream)) {
          const std::string prefix = absl::StrCat("to ", to, ": ");
          if (one.starts_with(prefix)) sent.push_back(one.substr(prefix.size()));
        }
        for (const std::string& one : TransfersOf(plans[to].train, stream)) {
          const std::string prefix = absl::StrCat("from ", from, ": ");
          if (one.starts_with(prefix)) received.push_back(one.substr(prefix.size()));
        }
        EXPECT_EQ(sent, received);
        EXPECT_EQ(sent.size() % 6, 0);
        EXPECT_GT(sent.size(), 0);
      }
    }
  }
}

TEST(PipelinePass, EveryStageIsVerified) {
  for (const PipelineSchedule schedule : kOrders) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      for (const int zero : {0, 1, 2, 3}) {
        for (int stage = 0; stage < 3; ++stage) {
          PlanOptions options = StageOptions(3, stage, 5, schedule);
          options.world = zero == 0 ? 1 : 2;
          options.zero_stage = zero;
          options.recompute = recompute;
          EXPECT_EQ(Verify(PlanStage(options)), absl::OkStatus())
              << Name(schedule) << ", stage " << stage << ", ZeRO " << zero;
        }
      }
    }
  }
}

// With more micro-batches than it keeps, a stage needs no more memory but for their inputs.
TEST(PipelinePass, MemoryIsThatOfTheMicroBatchesThatAreKept) {
  for (const PipelineSchedule schedule : kOrders) {
    const auto activations = [&](int stage, int64_t micro_batches) {
      const StepPlan plan = PlanStage(StageOptions(4, stage, micro_batches, schedule), 8);
      return static_cast<double>(plan.bytes_by_class[static_cast<int>(BufferClass::kActivations)]);
    };
    for (int stage = 0; stage < 3; ++stage) {
      EXPECT_LT(activations(stage, 16), 1.05 * activations(stage, 8)) << stage;
    }
    if (schedule == PipelineSchedule::kZeroBubble) continue;
    // Of as many layers as the stage before has: three micro-batches instead of four.
    EXPECT_LT(activations(2, 8), 0.8 * activations(1, 8));
  }
}

TEST(PipelinePass, OneMicroBatchIsEnough) {
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(Verify(PlanStage(StageOptions(4, stage, 1))), absl::OkStatus());
  }
}

// The sum of the stages' products is the model's.
TEST(PipelinePass, StagesDoTheModelsWork) {
  double flops = 0;
  for (int stage = 0; stage < 4; ++stage) {
    const StepPlan plan = PlanStage(StageOptions(4, stage, 3));
    for (const PlannedOp& op : plan.train.ops) flops += op.flops;
    EXPECT_NEAR(plan.flops_per_step * 4, PlanStage(StageOptions(1, 0, 3)).flops_per_step, 1);
  }
  EXPECT_NEAR(flops, PlanStage(StageOptions(1, 0, 3)).flops_per_step, 1);
}

class PipelineVerify : public testing::Test {
 protected:
  PipelineVerify() : plan_(PlanStage(StageOptions(3, 0, 4))) {}
  size_t First(OpKind kind) const {
    const auto& ops = plan_.train.ops;
    return static_cast<size_t>(
        std::find_if(ops.begin(), ops.end(),
                     [&](const PlannedOp& op) { return op.op.kind == kind; }) -
        ops.begin());
  }
  void ExpectRefused(const char* message) const {
    EXPECT_THAT(Verify(plan_).message(), HasSubstr(message));
  }
  StepPlan plan_;
};

TEST_F(PipelineVerify, SharedGradientsAreAddedBeforeTheirUse) {
  const PlannedOp& reduction = plan_.train.ops[First(OpKind::kReduceShared)];
  plan_.groups[reduction.op.attributes.group].shared = false;
  ExpectRefused("the gradients of stages are added 1 times");
}

TEST_F(PipelineVerify, WireBytesOfATransfer) {
  plan_.train.ops[First(OpKind::kStageSend)].wire_bytes += 4;
  ExpectRefused("stage_send sends");
}

// What a pass has received is read only once it is there.
TEST_F(PipelineVerify, AReceiveIsWaitedFor) {
  const auto received = static_cast<int32_t>(First(OpKind::kStageReceive));
  for (PlannedOp& op : plan_.train.ops) std::erase(op.wait_for, received);
  ExpectRefused("neither waits for the other");
}

}  // namespace
}  // namespace milepost::plan
