#include "engine/plan/passes/offload_pass.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/plan/passes/memory_pass.h"
#include "engine/plan/testing/verify_fixture.h"

namespace milepost::plan {
namespace {

using graph::OpKind;
using graph::ValueId;

constexpr TestModel kModel = {.layers = 6, .width = 256};

PlanOptions PassOptions(int world = 1, int stage = 1, Recompute recompute = Recompute::kNone) {
  PlanOptions options = OptionsOf(world, stage, DType::kBf16);
  options.device = DeviceKind::kCuda;
  options.micro_batch = 4;
  options.recompute = recompute;
  options.offload_activations = true;
  return options;
}

StepPlan PlanOffload(const PlanOptions& options, const TestModel& model = kModel) {
  absl::StatusOr<StepPlan> plan = PlanTraining(SpecOf(model), options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : StepPlan{};
}

int64_t Bytes(const graph::Value& value) {
  return graph::Elements(value.shape) * ByteSize(value.dtype);
}

// What the plan without offloading keeps from the forward to a backward that is far enough, is
// copied once each way, and nobody reads the original in the backward.
TEST(OffloadPass, WhatIsKeptGoesToTheHostAndComesBackOnce) {
  const StepPlan plan = PlanOffload(PassOptions());
  const graph::Graph& graph = plan.train.graph;
  std::map<ValueId, ValueId> sent;
  std::set<ValueId> fetched;
  int64_t bytes = 0;
  for (const PlannedOp& planned : plan.train.ops) {
    const graph::Op& op = planned.op;
    if (op.kind == OpKind::kCopyToHost) {
      EXPECT_TRUE(sent.emplace(op.inputs[0], op.outputs[0].value).second);
      EXPECT_GE(Bytes(graph.values[op.inputs[0]]), kLeastOffloadBytes);
      EXPECT_EQ(plan.buffers[plan.train.places[op.outputs[0].value].buffer].memory, Memory::kHost);
      bytes += Bytes(graph.values[op.inputs[0]]);
    } else if (op.kind == OpKind::kCopyToDevice) {
      EXPECT_TRUE(fetched.insert(op.inputs[0]).second);
    } else if (op.phase != graph::Phase::kForward) {
      for (const ValueId input : op.inputs) EXPECT_EQ(sent.count(input), 0u);
    }
  }
  EXPECT_EQ(fetched.size(), sent.size());
  // Of four blocks that are far enough: 16 activations of rows x width each in a GPT-2 layer.
  const int64_t unit = 4 * 16 * 256 * 2;
  EXPECT_GE(bytes, 4 * 14 * unit);
  EXPECT_LE(bytes, 5 * 16 * unit);
  EXPECT_EQ(plan.offload_bytes_per_step, 3.0 * 2 * static_cast<double>(bytes));
}

TEST(OffloadPass, FetchesComeOneBlockAhead) {
  const StepPlan plan = PlanOffload(PassOptions());
  std::map<ValueId, int> fetched_in;  // block of the visit at whose begin a value is fetched
  for (const PlannedOp& planned : plan.train.ops) {
    const graph::Op& op = planned.op;
    if (op.kind == OpKind::kCopyToDevice) fetched_in[op.outputs[0].value] = op.block;
    if (op.phase == graph::Phase::kForward) continue;
    for (const ValueId input : op.inputs) {
      const auto fetched = fetched_in.find(input);
      if (fetched == fetched_in.end()) continue;
      EXPECT_EQ(fetched->second, op.block + 1) << plan.train.graph.values[input].name;
      fetched_in.erase(fetched);  // later readers find it there
    }
  }
}

TEST(OffloadPass, TheDeviceKeepsLess) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    PlanOptions options = PassOptions(1, 1, recompute);
    options.micro_batch = 16;
    const TestModel model = {.layers = 12, .width = 256};
    const StepPlan plan = PlanOffload(options, model);
    options.offload_activations = false;
    const StepPlan before = PlanOffload(options, model);
    const auto activations = static_cast<int>(BufferClass::kActivations);
    EXPECT_LT(plan.arena_bytes, before.arena_bytes);
    EXPECT_GT(plan.host_bytes_by_class[activations], 0);
    if (recompute != Recompute::kNone) continue;
    EXPECT_LT(PeakActivationBytes(plan), PeakActivationBytes(before) * 6 / 10);
  }
}

TEST(OffloadPass, EveryKindIsProved) {
  for (const int world : {1, 2}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const Recompute recompute :
           {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        for (const bool optimizer : {false, true}) {
          PlanOptions options = PassOptions(world, stage, recompute);
          options.offload_optimizer = optimizer;
          EXPECT_EQ(Verify(PlanOffload(options)), absl::OkStatus());
        }
      }
    }
  }
}

TEST(OffloadPass, EveryMissingWaitAndCopyIsSeen) {
  const StepPlan valid = PlanOffload(PassOptions(1, 1), {.layers = 4, .width = 256});
  int waits = 0;
  for (size_t i = 0; i < valid.train.ops.size(); ++i) {
    const PlannedOp& op = valid.train.ops[i];
    const std::string what = Describe(valid.train, i);
    for (size_t w = 0; w < op.wait_for.size(); ++w) {
      if (op.wait_for[w] == op.after) continue;
      StepPlan plan = valid;
      std::vector<int32_t>& of_op = plan.train.ops[i].wait_for;
      of_op.erase(of_op.begin() + static_cast<int>(w));
      ExpectRefused(plan, absl::StrCat(what, " without ", op.wait_for[w]), "neither waits");
      ++waits;
    }
    if (op.op.kind != OpKind::kCopyToHost && op.op.kind != OpKind::kCopyToDevice) continue;
    StepPlan plan = valid;
    std::vector<int> order = Identity(plan.train);
    order.erase(order.begin() + static_cast<int>(i));
    Reorder(plan.train, order);
    EXPECT_FALSE(VerifyValues(plan, plan.train).ok()) << "without " << what;
  }
  EXPECT_GT(waits, 20);
}

TEST(OffloadPass, WhatIsSmallStays) {
  PlanOptions options = PassOptions();
  options.micro_batch = 1;
  const StepPlan plan = PlanOffload(options, {.layers = 4, .width = 32});
  for (const PlannedOp& op : plan.train.ops) EXPECT_EQ(op.stream, Stream::kCompute);
  EXPECT_EQ(plan.host_arena_bytes, 0);
}

}  // namespace
}  // namespace milepost::plan
