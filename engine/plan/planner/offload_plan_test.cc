// Plans that keep optimizer state in host memory.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/spec/validate.h"
#include "engine/plan/accesses.h"
#include "engine/plan/cuda_beside.h"
#include "engine/plan/fit/fit.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/passes/memory_pass.h"
#include "engine/plan/passes/stream_pass.h"
#include "engine/plan/printing/printer.h"
#include "engine/plan/testing/verify_fixture.h"

namespace milepost::plan {
namespace {

using graph::OpKind;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

PlanOptions Offloaded(int world, int stage, DType dtype = DType::kBf16,
                      Optimizer optimizer = Optimizer::kAdamW) {
  PlanOptions options = OptionsOf(world, stage, dtype);
  options.optimizer = optimizer;
  options.offload_optimizer = true;
  options.device = DeviceKind::kCuda;
  return options;
}

StepPlan PlanOffloaded(const PlanOptions& options, const TestModel& model = {}) {
  v1::JobSpec spec = SpecOf(model);
  absl::StatusOr<StepPlan> plan = PlanTraining(spec, options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : StepPlan{};
}

std::vector<PlanOptions> AllOptions() {
  std::vector<PlanOptions> all;
  for (const int world : {1, 2, 4}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
        for (const int64_t accumulation : {1, 3}) {
          all.push_back(Offloaded(world, stage, dtype));
          all.back().accumulation = accumulation;
          all.back().shard_ranks = world == 4 && stage > 0 ? 2 : 0;
        }
      }
    }
  }
  for (const Optimizer optimizer : {Optimizer::kSgd, Optimizer::kLion, Optimizer::kAdamW8Bit}) {
    all.push_back(Offloaded(2, 2, DType::kBf16, optimizer));
  }
  return all;
}

// Master, m and v, by hand.
TEST(OffloadPlan, StateLiesOnTheHostToTheByte) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const StepPlan plan = PlanOffloaded(Offloaded(2, 1, dtype));
    PlanOptions options = plan.options;
    options.offload_optimizer = false;
    const StepPlan before = PlanOffloaded(options);
    int64_t elements = 0;
    for (const FlatGroup& group : plan.groups) elements += group.shard_elements;
    const auto of = [](const int64_t(&bytes)[kBufferClasses], BufferClass c) {
      return bytes[static_cast<int>(c)];
    };
    EXPECT_EQ(of(plan.host_bytes_by_class, BufferClass::kOptimizer), 12 * elements);
    EXPECT_EQ(of(plan.host_bytes_by_class, BufferClass::kGradients), 4 * elements);
    EXPECT_EQ(of(plan.bytes_by_class, BufferClass::kOptimizer), 0);
    EXPECT_EQ(of(plan.bytes_by_class, BufferClass::kParameters),
              of(before.bytes_by_class, BufferClass::kParameters));
    EXPECT_LE(plan.arena_bytes,
              before.arena_bytes - of(before.bytes_by_class, BufferClass::kOptimizer) + 4096);
    EXPECT_EQ(before.host_arena_bytes, 0);
    EXPECT_EQ(SnapshotBytes(plan), SnapshotBytes(before));
    EXPECT_EQ(HostBytes(plan), plan.host_arena_bytes + SnapshotBytes(plan));
    // Gradients there once, parameters back once, and the scalars.
    const double copied = 4.0 * static_cast<double>(elements) +
                          static_cast<double>(ByteSize(dtype) * elements) +
                          8.0 * plan.ReducedScalars();
    EXPECT_EQ(plan.offload_bytes_per_step, copied);
  }
}

TEST(OffloadPlan, TwoBuffersInTurnTakeTheParametersBack) {
  const StepPlan plan = PlanOffloaded(Offloaded(2, 2), {.layers = 4});
  for (size_t i = 2; i < plan.groups.size(); ++i) {
    EXPECT_EQ(plan.groups[i].host_parameter_buffer, plan.groups[i - 2].host_parameter_buffer);
    EXPECT_NE(plan.groups[i].host_parameter_buffer, plan.groups[i - 1].host_parameter_buffer);
  }
  for (const FlatGroup& group : PlanOffloaded(Offloaded(2, 2, DType::kF32)).groups) {
    EXPECT_EQ(group.host_parameter_buffer, kNoBuffer);
  }
}

