// Breaks plans whose gradients and parameters are sharded.
#include <algorithm>
#include <string>
#include <vector>

#include "engine/plan/testing/verify_fixture.h"

namespace milepost::plan {
namespace {

using graph::kNoValue;
using graph::OpKind;
using graph::ValueId;

// The first op that reads what op `writer` writes.
struct ValueReader {
  ValueReader(const Program& program, size_t writer) {
    const auto wrote = [&](graph::ValueId id) {
      const auto& outputs = program.ops[writer].op.outputs;
      return std::any_of(outputs.begin(), outputs.end(),
                         [&](const graph::Output& o) { return o.value == id; });
    };
    for (first = writer; first < program.ops.size(); ++first) {
      const auto& inputs = program.ops[first].op.inputs;
      if (std::any_of(inputs.begin(), inputs.end(), wrote)) return;
    }
    ADD_FAILURE() << "nobody reads what op " << writer << " writes";
  }
  size_t first = 0;
};

// The tied embedding's first writer is the head, its last one the embedding's own backward.
TEST(Verify, SeesATiedGradientReducedBetweenItsWriters) {
  StepPlan plan = ValidPlan(2, 2);
  const int writer = FindOp(plan.train, OpKind::kEmbeddingBackward);
  std::vector<int> order = Identity(plan.train);
  ASSERT_EQ(plan.train.ops[writer + 1].op.kind, OpKind::kReduceGradients);
  plan.train.ops[writer + 1].wait_for.clear();
  std::swap(order[writer], order[writer + 1]);
  Reorder(plan.train, order);
  ExpectRefused(plan, "reduced after one of two writers", "is not complete");
}

TEST(Verify, SeesAShardedReductionInTheLastMicroStepOnly) {
  for (int stage : {2, 3}) {
    StepPlan plan = ValidPlan(2, stage);
    plan.train.ops[FindOp(plan.train, OpKind::kReduceGradients)].when = When::kLastMicroStep;
    ExpectRefused(plan, "earlier micro-steps are lost", "once in every micro-step");
  }
}

// Every gather, put just behind the first op that reads what it fills.
TEST(Verify, SeesAGatherAfterItsUse) {
  for (const bool train : {true, false}) {
    const StepPlan valid = ValidPlan(2, 3);
    const Program& program = train ? valid.train : valid.evaluate;
    int gathers = 0;
    for (size_t i = 0; i < program.ops.size(); ++i) {
      if (program.ops[i].op.kind != OpKind::kGatherParameters) continue;
      ++gathers;
      const ValueReader reads(program, i);
      StepPlan plan = valid;
      Program& broken = train ? plan.train : plan.evaluate;
      std::vector<int> order = Identity(broken);
      std::rotate(order.begin() + i, order.begin() + i + 1, order.begin() + reads.first + 1);
      broken.ops[reads.first].wait_for.clear();
      for (size_t j = i + 1; j <= reads.first; ++j) {
        std::erase(broken.ops[j].wait_for, static_cast<int32_t>(i));
      }
      Reorder(broken, order);
      ExpectRefused(plan, Describe(program, i) + " after its use", "before it is written");
    }
    EXPECT_GE(gathers, 4);
  }
}

TEST(Verify, SeesReplicasThatAreNotReduced) {
  for (int stage : {1, 2, 3}) {
    PlanOptions options = OptionsOf(4, stage, DType::kBf16);
    options.shard_ranks = 2;
    const absl::StatusOr<StepPlan> valid = PlanTraining(SpecOf({}), options);
    ASSERT_TRUE(valid.ok()) << valid.status();
    const int reduce = FindOp(valid->train, OpKind::kReduceReplicas);
    StepPlan plan = *valid;
    plan.train.ops[reduce].when = When::kEveryMicroStep;
    ExpectRefused(plan, "before the last micro-step");
    plan = *valid;
    std::vector<int> order = Identity(plan.train);
    order.erase(order.begin() + reduce);
    Reorder(plan.train, order);
    ExpectRefused(plan, "left out", "is not reduced");
    plan = *valid;
    order = Identity(plan.train);
    std::swap(order[reduce - 1], order[reduce]);
    Reorder(plan.train, order);
    ExpectRefused(plan, "before the reduction within the group");
  }
}

TEST(Verify, SeesAShardReadAsIfItWereWhole) {
  const StepPlan valid = ValidPlan(2, 3);
  const FlatGroup& group = valid.groups[1];
  for (const GroupParameter& p : group.parameters) {
    for (size_t i = 0; i < valid.train.ops.size(); ++i) {
      for (size_t k = 0; k < valid.train.ops[i].op.inputs.size(); ++k) {
        const graph::ValueId input = valid.train.ops[i].op.inputs[k];
        if (input == kNoValue || valid.train.graph.values[input].name != "gathered " + p.name) {
          continue;
        }
        StepPlan plan = valid;
        plan.train.ops[i].op.inputs[k] = plan.train.graph.parameters[p.parameter].value;
        ExpectRefused(plan, Describe(plan.train, i), "which is sharded");
      }
    }
  }
}

TEST(Verify, SeesParametersGatheredInAnotherOrder) {
  StepPlan plan = ValidPlan(2, 3);
  graph::Op& gather = plan.train.ops[FindOp(plan.train, OpKind::kGatherParameters)].op;
  std::swap(gather.outputs.front(), gather.outputs.back());
  ExpectRefused(plan, "swapped parameters", "as it lies in its group");
}

TEST(Verify, SeesAGatherForUseAfterTheUpdate) {
  StepPlan plan = ValidPlan(2, 3);
  plan.train.ops[FindOp(plan.train, OpKind::kGatherParameters)].when = When::kUpdate;
  ExpectRefused(plan, "gathered too late");
}

// `buffer`, put over everything that ops between `from` and `to` write. Returns how often.
int ExpectNeededBetween(const StepPlan& valid, const Program& program, BufferId buffer, size_t from,
                        size_t to) {
  int overlaps = 0;
  for (size_t i = from + 1; i < to; ++i) {
    for (const Access& access : program.ops[i].accesses) {
      const Buffer& other = valid.buffers[access.buffer];
      if (!access.write || other.persistent || access.buffer == buffer) continue;
      StepPlan plan = valid;
      Buffer& moved = plan.buffers[buffer];
      moved.offset = other.offset;
      plan.arena_bytes += moved.bytes;
      plan.slack_bytes += moved.bytes;
      ExpectRefused(plan, absl::StrCat(moved.name, " over ", other.name, " at op ", i));
      ++overlaps;
    }
  }
  return overlaps;
}

TEST(Verify, SeesGatheredParametersOverwrittenBeforeTheirUse) {
  const StepPlan plan = ValidPlan(2, 3);
  for (const Program* program : {&plan.train, &plan.evaluate}) {
    int overlaps = 0;
    for (size_t i = 0; i < program->ops.size(); ++i) {
      if (program->ops[i].op.kind != OpKind::kGatherParameters) continue;
      const ValueId first = program->ops[i].op.outputs[0].value;  // lies at the buffer's begin
      size_t last = i;
      for (size_t j = i; j < program->ops.size(); ++j) {
        const auto& inputs = program->ops[j].op.inputs;
        if (std::find(inputs.begin(), inputs.end(), first) != inputs.end()) last = j;
      }
      overlaps += ExpectNeededBetween(plan, *program, program->places[first].buffer, i, last);
    }
    EXPECT_GT(overlaps, 10);
  }
}

TEST(Verify, SeesShardsOfGradientsOverwrittenBeforeTheUpdate) {
  PlanOptions options = OptionsOf(2, 2, DType::kBf16);
  options.accumulation = 1;  // the shards are short-lived
  const absl::StatusOr<StepPlan> plan = PlanTraining(SpecOf({}), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto& ops = plan->train.ops;
  int overlaps = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].op.kind != OpKind::kReduceGradients) continue;
    const int group = ops[i].op.attributes.group;
    size_t update = i;
    while (ops[update].op.kind != OpKind::kOptimizer || ops[update].op.attributes.group != group) {
      ++update;
    }
    const BufferId shard = plan->groups[group].gradient_shard_buffer;
    EXPECT_FALSE(plan->buffers[shard].persistent);
    overlaps += ExpectNeededBetween(*plan, plan->train, shard, i, update);
  }
  EXPECT_GT(overlaps, 20);
}

