// Plans of the optimizers that need more than one pass over a shard.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/plan/testing/verify_fixture.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

PlanOptions OptionsFor(Optimizer optimizer, int world, int stage, int group = 0,
                       DType dtype = DType::kBf16) {
  PlanOptions options = OptionsOf(world, stage, dtype);
  options.optimizer = optimizer;
  options.shard_ranks = group;
  return options;
}

StepPlan PlanUpdate(const PlanOptions& options) {
  absl::StatusOr<StepPlan> plan = PlanTraining(SpecOf({}), options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

int CountUpdates(const StepPlan& plan, OpKind kind) {
  return static_cast<int>(
      std::count_if(plan.train.ops.begin(), plan.train.ops.end(),
                    [kind](const PlannedOp& planned) { return planned.op.kind == kind; }));
}

int64_t OptimizerBytes(const StepPlan& plan) {
  return plan.bytes_by_class[static_cast<int>(BufferClass::kOptimizer)];
}

TEST(OptimizerPlan, EveryCombinationVerifies) {
  struct Layout {
    int world;
    int stage;
    int group;
  };
  for (Optimizer optimizer : {Optimizer::kLamb, Optimizer::kMuon, Optimizer::kAdamW8Bit}) {
    for (DType dtype : {DType::kF32, DType::kBf16}) {
      for (const Layout& l :
           {Layout{1, 0, 0}, Layout{1, 3, 0}, Layout{2, 0, 0}, Layout{3, 1, 0}, Layout{4, 2, 0},
            Layout{4, 3, 0}, Layout{6, 1, 3}, Layout{4, 3, 2}, Layout{3, 2, 1}}) {
        SCOPED_TRACE(absl::StrCat(Name(optimizer), ", ", l.world, " ranks, stage ", l.stage));
        const PlanOptions options = OptionsFor(optimizer, l.world, l.stage, l.group, dtype);
        EXPECT_EQ(PlanTraining(SpecOf({}), options).status(), absl::OkStatus());
      }
    }
  }
}

TEST(OptimizerPlan, MuonUpdatesTheMatricesOfLayers) {
  const StepPlan plan = PlanUpdate(OptionsFor(Optimizer::kMuon, 2, 1));
  int matrices = 0;
  int64_t state = 0;
  for (const FlatGroup& group : plan.groups) {
    const bool muon = group.optimizer == Optimizer::kMuon;
    EXPECT_EQ(group.state_buffers[1] == kNoBuffer, muon) << group.name;
    state += group.shard_elements * 4 * (muon ? 2 : 3);
    for (const GroupParameter& p : group.parameters) {
      const bool hidden = p.name.find(".h.") != std::string::npos && p.shape.size() == 2;
      EXPECT_EQ(muon, hidden) << p.name;
      matrices += muon ? 1 : 0;
    }
  }
  EXPECT_EQ(matrices, 2 * 4);
  EXPECT_EQ(OptimizerBytes(plan), state);
  EXPECT_EQ(CountUpdates(plan, OpKind::kOrthogonalize), 2);
  EXPECT_EQ(CountUpdates(plan, OpKind::kGatherUpdates), 2);
  EXPECT_EQ(CountUpdates(plan, OpKind::kScatterUpdates), 2);
  const StepPlan alone = PlanUpdate(OptionsFor(Optimizer::kMuon, 1, 1));
  EXPECT_EQ(
      CountUpdates(alone, OpKind::kGatherUpdates) + CountUpdates(alone, OpKind::kScatterUpdates),
      0);
  EXPECT_EQ(CountUpdates(PlanUpdate(OptionsFor(Optimizer::kMuon, 2, 0)), OpKind::kScatterUpdates),
            2);
  // What MFU counts is the model's.
  EXPECT_EQ(plan.flops_per_step, PlanUpdate(OptionsFor(Optimizer::kAdamW, 2, 1)).flops_per_step);
}

TEST(OptimizerPlan, MuonsProductsAreInTheTypeThatWasChosen) {
  for (const DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    PlanOptions options = OptionsFor(Optimizer::kMuon, 2, 1);
    options.device = device;
    const StepPlan exact = PlanUpdate(options);
    options.orthogonalization = DType::kBf16;
    const StepPlan rounded = PlanUpdate(options);
    const auto at = [](const StepPlan& plan) {
      return plan.train.ops[FindOp(plan.train, OpKind::kOrthogonalize)];
    };
    EXPECT_EQ(at(rounded).flops, at(exact).flops);
    EXPECT_LT(at(rounded).bytes, at(exact).bytes);
    for (const FlatGroup& group : rounded.groups) {
      EXPECT_EQ(group.product_dtype == DType::kBf16, group.optimizer == Optimizer::kMuon);
    }
    StepPlan wrong = rounded;
    wrong.options.orthogonalization = DType::kF32;
    ExpectRefused(wrong, "a rule that the options do not have", "another type");
  }
}

TEST(OptimizerPlan, MuonsWireBytesAreThoseOfAGatherAndAScatter) {
  const StepPlan plan = PlanUpdate(OptionsFor(Optimizer::kMuon, 4, 1));
  double padded = 0;
  double muon = 0;
  for (const FlatGroup& group : plan.groups) {
    padded += static_cast<double>(group.padded_elements);
    if (group.optimizer == Optimizer::kMuon) muon += static_cast<double>(group.padded_elements);
  }
  const double scalars = 2 * 0.75 * 8 * plan.ReducedScalars();
  EXPECT_DOUBLE_EQ(plan.wire_bytes_per_step, 0.75 * ((4 + 2) * padded + 8 * muon) + scalars);
}

TEST(OptimizerPlan, LambAddsOnePairOfNormsPerTensor) {
  const StepPlan plan = PlanUpdate(OptionsFor(Optimizer::kLamb, 4, 1));
  const StepPlan adamw = PlanUpdate(OptionsFor(Optimizer::kAdamW, 4, 1));
  const auto tensors = static_cast<double>(plan.train.graph.parameters.size());
  EXPECT_EQ(CountUpdates(plan, OpKind::kReduceUpdateNorms), 1);
  EXPECT_DOUBLE_EQ(plan.wire_bytes_per_step - adamw.wire_bytes_per_step, 2 * 0.75 * 16 * tensors);
  EXPECT_EQ(OptimizerBytes(plan), OptimizerBytes(adamw));
  EXPECT_EQ(
      CountUpdates(PlanUpdate(OptionsFor(Optimizer::kLamb, 4, 0)), OpKind::kReduceUpdateNorms), 0);
}

TEST(OptimizerPlan, QuantizedStateHasAByteAndASixtyFourthPerElement) {
  const StepPlan plan = PlanUpdate(OptionsFor(Optimizer::kAdamW8Bit, 3, 2));
  int64_t state = 0;
  for (const FlatGroup& group : plan.groups) {
    const int64_t shard = group.shard_elements;
    if (group.optimizer == Optimizer::kAdamW) {
      state += 12 * shard;
      continue;
    }
    EXPECT_EQ(shard % 256, 0);
    for (const GroupParameter& p : group.parameters) EXPECT_EQ(p.begin % 256, 0) << p.name;
    state += 4 * shard + 2 * (shard + shard / 64);
  }
  EXPECT_EQ(OptimizerBytes(plan), state);
}

// Leaving an op out, doing it twice or too early is always seen.
TEST(OptimizerPlan, WrongOrdersAreRefused) {
  for (Optimizer optimizer : {Optimizer::kLamb, Optimizer::kMuon}) {
    const StepPlan valid = PlanUpdate(OptionsFor(optimizer, 2, 1));
    for (size_t i = 0; i < valid.train.ops.size(); ++i) {
      const OpKind kind = valid.train.ops[i].op.kind;
      const bool mine = kind == OpKind::kUpdateNorms || kind == OpKind::kReduceUpdateNorms ||
                        kind == OpKind::kMuonMomentum || kind == OpKind::kGatherUpdates ||
                        kind == OpKind::kOrthogonalize || kind == OpKind::kScatterUpdates;
      if (!mine) continue;
      SCOPED_TRACE(Describe(valid.train, i));
      std::vector<int> order = Identity(valid.train);
      order.erase(order.begin() + static_cast<int>(i));
      StepPlan plan = valid;
      Reorder(plan.train, order);
      EXPECT_FALSE(VerifyValues(plan, plan.train).ok()) << "left out";
      order = Identity(valid.train);
      order.insert(order.begin() + static_cast<int>(i), static_cast<int>(i));
      plan = valid;
      Reorder(plan.train, order);
      EXPECT_FALSE(VerifyValues(plan, plan.train).ok()) << "twice";
      order = Identity(valid.train);
      std::swap(order[i], order[i - 1]);
      plan = valid;
      Reorder(plan.train, order);
      const bool follows =
          valid.train.ops[i - 1].op.attributes.group == valid.train.ops[i].op.attributes.group;
      if (follows || kind == OpKind::kReduceUpdateNorms) {
        EXPECT_FALSE(VerifyValues(plan, plan.train).ok()) << "too early";
      }
    }
  }
}

TEST(OptimizerPlan, BytesThatDoNotFitAreRefused) {
  StepPlan plan = PlanUpdate(OptionsFor(Optimizer::kMuon, 2, 1));
  const auto muon = std::find_if(plan.groups.begin(), plan.groups.end(), [](const FlatGroup& g) {
    return g.optimizer == Optimizer::kMuon;
  });
  plan.buffers[muon->update_buffer].bytes -= 4;
  ExpectRefused(plan, "a short update");
  plan = PlanUpdate(OptionsFor(Optimizer::kLamb, 2, 1));
  plan.buffers[plan.update_norms].bytes -= 8;
  ExpectRefused(plan, "short norms", "norms");
  plan = PlanUpdate(OptionsFor(Optimizer::kAdamW8Bit, 2, 1));
  plan.buffers[plan.groups[0].scale_buffers[1]].bytes -= 4;
  ExpectRefused(plan, "short scales", "v.scale");
}

}  // namespace
}  // namespace milepost::plan
