// Plans that keep optimizer state on disk between updates.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/plan/fit/fit.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/passes/stream_pass.h"
#include "engine/plan/printing/printer.h"
#include "engine/plan/testing/verify_fixture.h"

namespace milepost::plan {
namespace {

using graph::OpKind;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

PlanOptions OnDisk(int world, int stage, DType dtype = DType::kBf16,
                   Optimizer optimizer = Optimizer::kAdamW) {
  PlanOptions options = OptionsOf(world, stage, dtype);
  options.optimizer = optimizer;
  options.offload_optimizer = true;
  options.offload_disk = true;
  options.device = DeviceKind::kCuda;
  return options;
}

StepPlan PlanFor(const PlanOptions& options, const TestModel& model = {.layers = 6}) {
  absl::StatusOr<StepPlan> plan = PlanTraining(SpecOf(model), options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : StepPlan{};
}

bool IsTransfer(const PlannedOp& op) {
  return op.op.kind == OpKind::kReadState || op.op.kind == OpKind::kWriteState;
}

// Master, m and v, by hand: all of them in the file, and three groups' in memory.
TEST(DiskPlan, StateLiesInTheFileToTheByte) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const StepPlan plan = PlanFor(OnDisk(2, 1, dtype), {.layers = 7});
    int64_t file = 0;
    int64_t largest[3] = {};
    for (size_t i = 0; i < plan.groups.size(); ++i) {
      const int64_t blocks = (4 * plan.groups[i].shard_elements + 4095) / 4096;
      file += 3 * blocks * 4096;
      largest[i % 3] = std::max(largest[i % 3], blocks * 4096);
    }
    EXPECT_EQ(plan.disk_bytes, file);
    // A checkpoint's copy is there too, and not in memory.
    EXPECT_EQ(DiskBytesNeeded(plan), file + SnapshotBytes(plan));
    PlanOptions cpu = plan.options;
    cpu.device = DeviceKind::kCpu;
    const StepPlan on_cpu = PlanFor(cpu, {.layers = 7});
    EXPECT_EQ(HostBytes(on_cpu), on_cpu.host_arena_bytes);
    EXPECT_EQ(plan.disk_bytes_per_step, 2.0 * static_cast<double>(file));
    EXPECT_EQ(plan.host_bytes_by_class[static_cast<int>(BufferClass::kOptimizer)],
              3 * (largest[0] + largest[1] + largest[2]));
    EXPECT_EQ(plan.bytes_by_class[static_cast<int>(BufferClass::kOptimizer)], 0);
    for (const DiskRegion& region : plan.disk_regions) {
      EXPECT_EQ(plan.buffers[region.buffer].offset % 4096, 0);
    }
    PlanOptions host = plan.options;
    host.offload_disk = false;
    EXPECT_EQ(PlanFor(host, {.layers = 7}).arena_bytes, plan.arena_bytes);
    EXPECT_EQ(PlanFor(host, {.layers = 7}).disk_bytes, 0);
  }
}

TEST(DiskPlan, EveryKindIsProved) {
  std::vector<PlanOptions> all;
  for (const int world : {1, 2, 4}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
        for (const int64_t accumulation : {1, 3}) {
          all.push_back(OnDisk(world, stage, dtype));
          all.back().accumulation = accumulation;
          all.back().shard_ranks = world == 4 && stage > 0 ? 2 : 0;
          all.back().offload_activations = stage == 2;
        }
      }
    }
  }
  for (const Optimizer optimizer : {Optimizer::kSgd, Optimizer::kLion, Optimizer::kAdamW8Bit}) {
    all.push_back(OnDisk(2, 2, DType::kBf16, optimizer));
    all.push_back(OnDisk(1, 0, DType::kF32, optimizer));
  }
  for (const PlanOptions& options : all) {
    const StepPlan plan = PlanFor(options);
    EXPECT_EQ(Verify(plan), absl::OkStatus());
    for (const PlannedOp& op : plan.train.ops) {
      EXPECT_EQ(IsTransfer(op), IsDisk(op.stream));
    }
  }
}