TEST(Verify, SeesShardsOfGradientsThatWouldNotSurviveAMicroStep) {
  StepPlan plan = ValidPlan(2, 2);
  plan.buffers[plan.groups[1].gradient_shard_buffer].persistent = false;
  ExpectRefused(plan, "a shard that may die", "must be persistent");
}

TEST(VerifyRounding, AGradientIsRoundedOnceAndThenRead) {
  for (const int world : {1, 4}) {
    PlanOptions options = OptionsOf(world, 1, DType::kBf16);
    options.accumulation = 1;
    options.grad_dtype = DType::kBf16;
    const absl::StatusOr<StepPlan> plan = PlanTraining(SpecOf(TestModel{}), options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(Verify(*plan), absl::OkStatus());
    const int rounds = FindOp(plan->train, OpKind::kRoundGradients);
    StepPlan other = *plan;
    int32_t& group = other.train.ops[rounds].op.attributes.group;
    group = group == 0 ? 1 : 0;
    EXPECT_FALSE(Verify(other).ok());
    StepPlan twice = *plan;
    const int norm = FindOp(twice.train, OpKind::kGradNorm);
    twice.train.ops[norm].op.kind = OpKind::kRoundGradients;
    EXPECT_FALSE(Verify(twice).ok());
    StepPlan larger = *plan;
    larger.buffers[larger.groups[0].gradient_shard_buffer].bytes *= 2;
    EXPECT_FALSE(Verify(larger).ok());
  }
}

}  // namespace
}  // namespace milepost::plan