// With one micro-step a gradient is on the host, and its bytes are others', long before the
// backward ends.
TEST(OffloadPlan, GradientsOfTheDeviceGoEarly) {
  PlanOptions options = Offloaded(1, 0);
  options.accumulation = 1;
  const TestModel model = {.layers = 12, .width = 256};
  const StepPlan plan = PlanOffloaded(options, model);
  options.offload_optimizer = false;
  const StepPlan before = PlanOffloaded(options, model);
  int64_t all = 0;
  for (const FlatGroup& group : plan.groups) all += 4 * group.padded_elements;
  const int64_t state = before.bytes_by_class[static_cast<int>(BufferClass::kOptimizer)];
  EXPECT_LT(plan.arena_bytes, before.arena_bytes - state - all / 2);
}

TEST(OffloadPlan, FrozenGroupsHaveTheirMastersOnTheHostAndNothingElse) {
  v1::JobSpec spec = SpecOf({});
  v1::ParameterGroupSpec* frozen = spec.mutable_train()->mutable_optimizer()->add_groups();
  frozen->set_match("h.0.*");
  frozen->set_freeze(true);
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const auto plan = PlanTraining(spec, Offloaded(2, 1, dtype));
    ASSERT_TRUE(plan.ok()) << plan.status();
    int count = 0;
    for (const FlatGroup& group : plan->groups) {
      if (!group.frozen) continue;
      ++count;
      EXPECT_FALSE(group.Offloaded());
      EXPECT_EQ(group.master_buffer == kNoBuffer, dtype == DType::kF32);
    }
    EXPECT_EQ(count, 1);
  }
}

TEST(OffloadPlan, EveryKindIsProved) {
  for (const PlanOptions& options : AllOptions()) {
    const StepPlan plan = PlanOffloaded(options);
    EXPECT_EQ(Verify(plan), absl::OkStatus());
    for (const PlannedOp& op : plan.train.ops) {
      EXPECT_EQ(op.op.kind == OpKind::kOptimizer, op.stream == Stream::kHost);
    }
  }
}

// What a wait is needed for: not those that only bound what is under way.
TEST(OffloadPlan, EveryMissingWaitIsSeen) {
  for (const int world : {1, 2}) {
    for (const int stage : {1, 3}) {
      PlanOptions options = Offloaded(world, stage);
      options.accumulation = 1;
      const StepPlan valid = PlanOffloaded(options, {.width = 256});
      int waits = 0;
      for (size_t i = 0; i < valid.train.ops.size(); ++i) {
        const PlannedOp& op = valid.train.ops[i];
        for (size_t w = 0; w < op.wait_for.size(); ++w) {
          if (op.wait_for[w] == op.after) continue;
          StepPlan plan = valid;
          std::vector<int32_t>& of_op = plan.train.ops[i].wait_for;
          of_op.erase(of_op.begin() + static_cast<int>(w));
          ExpectRefused(plan, absl::StrCat(Describe(plan.train, i), " without ", op.wait_for[w]),
                        "neither waits");
          ++waits;
        }
      }
      EXPECT_GE(waits, 12) << world << " ranks, stage " << stage;
    }
  }
}

TEST(OffloadPlan, EveryMissingAndEveryRepeatedOpIsSeen) {
  for (const int world : {1, 2}) {
    const StepPlan valid = PlanOffloaded(Offloaded(world, 2));
    for (size_t i = 0; i < valid.train.ops.size(); ++i) {
      const std::string what = Describe(valid.train, i);
      StepPlan plan = valid;
      std::vector<int> order = Identity(plan.train);
      order.erase(order.begin() + static_cast<int>(i));
      Reorder(plan.train, order);
      EXPECT_FALSE(VerifyValues(plan, plan.train).ok()) << "without " << what;
      if (valid.train.ops[i].op.attributes.group < 0) continue;
      plan = valid;
      order = Identity(plan.train);
      order.insert(order.begin() + static_cast<int>(i), static_cast<int>(i));
      Reorder(plan.train, order);
      ExpectRefused(plan, "twice " + what);
    }
  }
}

