// Breaks valid plans in every way that the verifier promises to see.
#include "engine/plan/verification/verify.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/plan/accesses.h"
#include "engine/plan/passes/memory_pass.h"
#include "engine/plan/testing/verify_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using graph::kNoValue;
using graph::OpKind;
using graph::WriteMode;
using testing::HasSubstr;

// One micro-step and no padding: gradients share their bytes with activations.
StepPlan PlanWithShortLivedGradients(int world) {
  PlanOptions options = OptionsOf(world, 1, DType::kBf16);
  options.accumulation = 1;
  absl::StatusOr<StepPlan> plan = PlanTraining(SpecOf({.width = 256}), options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  EXPECT_FALSE(plan->buffers[plan->groups[1].gradient_buffer].persistent);
  return *std::move(plan);
}

bool ConflictBetween(const PlannedOp& a, const PlannedOp& b) {
  for (const Access& x : a.accesses) {
    for (const Access& y : b.accesses) {
      if (Conflict(x, y)) return true;
    }
  }
  return false;
}

TEST(Verify, AcceptsWhatThePassesMake) {
  for (int world : {1, 2}) {
    for (int stage : {0, 1, 2, 3}) {
      EXPECT_TRUE(Verify(ValidPlan(world, stage, 0.1)).ok());
    }
  }
}

TEST(Verify, SeesEveryMissingWait) {
  for (int stage : {0, 1, 2, 3}) {
    const StepPlan valid = ValidPlan(2, stage);
    int waits = 0;
    for (size_t i = 0; i < valid.train.ops.size(); ++i) {
      const PlannedOp& op = valid.train.ops[i];
      if (op.wait_for.empty()) continue;
      if (op.wait_for[0] == op.after) continue;  // only bounds what is in flight
      StepPlan plan = valid;
      plan.train.ops[i].wait_for.clear();
      ExpectRefused(plan, Describe(plan.train, i), "neither waits");
      ++waits;
    }
    EXPECT_GT(waits, 6);
  }
}

void ExpectEveryOpNeeded(const StepPlan& valid) {
  for (size_t i = 0; i < valid.train.ops.size(); ++i) {
    StepPlan plan = valid;
    std::vector<int> order = Identity(plan.train);
    order.erase(order.begin() + static_cast<int>(i));
    Reorder(plan.train, order);
    EXPECT_FALSE(VerifyValues(plan, plan.train).ok()) << "without " << Describe(valid.train, i);
  }
}

TEST(Verify, SeesEveryMissingOp) {
  ExpectEveryOpNeeded(ValidPlan(1));
  for (int stage : {0, 1, 2, 3}) ExpectEveryOpNeeded(ValidPlan(2, stage));
}

TEST(Verify, SeesEveryRepeatedGroupOp) {
  for (int stage : {0, 1, 2, 3}) {
    const StepPlan valid = ValidPlan(2, stage);
    for (size_t i = 0; i < valid.train.ops.size(); ++i) {
      const PlannedOp& op = valid.train.ops[i];
      if (op.when == When::kEveryMicroStep && op.op.attributes.group < 0) continue;
      StepPlan plan = valid;
      std::vector<int> order = Identity(plan.train);
      order.insert(order.begin() + static_cast<int>(i), static_cast<int>(i));
      Reorder(plan.train, order);
      ExpectRefused(plan, "twice " + Describe(valid.train, i));
    }
  }
}

// Neighbours of which the second needs the first, the other way round. Two updates to one gradient
// or two norms may change places unless one starts what the other continues.
void ExpectSwapsRefused(const StepPlan& valid) {
  int swaps = 0;
  for (size_t i = 0; i + 1 < valid.train.ops.size(); ++i) {
    const PlannedOp& first = valid.train.ops[i];
    const PlannedOp& second = valid.train.ops[i + 1];
    if (first.stream != second.stream || !ConflictBetween(first, second)) continue;
    StepPlan plan = valid;
    std::vector<int> order = Identity(plan.train);
    std::swap(order[i], order[i + 1]);
    Reorder(plan.train, order);
    ExpectRefused(plan, Describe(valid.train, i) + " after its successor");
    ++swaps;
  }
  EXPECT_GT(swaps, 20);
}

TEST(Verify, SeesSwappedNeighbours) {
  for (int stage : {1, 2, 3}) ExpectSwapsRefused(ValidPlan(2, stage));
}

TEST(Verify, SeesAReductionBeforeTheGradientIsComplete) {
  for (int stage : {1, 2, 3}) {
    StepPlan plan = ValidPlan(2, stage);
    const int reduce = FindOp(plan.train, OpKind::kReduceGradients);
    std::vector<int> order = Identity(plan.train);
    std::swap(order[reduce - 1], order[reduce]);
    plan.train.ops[reduce].wait_for.clear();
    Reorder(plan.train, order);
    ExpectRefused(plan, "reduced one op early", "is not complete");
  }
}

TEST(Verify, SeesAReductionInEveryMicroStep) {
  StepPlan plan = ValidPlan();
  plan.train.ops[FindOp(plan.train, OpKind::kReduceGradients)].when = When::kEveryMicroStep;
  ExpectRefused(plan, "reduced in the first micro-step");
}

TEST(Verify, SeesAComputeOpMovedToTheOtherStream) {
  for (int stage : {1, 3}) {
    const StepPlan valid = ValidPlan(2, stage);
    for (size_t i = 0; i < valid.train.ops.size(); ++i) {
      if (valid.train.ops[i].stream == Stream::kCommunication) continue;
      // The last update may run anywhere where no gather follows it.
      if (stage == 3 && valid.train.ops[i].op.kind == OpKind::kOptimizer) continue;
      StepPlan plan = valid;
      plan.train.ops[i].stream = Stream::kCommunication;
      ExpectRefused(plan, Describe(plan.train, i) + " on the communication stream");
    }
  }
}

bool IsGradient(const StepPlan& plan, BufferId buffer) {
  return std::any_of(plan.groups.begin(), plan.groups.end(),
                     [&](const FlatGroup& g) { return g.gradient_buffer == buffer; });
}

// Where every byte of the program's buffers is in use: a group's gradient is written piece by
// piece, and what has not been written yet may be overwritten.
std::vector<Lifetime> WhollyLive(const StepPlan& plan, const Program& program) {
  std::vector<Lifetime> lifetimes = LifetimesOf(plan, program);
  for (Lifetime& lifetime : lifetimes) {
    if (!IsGradient(plan, lifetime.buffer)) continue;
    for (size_t i = 0; i < program.ops.size(); ++i) {
      for (const Access& access : program.ops[i].accesses) {
        if (access.buffer == lifetime.buffer && access.write) lifetime.first = static_cast<int>(i);
      }
    }
  }
  return lifetimes;
}

// Every pair of buffers that live at once, put in one place.
void ExpectOverlapsRefused(const StepPlan& valid) {
  for (const Program* program : {&valid.train, &valid.evaluate}) {
    const std::vector<Lifetime> lifetimes = WhollyLive(valid, *program);
    for (const Lifetime& a : lifetimes) {
      for (const Lifetime& b : lifetimes) {
        if (a.buffer == b.buffer || a.last < b.first || b.last < a.first) continue;
        StepPlan plan = valid;
        Buffer& moved = plan.buffers[a.buffer];
        moved.offset = plan.buffers[b.buffer].offset;
        plan.arena_bytes += moved.bytes;
        plan.slack_bytes += moved.bytes;
        ExpectRefused(plan, moved.name + " over " + plan.buffers[b.buffer].name);
      }
    }
  }
}

TEST(Verify, SeesTwoLiveBuffersInOnePlace) {
  ExpectOverlapsRefused(ValidPlan(1, 0, 0));
  ExpectOverlapsRefused(ValidPlan(1, 0, 0.1));
}

TEST(Verify, SeesActivationsInTheBytesOfLiveGradients) {
  ExpectOverlapsRefused(PlanWithShortLivedGradients(1));
  ExpectOverlapsRefused(PlanWithShortLivedGradients(2));
}

TEST(Verify, SeesGradientsThatWouldNotSurviveAMicroStep) {
  StepPlan plan = PlanWithShortLivedGradients(2);
  plan.options.accumulation = 2;
  ExpectRefused(plan, "accumulates into bytes that activations use", "must be persistent");
}

void ExpectOtherModesRefused(const StepPlan& valid) {
  for (size_t i = 0; i < valid.train.ops.size(); ++i) {
    for (size_t o = 0; o < valid.train.ops[i].op.outputs.size(); ++o) {
      const graph::Output& output = valid.train.ops[i].op.outputs[o];
      if (output.value == kNoValue) continue;
      for (WriteMode mode :
           {WriteMode::kAssign, WriteMode::kAccumulate, WriteMode::kAccumulateInStep}) {
        if (mode == output.mode) continue;
        StepPlan plan = valid;
        plan.train.ops[i].op.outputs[o].mode = mode;
        ExpectRefused(plan, absl::StrCat(Describe(plan.train, i), " output ", o, " in mode ",
                                         static_cast<int>(mode)));
      }
    }
  }
}

TEST(Verify, SeesWrongWriteModes) {
  ExpectOtherModesRefused(ValidPlan(2, 1));
  ExpectOtherModesRefused(ValidPlan(2, 3));
}

TEST(Verify, SeesMisplacedBuffers) {
  const StepPlan valid = ValidPlan();
  for (size_t i = 0; i < valid.buffers.size(); ++i) {
    StepPlan plan = valid;
    plan.buffers[i].offset += 4;
    ExpectRefused(plan, plan.buffers[i].name + " misaligned", "aligned");
    plan = valid;
    plan.buffers[i].offset = (plan.arena_bytes - plan.buffers[i].bytes) / 64 * 64 + 64;
    ExpectRefused(plan, plan.buffers[i].name + " outside", "arena bytes");
    plan = valid;
    if (i == 0) continue;
    plan.buffers[i].offset = plan.buffers[0].offset;
    ExpectRefused(plan, plan.buffers[i].name + " over parameters", "overlaps");
  }
}

TEST(Verify, SeesWrongPlaces) {
  const StepPlan valid = ValidPlan();
  for (size_t i = 0; i < valid.train.places.size(); ++i) {
    const std::string& name = valid.train.graph.values[i].name;
    StepPlan plan = valid;
    plan.train.places[i].offset += 64;
    ExpectRefused(plan, name + " moved");
    plan = valid;
    plan.train.places[i].buffer = kNoBuffer;
    ExpectRefused(plan, name + " nowhere", "has no buffer");
  }
}

TEST(Verify, SeesSmallWorkspacesAndForgottenAccesses) {
  const StepPlan valid = ValidPlan();
  for (size_t i = 0; i < valid.train.ops.size(); ++i) {
    StepPlan plan = valid;
    PlannedOp& op = plan.train.ops[i];
    op.accesses.pop_back();
    ExpectRefused(plan, Describe(plan.train, i), "accesses");
    if (op.workspace_bytes == 0) continue;
    plan = valid;
    plan.train.ops[i].workspace_bytes -= 64;
    plan.train.ops[i].accesses.back().end -= 64;
    ExpectRefused(plan, Describe(plan.train, i), "workspace");
  }
}

TEST(Verify, SeesWrongGroups) {
  const StepPlan valid = ValidPlan();
  const std::vector<std::pair<std::string, std::function<void(FlatGroup&)>>> mutations = {
      {"padding", [](FlatGroup& g) { g.padded_elements -= 128; }},
      {"shard", [](FlatGroup& g) { g.shard_elements -= 128; }},
      {"lost parameter", [](FlatGroup& g) { g.parameters.pop_back(); }},
      {"doubled parameter", [](FlatGroup& g) { g.parameters.push_back(g.parameters.back()); }},
      {"overlap", [](FlatGroup& g) { g.parameters[1].begin -= kParameterAlignment; }},
      {"size", [](FlatGroup& g) { g.parameters[0].elements -= 1; }},
      {"no gradient", [](FlatGroup& g) { g.gradient_buffer = kNoBuffer; }},
      {"shared m and v", [](FlatGroup& g) { g.state_buffers[0] = g.parameter_buffer; }},
      {"no master", [](FlatGroup& g) { g.master_buffer = kNoBuffer; }},
  };
  for (size_t i = 0; i < valid.groups.size(); ++i) {
    for (const auto& [what, mutate] : mutations) {
      StepPlan plan = valid;
      mutate(plan.groups[i]);
      ExpectRefused(plan, valid.groups[i].name + ": " + what);
    }
  }
}

TEST(Verify, SeesBytesThatDoNotAddUp) {
  StepPlan plan = ValidPlan();
  plan.bytes_by_class[0] += 1;
  ExpectRefused(plan, "one byte too many", "add up");
}

TEST(Verify, SeesWrongWireBytes) {
  for (int stage : {0, 1, 2, 3}) {
    StepPlan plan = ValidPlan(4, stage);
    plan.wire_bytes_per_step *= 2;
    ExpectRefused(plan, "twice the bytes", "the plan says");
    plan = ValidPlan(4, stage);
    plan.train.ops[FindOp(plan.train, OpKind::kReduceGradients)].wire_bytes *= 2;
    ExpectRefused(plan, "twice an op's bytes", "expected");
    plan = ValidPlan(4, stage);
    plan.options.grad_reduce = DType::kBf16;
    ExpectRefused(plan, "bytes of fp32 gradients", "expected");
  }
}

TEST(Verify, SeesAWaitForALaterOp) {
  StepPlan plan = ValidPlan();
  plan.train.ops[3].wait_for = {4};
  ExpectRefused(plan, "waits for the future", "not an earlier one");
}

}  // namespace
}  // namespace milepost::plan
