#include "engine/plan/passes/side_by_side_pass.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/estimates/device_profile.h"
#include "engine/plan/estimates/estimate.h"
#include "engine/plan/passes/stream_pass.h"
#include "engine/plan/testing/plan_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

StepPlan PlanBeside(int64_t side_by_side, int64_t accumulation = 4, int tensor = 2, int world = 1,
                    int stage = 0, int prefetch = 1) {
  PlanOptions options = OptionsOf(world, stage, DType::kF32);
  options.prefetch = prefetch;
  options.tensor = tensor;
  options.accumulation = accumulation;
  options.side_by_side = side_by_side;
  auto plan = PlanTraining(SpecOf({.layers = 3}), options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

bool IsExchange(const PlannedOp& op) {
  return op.stream == Stream::kCommunication && op.op.attributes.group < 0 &&
         IsCommunication(op.op.kind);
}

// While an exchange is on its way the next op that computes is mostly another micro-batch's. Not so
// where all products of a phase are one op, which has no two parts.
TEST(SideBySidePass, AnotherMicroBatchComputesBesideAnExchange) {
  for (const int64_t together : {2, 4}) {
    const StepPlan plan = PlanBeside(together);
    EXPECT_EQ(plan.options.MicroSteps(), 4 / together);
    int exchanges = 0, alone = 0;
    for (size_t i = 0; i < plan.train.ops.size(); ++i) {
      if (!IsExchange(plan.train.ops[i])) continue;
      ++exchanges;
      const int own = plan.train.ops[i].op.attributes.micro_batch;
      for (size_t k = i + 1; k < plan.train.ops.size(); ++k) {
        if (plan.train.ops[k].stream != Stream::kCompute) continue;
        alone += plan.train.ops[k].op.attributes.micro_batch == own;
        break;
      }
    }
    EXPECT_GT(exchanges, 20 * together);
    EXPECT_LE(alone, exchanges / 6) << "of " << exchanges;
  }
}

// And in turn each micro-batch waits.
TEST(SideBySidePass, ExchangesAreHidden) {
  DeviceProfile profile;
  profile.matmul["F32"] = {1e9, 1e9};
  profile.memory_bandwidth = 1e12;
  profile.host_bandwidth = 1e9;
  profile.overlap = 1;
  const StepEstimate in_turn = EstimateStep(PlanBeside(1), profile);
  const StepEstimate beside = EstimateStep(PlanBeside(2), profile);
  EXPECT_NEAR(beside.communication_seconds, in_turn.communication_seconds,
              1e-6 * in_turn.communication_seconds);
  EXPECT_GT(in_turn.exposed_seconds, 0.9 * in_turn.communication_seconds);
  EXPECT_LT(beside.exposed_seconds, 0.2 * in_turn.exposed_seconds);
}

// Parameters, gradients and sums are those of all; everything else is a micro-batch's own.
TEST(SideBySidePass, MicroBatchesHaveTheirOwnValues) {
  const StepPlan plan = PlanBeside(2);
  std::vector<std::set<graph::ValueId>> read(2);
  std::vector<std::set<graph::ValueId>> begun(2);  // gradients that an op assigns in a step's first
  for (const PlannedOp& planned : plan.train.ops) {
    if (planned.op.attributes.group >= 0 || planned.op.inputs.empty()) continue;
    const auto m = static_cast<size_t>(planned.op.attributes.micro_batch);
    for (const graph::ValueId input : planned.op.inputs) {
      if (input == graph::kNoValue) continue;
      const graph::ValueKind kind = plan.train.graph.values[input].kind;
      if (kind == graph::ValueKind::kActivation || kind == graph::ValueKind::kInput) {
        read[m].insert(input);
      }
    }
    for (const graph::Output& output : planned.op.outputs) {
      if (output.mode == graph::WriteMode::kAccumulateInStep) begun[m].insert(output.value);
    }
  }
  EXPECT_GT(read[0].size(), 30u);
  EXPECT_EQ(read[0].size(), read[1].size());
  for (const graph::ValueId value : read[1]) EXPECT_FALSE(read[0].contains(value)) << value;
  EXPECT_GT(begun[0].size(), 10u);
  EXPECT_TRUE(begun[1].empty());
}

TEST(SideBySidePass, ABlockIsGatheredOnceForAll) {
  const auto gathers = [](const StepPlan& plan) {
    double count = 0;
    for (const PlannedOp& op : plan.train.ops) count += op.op.kind == OpKind::kGatherParameters;
    return count * static_cast<double>(plan.options.MicroSteps());
  };
  for (const int tensor : {1, 2}) {
    for (const int prefetch : {0, 1}) {
      const auto of = [&](int64_t together) {
        return gathers(PlanBeside(together, 4, tensor, /*world=*/2, /*stage=*/3, prefetch));
      };
      EXPECT_EQ(of(2), of(1) / 2) << tensor << " tensor ranks, prefetch " << prefetch;
      EXPECT_EQ(of(4), of(1) / 4) << tensor << " tensor ranks, prefetch " << prefetch;
    }
  }
}

TEST(SideBySidePass, OptionsThatItCannotHaveAreRefused) {
  const auto refused = [](auto change) {
    PlanOptions options = OptionsOf(1, 0, DType::kF32);
    options.accumulation = 4;
    options.side_by_side = 2;
    change(options);
    EXPECT_THAT(PlanTraining(SpecOf({.layers = 3}), options).status().message(),
                testing::HasSubstr("train.batch.side_by_side"));
  };
  refused([](PlanOptions& o) { o.side_by_side = 3; });
  refused([](PlanOptions& o) { o.side_by_side = 0; });
  refused([](PlanOptions& o) { o.pipeline = 2; });
  refused([](PlanOptions& o) { o.offload_activations = true; });
}

}  // namespace
}  // namespace milepost::plan