// With fewer groups than turns, and with one that is never updated.
TEST(DiskPlan, FewAndFrozenGroups) {
  v1::JobSpec spec = SpecOf({.layers = 4});
  v1::ParameterGroupSpec* frozen = spec.mutable_train()->mutable_optimizer()->add_groups();
  frozen->set_match("h.1.*");
  frozen->set_freeze(true);
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const auto plan = PlanTraining(spec, OnDisk(2, 1, dtype));
    ASSERT_TRUE(plan.ok()) << plan.status();
    int regions = 0;
    for (const DiskRegion& region : plan->disk_regions) {
      regions += plan->groups[region.group].frozen ? 1 : 0;
    }
    EXPECT_EQ(regions, dtype == DType::kF32 ? 0 : 1);
    EXPECT_EQ(Verify(PlanFor(OnDisk(2, 1, dtype), {.layers = 1})), absl::OkStatus());
  }
}

// Three groups' states are read while the backward goes on; then, in the order of the updates, one
// is read when the one before the last is written.
TEST(DiskPlan, ReadsAndWritesGoOnBesideUpdates) {
  const StepPlan plan = PlanFor(OnDisk(1, 0), {.layers = 6});
  std::string order;
  int early = 0;
  for (const PlannedOp& op : plan.train.ops) {
    if (!IsTransfer(op) && op.op.kind != OpKind::kOptimizer) continue;
    const char* name = op.op.kind == OpKind::kReadState    ? "r"
                       : op.op.kind == OpKind::kWriteState ? "w"
                                                           : "u";
    early += op.when == When::kLastMicroStep ? 1 : 0;
    absl::StrAppend(&order, name, op.op.attributes.group, " ");
    if (!IsTransfer(op)) continue;
    EXPECT_EQ(op.stream, DiskStream(op.op.attributes.group % 3));
  }
  EXPECT_EQ(early, 3);
  EXPECT_THAT(order, HasSubstr("r0 r1 r2 u0 w0 u1 w1 r3 u2 w2 r4 u3 w3 r5 u4 w4 "));
}

TEST(DiskPlan, EveryMissingWaitIsSeen) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    PlanOptions options = OnDisk(2, 1, dtype);
    options.accumulation = 1;
    const StepPlan valid = PlanFor(options, {.layers = 5, .width = 256});
    std::set<OpKind> waiting;
    for (size_t i = 0; i < valid.train.ops.size(); ++i) {
      const PlannedOp& op = valid.train.ops[i];
      for (size_t w = 0; w < op.wait_for.size(); ++w) {
        const bool disk = IsDisk(op.stream) || IsDisk(valid.train.ops[op.wait_for[w]].stream);
        if (!disk || op.wait_for[w] == op.after) continue;
        StepPlan plan = valid;
        std::vector<int32_t>& of_op = plan.train.ops[i].wait_for;
        of_op.erase(of_op.begin() + static_cast<int>(w));
        ExpectRefused(plan, absl::StrCat(Describe(plan.train, i), " without ", op.wait_for[w]),
                      "neither waits");
        waiting.insert(op.op.kind);
      }
    }
    EXPECT_TRUE(waiting.count(OpKind::kOptimizer) == 1 && waiting.count(OpKind::kWriteState) == 1);
    // What is copied to the device is the master itself.
    EXPECT_EQ(waiting.count(OpKind::kReadState), dtype == DType::kF32 ? 1U : 0U);
  }
}

TEST(DiskPlan, EveryMissingAndEveryRepeatedTransferIsSeen) {
  const StepPlan valid = PlanFor(OnDisk(2, 2));
  for (size_t i = 0; i < valid.train.ops.size(); ++i) {
    if (!IsTransfer(valid.train.ops[i])) continue;
    const std::string what = Describe(valid.train, i);
    StepPlan plan = valid;
    std::vector<int> order = Identity(plan.train);
    order.erase(order.begin() + static_cast<int>(i));
    Reorder(plan.train, order);
    EXPECT_FALSE(VerifyValues(plan, plan.train).ok()) << "without " << what;
    plan = valid;
    order = Identity(plan.train);
    order.insert(order.begin() + static_cast<int>(i), static_cast<int>(i));
    Reorder(plan.train, order);
    if (valid.train.ops[i].op.kind == OpKind::kReadState) ExpectRefused(plan, "twice " + what);
  }
}