TEST(OffloadPlan, TheWrongMemoryIsSeen) {
  const StepPlan valid = PlanOffloaded(Offloaded(2, 1));
  StepPlan plan = valid;
  plan.buffers[plan.groups[0].state_buffers[0]].memory = Memory::kDevice;
  ExpectRefused(plan, "m on the device");
  plan = valid;
  plan.train.ops[FindOp(plan.train, OpKind::kOptimizer)].stream = Stream::kCompute;
  EXPECT_THAT(VerifyOps(plan, plan.train).message(), HasSubstr("on the stream compute it cannot"));
  plan = valid;
  plan.host_arena_bytes -= 64;
  ExpectRefused(plan, "an arena that is too small");
  plan = valid;
  plan.buffers[plan.groups[0].state_buffers[1]].offset =
      plan.buffers[plan.groups[0].state_buffers[0]].offset;
  ExpectRefused(plan, "v over m", "overlaps");
}

TEST(OffloadPlan, NotForOptimizersThatReduceWithinTheUpdate) {
  for (const Optimizer optimizer : {Optimizer::kLamb, Optimizer::kMuon}) {
    const auto plan = PlanTraining(SpecOf({}), Offloaded(2, 1, DType::kBf16, optimizer));
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(plan.status().message(), HasSubstr("train.offload.optimizer: host"));
  }
}

TEST(OffloadPlan, IsPrintedAndExpected) {
  const StepPlan plan = PlanOffloaded(Offloaded(2, 1), {.layers = 4, .width = 256});
  const DeviceProfile profile = *BuiltInProfile("h100");
  const StepEstimate estimate = EstimateStep(plan, profile);
  EXPECT_GT(estimate.offload_seconds, 0);
  const std::string table = PlanTable(plan, {.estimate = estimate, .device = "h100"});
  EXPECT_THAT(table, AllOf(HasSubstr("\nhost memory per rank ("),
                           HasSubstr(absl::StrCat(plan.host_arena_bytes, "\n")),
                           HasSubstr("\n  offload  ")));
  EXPECT_THAT(PlanJson(plan), HasSubstr("\"per_rank_host\""));
  PlanOptions options = plan.options;
  options.offload_optimizer = false;
  const StepPlan before = PlanOffloaded(options, {.layers = 4, .width = 256});
  EXPECT_THAT(PlanTable(before), Not(HasSubstr("host memory per rank")));
  EXPECT_THAT(PlanJson(before), Not(HasSubstr("per_rank_host")));
  EXPECT_EQ(EstimateStep(before, profile).offload_seconds, 0);
}

// A link of a hundredth of the speed is what a step waits for, and costs what its bytes say.
TEST(OffloadPlan, TheLinkBoundsTheStep) {
  const StepPlan plan = PlanOffloaded(Offloaded(1, 0), {.layers = 4, .width = 256});
  DeviceProfile profile = *BuiltInProfile("h100");
  profile.host_device_bandwidth = 1e6;
  const StepEstimate estimate = EstimateStep(plan, profile);
  EXPECT_EQ(estimate.bound, Bound::kOffload);
  EXPECT_GE(estimate.seconds, plan.offload_bytes_per_step / 1e6);
  EXPECT_LT(estimate.seconds, 1.1 * plan.offload_bytes_per_step / 1e6);
  profile.host_memory_bandwidth = 1e3;
  EXPECT_GT(EstimateStep(plan, profile).seconds, 100 * estimate.seconds);
}

v1::JobSpec Job() {
  v1::JobSpec spec = SpecOf({.layers = 6, .width = 128, .heads = 4, .context = 128});
  spec.mutable_train()->set_steps(10);
  spec.mutable_train()->mutable_batch()->set_global(4);
  spec.mutable_train()->mutable_batch()->set_micro(1);
  spec.mutable_train()->mutable_zero()->set_stage(1);
  spec.mutable_resources()->set_ranks(1);
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  NormalizeJobSpec(&spec);
  return spec;
}

TEST(OffloadPlan, IsProposedWhereAJobDoesNotFit) {
  v1::JobSpec spec = Job();
  StepPlan plan = *PlanTraining(spec, *OptionsFromSpec(spec, 1));
  RankPlace place = {.memory_bytes = plan.arena_bytes - (1 << 20),
                     .memory_of = "the test",
                     .host_memory = false,
                     .profile = *BuiltInProfile("h100")};
  EXPECT_THAT(CheckFits(spec, plan, place).message(),
              HasSubstr("\n  train.offload.optimizer: host "));
  spec.mutable_train()->mutable_optimizer()->set_type(v1::OptimizerSpec::TYPE_LAMB);
  EXPECT_THAT(CheckFits(spec, plan, place).message(), Not(HasSubstr("offload")));
  spec = Job();
  place.host_memory = true;  // nothing is gained
  EXPECT_THAT(CheckFits(spec, plan, place).message(), Not(HasSubstr("offload.optimizer")));
}

TEST(OffloadPlan, HostBytesCountAgainstTheHost) {
  v1::JobSpec spec = Job();
  spec.mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
  const StepPlan plan = *PlanTraining(spec, *OptionsFromSpec(spec, 1));
  EXPECT_EQ(RequiredBytes(plan, plan.arena_bytes, /*arena_in_host_memory=*/true),
            plan.arena_bytes + CudaBesideBytes(plan) + plan.host_arena_bytes + SnapshotBytes(plan));
  RankPlace place = {.memory_bytes = plan.arena_bytes + CudaBesideBytes(plan),
                     .memory_of = "the test",
                     .host_memory = false,
                     .host_bytes = HostBytes(plan),
                     .profile = *BuiltInProfile("h100")};
  EXPECT_EQ(CheckFits(spec, plan, place), absl::OkStatus());
  place.host_bytes -= 1;
  EXPECT_THAT(CheckFits(spec, plan, place).message(), HasSubstr("of host memory"));
  // What fits then, where the device has room for it.
  place.memory_bytes = int64_t{1} << 30;
  EXPECT_THAT(CheckFits(spec, plan, place).message(),
              HasSubstr("\n  train.offload.optimizer: none "));
  place.host_bytes = SnapshotBytes(plan);
  EXPECT_THAT(CheckFits(spec, plan, place).message(), HasSubstr("offload to a disk"));
}

// A GPU's engine has the state in host memory while a checkpoint is copied out of it.
TEST(OffloadPlan, HostBytesHaveTheEnginesCopy) {
  v1::JobSpec spec = Job();
  PlanOptions options = *OptionsFromSpec(spec, 1);
  const StepPlan gpu = *PlanTraining(spec, options);
  int64_t state = 0;
  for (const BufferId id : StateOnDevice(gpu, false, false)) state += gpu.buffers[id].bytes;
  EXPECT_GE(state, 12 * gpu.parameters);
  // Before the first step m and v are zeros: masters and parameters alone are sent.
  int64_t initialised = 0;
  for (const BufferId id : InitialisedOnDevice(gpu)) initialised += gpu.buffers[id].bytes;
  EXPECT_GE(initialised, 6 * gpu.parameters);
  EXPECT_LT(initialised, 7 * gpu.parameters);
  EXPECT_EQ(HostBytes(gpu), SnapshotBytes(gpu) + state);
  options.device = DeviceKind::kCpu;
  const StepPlan cpu = *PlanTraining(spec, options);
  EXPECT_EQ(HostBytes(cpu), SnapshotBytes(cpu));
}

}  // namespace
}  // namespace milepost::plan