// A state is never read to where another one is not yet written from, be it earlier in the program
// or beside it.
TEST(DiskPlan, WhatIsNotWrittenYetIsNotOverwritten) {
  const StepPlan valid = PlanFor(OnDisk(1, 0), {.layers = 6});
  const auto find = [&](OpKind kind, int group) {
    for (size_t i = 0; i < valid.train.ops.size(); ++i) {
      const graph::Op& op = valid.train.ops[i].op;
      if (op.kind == kind && op.attributes.group == group) return static_cast<int>(i);
    }
    return -1;
  };
  const int write = find(OpKind::kWriteState, 0);
  const int read = find(OpKind::kReadState, 3);
  ASSERT_LT(write, read);
  StepPlan plan = valid;
  std::vector<int> order = Identity(plan.train);
  order.erase(order.begin() + read);
  order.insert(order.begin() + write, read);
  Reorder(plan.train, order);
  ExpectRefused(plan, "read before the write", "bytes are reused");
  plan = valid;
  plan.train.ops[read].stream = DiskStream(1);
  EXPECT_THAT(VerifyOrder(plan, plan.train).message(), HasSubstr("neither waits"));
  EXPECT_THAT(VerifyOps(plan, plan.train).message(), HasSubstr("is not on its stream"));
  plan = valid;
  plan.train.ops[find(OpKind::kParametersToDevice, 0)].wait_for.push_back(
      find(OpKind::kReadState, 0));
  ExpectRefused(plan, "a copy that waits for the disk", "only the host");
  plan = valid;
  plan.groups[3].disk_turn = 1;
  ExpectRefused(plan, "a place of two turns", "used for two states");
  plan = valid;
  plan.disk_regions[4].bytes -= kDiskBlock;
  plan.disk_bytes -= kDiskBlock;
  ExpectRefused(plan, "a file that is too small", "does not hold every state once");
  plan = valid;
  plan.buffers[plan.groups[0].state_buffers[1]].memory = Memory::kDevice;
  ExpectRefused(plan, "v on the device");
}

TEST(DiskPlan, IsPrintedAndExpected) {
  const StepPlan plan = PlanFor(OnDisk(2, 1), {.layers = 4, .width = 256});
  const StepEstimate estimate = EstimateStep(plan, *BuiltInProfile("h100"));
  EXPECT_GT(estimate.disk_seconds, 0);
  EXPECT_THAT(PlanTable(plan, {.estimate = estimate, .device = "h100"}),
              AllOf(HasSubstr("\ndisk per rank ("), HasSubstr(absl::StrCat(plan.disk_bytes, "\n")),
                    HasSubstr("\n  disk     ")));
  EXPECT_THAT(PlanJson(plan),
              AllOf(HasSubstr(absl::StrCat("\"disk_bytes\": ", DiskBytesNeeded(plan))),
                    HasSubstr("\"disk_bytes_per_step\"")));
  PlanOptions options = plan.options;
  options.offload_disk = false;
  const StepPlan host = PlanFor(options, {.layers = 4, .width = 256});
  EXPECT_THAT(PlanTable(host), Not(HasSubstr("disk")));
  EXPECT_THAT(PlanJson(host), Not(HasSubstr("disk")));
}

// A slow disk is what a step waits for, and costs what its bytes say.
TEST(DiskPlan, TheDiskBoundsTheStep) {
  const StepPlan plan = PlanFor(OnDisk(1, 0), {.layers = 4, .width = 256});
  DeviceProfile profile = *BuiltInProfile("h100");
  profile.disk_read_bandwidth = 2e6;
  profile.disk_write_bandwidth = 1e6;
  const StepEstimate estimate = EstimateStep(plan, profile);
  const double seconds = plan.disk_bytes_per_step / 2 / 2e6 + plan.disk_bytes_per_step / 2 / 1e6;
  EXPECT_EQ(estimate.bound, Bound::kDisk);
  EXPECT_GE(estimate.seconds, seconds);
  EXPECT_LT(estimate.seconds, 1.1 * seconds);
}

}  // namespace
}  // namespace milepost::plan
