// Small plans on the fake device, in many orders, against the same plans on the CPU's own executor.
#include "engine/runtime/gpu/device/device_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "common/status_macros.h"
#include "engine/comm/in_process.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/cpu/cpu_backend.h"
#include "engine/runtime/executor/arena.h"
#include "engine/runtime/gpu/device/testing/fake_device.h"
#include "engine/runtime/session/parameter_store.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int kSteps = 2;
constexpr int kMicroSteps = 2;

// What makes one rank's steps run.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual absl::Status MicroStep(const StepContext& context) = 0;
  virtual absl::Status Reduce(const StepContext& context) = 0;
  virtual absl::Status Update(const StepContext& context) = 0;
  virtual absl::Status Finish() { return absl::OkStatus(); }
};

class OnTheCpu : public Runner {
 public:
  explicit OnTheCpu(std::unique_ptr<Executor> executor) : executor_(std::move(executor)) {}
  absl::Status MicroStep(const StepContext& context) override {
    return executor_->Run(Section::kMicroStep, context);
  }
  absl::Status Reduce(const StepContext& context) override {
    return executor_->Run(Section::kReduce, context);
  }
  absl::Status Update(const StepContext& context) override {
    return executor_->Run(Section::kUpdate, context);
  }

 private:
  std::unique_ptr<Executor> executor_;
};

class OnADevice : public Runner {
 public:
  explicit OnADevice(std::unique_ptr<DeviceExecutor> executor) : executor_(std::move(executor)) {}
  absl::Status MicroStep(const StepContext& context) override {
    return executor_->Run(Section::kMicroStep, context);
  }
  absl::Status Reduce(const StepContext& context) override {
    return executor_->Run(Section::kReduce, context);
  }
  absl::Status Update(const StepContext& context) override {
    return executor_->Run(Section::kUpdate, context);
  }
  absl::Status Finish() override { return executor_->Synchronize(kTimeout); }

 protected:
  std::unique_ptr<DeviceExecutor> executor_;
};

// Everything as graphs, captured when first met. The contexts of a test are the same in every step
// but for what the first one of a step is.
class AsGraphs : public OnADevice {
 public:
  using OnADevice::OnADevice;
  absl::Status MicroStep(const StepContext& context) override {
    if (context.last_micro_step) return absl::OkStatus();  // goes with Reduce
    return Replay(first_, {Section::kMicroStep}, context);
  }
  absl::Status Reduce(const StepContext& context) override {
    return Replay(last_, {Section::kMicroStep, Section::kReduce}, context);
  }
  absl::Status Update(const StepContext& context) override {
    return Replay(update_, {Section::kUpdate}, context);
  }

 private:
  absl::Status Replay(std::optional<GraphId>& graph, const std::vector<Section>& sections,
                      const StepContext& context) {
    if (!graph.has_value()) {
      MP_ASSIGN_OR_RETURN(graph, executor_->Capture(sections, context));
    }
    return executor_->Launch(*graph);
  }
  std::optional<GraphId> first_;
  std::optional<GraphId> last_;
  std::optional<GraphId> update_;
};

enum class How { kCpu, kDevice, kGraphs };

void FillInputs(const plan::StepPlan& plan, char* arena, int rank) {
  const graph::Graph& graph = plan.train.graph;
  for (const graph::ValueId id : graph.inputs) {
    const plan::Place& place = plan.train.places[id];
    auto* data = reinterpret_cast<int32_t*>(arena + plan.buffers[place.buffer].offset);
    for (int64_t i = 0; i < graph::Elements(graph.values[id].shape); ++i) {
      data[i] = static_cast<int32_t>((i * i + 3 * i + 7 * rank) % TinyJob::kVocabulary);
    }
  }
}

StepContext ContextOfSteps() {
  StepContext context;
  context.gradient_factors[0] = 0.01F;
  context.learning_rate = 0.01F;
  context.beta1 = 0.9F;
  context.beta2 = 0.95F;
  context.epsilon = 1e-8F;
  return context;
}

absl::Status Train(Runner& runner) {
  for (int step = 0; step < kSteps; ++step) {
    StepContext context = ContextOfSteps();
    for (int micro = 0; micro < kMicroSteps; ++micro) {
      context.first_micro_step = micro == 0;
      context.last_micro_step = micro + 1 == kMicroSteps;
      MP_RETURN_IF_ERROR(runner.MicroStep(context));
    }
    MP_RETURN_IF_ERROR(runner.Reduce(context));
    MP_RETURN_IF_ERROR(runner.Update(context));
  }
  return runner.Finish();
}

// One rank: its status, and what lasts of its arena.
struct Result {
  absl::Status status;
  std::string bytes;
};

// `spoil`: changes the plan that is run.
using Spoil = std::function<void(plan::Program&)>;

Result RunRank(const v1::JobSpec& spec, How how, uint64_t seed, comm::Communicator* communicator,
               const Spoil& spoil) {
  CpuBackend backend(1);
  plan::PlanOptions options = *plan::OptionsFromSpec(spec, 1);
  plan::StepPlan plan = *plan::PlanTraining(spec, options);
  options.min_matmul_workspace_bytes = backend.CheckMatmulWorkspace(plan)->needed;
  plan = *plan::PlanTraining(spec, options);
  if (spoil) spoil(plan.train);
  const Arena arena = *Arena::Allocate(plan.arena_bytes);
  const Arena host = *Arena::Allocate(plan.host_arena_bytes);
  backend.Attach(arena.data(), communicator, host.data());
  ParameterStore store(plan, plan.train.graph, arena.data(), communicator, host.data());
  store.Initialize(7);
  EXPECT_EQ(store.RebuildParameters(), absl::OkStatus());
  FillInputs(plan, arena.data(), communicator->rank());
  FakeDevice device(seed);
  std::unique_ptr<Runner> runner;
  if (how == How::kCpu) {
    runner = std::make_unique<OnTheCpu>(*Executor::Create(
        plan, plan.train, &backend,
        [&](const absl::Status& status) { communicator->Abort(status.message()); }));
  } else {
    auto executor = *DeviceExecutor::Create(
        plan, plan.train, &backend, &device, *DeviceStreams::Add(device, plan.options),
        arena.data(), {.host_arena = host.data(), .rank = communicator->rank()});
    executor->SetHostContext(ContextOfSteps());  // the same in all of them
    runner = how == How::kDevice ? std::make_unique<OnADevice>(std::move(executor))
                                 : std::make_unique<AsGraphs>(std::move(executor));
  }
  Result result = {.status = Train(*runner)};
  if (!result.status.ok()) communicator->Abort(result.status.message());
  for (const plan::Buffer& buffer : plan.buffers) {
    const char* memory = buffer.memory == plan::Memory::kHost ? host.data() : arena.data();
    if (buffer.persistent) result.bytes.append(memory + buffer.offset, buffer.bytes);
  }
  return result;
}

std::vector<Result> RunRanksOf(const v1::JobSpec& spec, How how, uint64_t seed = 0,
                               const Spoil& spoil = {}) {
  auto group = comm::MakeInProcessGroup(spec.resources().ranks());
  std::vector<Result> results(group.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back(
        [&, rank] { results[rank] = RunRank(spec, how, seed + rank, group[rank].get(), spoil); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

v1::JobSpec Spec(const TinyJob& job, int ranks, int stage, bool llama) {
  TinyOptions options{.ranks = ranks, .stage = stage, .llama = llama, .qk_norm = llama};
  options.layers = 3;
  options.micro_batch = 1;
  options.global_batch = ranks * kMicroSteps;
  options.recompute = llama ? v1::RECOMPUTE_FULL : v1::RECOMPUTE_NONE;
  return job.Spec(options);
}

// On a device, one op after the other and as graphs, in several orders each.
void ExpectTheCpusBits(const v1::JobSpec& spec) {
  const std::vector<Result> wanted = RunRanksOf(spec, How::kCpu);
  for (How how : {How::kDevice, How::kGraphs}) {
    for (uint64_t seed : {11, 22, 33}) {
      const std::vector<Result> found = RunRanksOf(spec, how, seed);
      for (size_t rank = 0; rank < found.size(); ++rank) {
        SCOPED_TRACE(testing::Message() << (how == How::kGraphs ? "graphs" : "ops") << ", seed "
                                        << seed << ", rank " << rank);
        ASSERT_EQ(found[rank].status, absl::OkStatus());
        EXPECT_TRUE(found[rank].bytes == wanted[rank].bytes);
      }
    }
  }
}

TEST(DeviceExecutor, AnyOrderThatStreamsAllowGivesTheCpusBits) {
  TinyJob job;
  for (const bool llama : {false, true}) {
    for (int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << (llama ? "llama" : "gpt2") << ", stage " << stage);
      ExpectTheCpusBits(Spec(job, 2, stage, llama));
    }
  }
}

v1::JobSpec Offloaded(v1::JobSpec spec) {
  spec.mutable_train()->set_precision(v1::PRECISION_BF16);
  spec.mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
  spec.mutable_train()->mutable_offload()->set_activations(true);
  return spec;
}

TEST(DeviceExecutor, CopiesAndTheHostsWorkGoBesideTheRest) {
  TinyJob job;
  for (const int stage : {0, 3}) {
    SCOPED_TRACE(testing::Message() << "stage " << stage);
    ExpectTheCpusBits(Offloaded(Spec(job, 2, stage, false)));
  }
}

TEST(DeviceExecutor, HybridShardingAndOptimizersThatCommunicate) {
  TinyJob job;
  v1::JobSpec hybrid = Spec(job, 4, 3, true);
  hybrid.mutable_train()->mutable_zero()->set_group(2);
  ExpectTheCpusBits(hybrid);
  for (const auto optimizer : {v1::OptimizerSpec::TYPE_MUON, v1::OptimizerSpec::TYPE_LAMB}) {
    v1::JobSpec spec = Spec(job, 2, 2, false);
    spec.mutable_train()->mutable_optimizer()->set_type(optimizer);
    ExpectTheCpusBits(spec);
  }
}

// Evaluation reads what the update has just written, and training overwrites what it reads.
TEST(DeviceExecutor, ProgramsOfAPlanShareTheStreams) {
  TinyJob job;
  const v1::JobSpec spec = Spec(job, 1, 1, false);
  for (const bool shared : {true, false}) {
    CpuBackend backend(1);
    plan::PlanOptions options = *plan::OptionsFromSpec(spec, 1);
    plan::StepPlan plan = *plan::PlanTraining(spec, options);
    options.min_matmul_workspace_bytes = backend.CheckMatmulWorkspace(plan)->needed;
    plan = *plan::PlanTraining(spec, options);
    const Arena arena = *Arena::Allocate(plan.arena_bytes);
    backend.Attach(arena.data(), nullptr);
    FakeDevice device(3);
    const DeviceStreams streams = *DeviceStreams::Add(device);
    auto train =
        *DeviceExecutor::Create(plan, plan.train, &backend, &device, streams, arena.data());
    auto evaluate =
        *DeviceExecutor::Create(plan, plan.evaluate, &backend, &device,
                                shared ? streams : *DeviceStreams::Add(device), arena.data());
    const auto rounds = [&]() -> absl::Status {
      for (int round = 0; round < 2; ++round) {
        for (Section section : {Section::kMicroStep, Section::kReduce, Section::kUpdate}) {
          MP_RETURN_IF_ERROR(train->Run(section, {}));
        }
        MP_RETURN_IF_ERROR(evaluate->Run(Section::kMicroStep, {}));
      }
      return train->Synchronize(kTimeout);
    };
    const absl::Status status = rounds();
    EXPECT_EQ(status.ok(), shared) << status;
    if (!shared) {
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr("nothing orders"));
    }
  }
}

TEST(DeviceExecutor, OneRankNeedsOneStream) {
  TinyJob job;
  const v1::JobSpec spec = Spec(job, 1, 1, false);
  const std::vector<Result> found = RunRanksOf(spec, How::kDevice, 5);
  ASSERT_EQ(found[0].status, absl::OkStatus());
  EXPECT_TRUE(found[0].bytes == RunRanksOf(spec, How::kCpu)[0].bytes);
}

// Notes what is enqueued.
class EnqueueOrder : public FakeDevice {
 public:
  using FakeDevice::FakeDevice;
  absl::Status Enqueue(StreamId stream, Work work) override {
    names.push_back(work.name);
    return FakeDevice::Enqueue(stream, std::move(work));
  }
  std::vector<std::string> names;
};

class NoWork : public Backend {
 public:
  absl::StatusOr<BoundOp> Bind(const plan::StepPlan&, const plan::Program&,
                               const plan::PlannedOp&) override {
    return [](const StepContext&) { return absl::OkStatus(); };
  }
};

// What a stage receives is planned ahead, and held back until something waits for it or is behind
// it on its stream.
TEST(DeviceExecutor, ReceivesAreEnqueuedWhereTheyAreAwaited) {
  const TinyJob job;
  for (const int micro : {1, 2, 12}) {
    for (const auto schedule : {v1::PIPELINE_SCHEDULE_1F1B, v1::PIPELINE_SCHEDULE_ZERO_BUBBLE,
                                v1::PIPELINE_SCHEDULE_INTERLEAVED}) {
      const v1::JobSpec spec = job.Spec({.ranks = 3,
                                         .pipeline = 3,
                                         .schedule = schedule,
                                         .stage = 0,
                                         .micro_batch = micro,
                                         .layers = 6});
      for (int stage = 0; stage < 3; ++stage) {
        plan::PlanOptions options = *plan::OptionsFromSpec(spec, 1);
        options.stage = stage;
        const plan::StepPlan plan = *plan::PlanTraining(spec, options);
        const std::vector<plan::PlannedOp>& ops = plan.train.ops;
        EnqueueOrder device(7);
        NoWork backend;
        std::vector<char> arena(static_cast<size_t>(plan.arena_bytes));
        auto executor = DeviceExecutor::Create(plan, plan.train, &backend, &device,
                                               *DeviceStreams::Add(device, options), arena.data());
        ASSERT_TRUE(executor.ok()) << executor.status();
        ASSERT_EQ((*executor)->Run(Section::kMicroStep, {}), absl::OkStatus());
        std::vector<size_t> order;
        for (const std::string& name : device.names) order.push_back(std::stoul(name.substr(3)));
        ASSERT_GT(order.size(), 20U);
        int received = 0;
        for (size_t i = 0; i < order.size(); ++i) {
          if (ops[order[i]].op.kind != graph::OpKind::kStageReceive) continue;
          ++received;
          size_t next = i + 1;
          while (ops[order[next]].op.kind == graph::OpKind::kStageReceive) ++next;
          // For this one, or for one behind it on its stream.
          const auto awaits = [&](int32_t op) {
            return ops[op].stream == ops[order[i]].stream && op >= static_cast<int32_t>(order[i]);
          };
          const std::vector<int32_t>& waits = ops[order[next]].wait_for;
          EXPECT_TRUE(ops[order[next]].stream == ops[order[i]].stream ||
                      std::any_of(waits.begin(), waits.end(), awaits))
              << device.names[i] << ", then " << device.names[next];
        }
        EXPECT_GE(received, 12 / micro);
      }
    }
  }
}

// A wait that orders nothing: it only bounds how much is under way at once, or the streams are
// joined there anyhow.
bool OrdersNothing(const plan::Program& program, const plan::PlannedOp& op) {
  const std::vector<Section> sections = SectionsOf(program);
  const auto joined = [&](int32_t before) {
    return sections[&op - program.ops.data()] == Section::kUpdate &&
           sections[before] != Section::kUpdate;
  };
  return op.after >= 0 || std::all_of(op.wait_for.begin(), op.wait_for.end(), joined);
}

// All other waits are needed: without one the device names two ops that nothing orders.
TEST(DeviceExecutor, ARemovedEventIsFound) {
  TinyJob job;
  for (const v1::JobSpec& spec :
       {Spec(job, 2, 1, false), Spec(job, 2, 3, false), Offloaded(Spec(job, 1, 1, false))}) {
    const int stage = spec.train().zero().stage();
    const plan::StepPlan plan = *plan::PlanTraining(spec, *plan::OptionsFromSpec(spec, 1));
    int removed = 0;
    for (size_t op = 0; op < plan.train.ops.size(); ++op) {
      if (plan.train.ops[op].wait_for.empty()) continue;
      const std::vector<Result> found =
          RunRanksOf(spec, How::kDevice, 17 + op,
                     [op](plan::Program& program) { program.ops[op].wait_for.clear(); });
      const bool named = std::any_of(found.begin(), found.end(), [](const Result& r) {
        return absl::StrContains(r.status.message(), "nothing orders");
      });
      EXPECT_TRUE(named || OrdersNothing(plan.train, plan.train.ops[op]))
          << "op " << op << ", " << graph::Name(plan.train.ops[op].op.kind) << " at stage "
          << stage;
      removed += named ? 1 : 0;
    }
    EXPECT_GT(removed, 5);
  }
}

// Notes which ops have run.
class NotingBackend : public Backend {
 public:
  explicit NotingBackend(std::vector<std::string>* log) : log_(log) {}
  absl::StatusOr<BoundOp> Bind(const plan::StepPlan&, const plan::Program&,
                               const plan::PlannedOp& planned) override {
    return [this, &planned](const StepContext&) {
      log_->push_back(graph::Name(planned.op.kind));
      return absl::OkStatus();
    };
  }

 private:
  std::vector<std::string>* log_;
};

// Which ops with rows have run, and when the host has waited.
std::vector<std::string> LogOfExperts(bool pinned) {
  const TinyJob job;
  const v1::JobSpec spec = job.Spec({.ranks = 2, .expert = 2, .llama = true, .experts = 4});
  const plan::StepPlan plan = *plan::PlanTraining(spec, *plan::OptionsFromSpec(spec, 1));
  FakeDevice device(/*seed=*/3);
  const DeviceStreams streams = *DeviceStreams::Add(device, plan.options);
  std::vector<std::string> log;
  NotingBackend backend(&log);
  HostNumbers numbers = *HostNumbers::Make({&plan.train});
  EXPECT_FALSE(numbers.empty());
  EXPECT_TRUE(!pinned || numbers.Pin(device).ok());
  numbers.SetWait([&](StreamId stream) {
    const absl::Status status = device.Synchronize(stream, kTimeout);
    log.push_back("wait");
    return status;
  });
  const auto executor =
      DeviceExecutor::Create(plan, plan.train, &backend, &device, streams,
                             *device.Allocate(plan.arena_bytes), {.numbers = &numbers});
  EXPECT_TRUE(executor.ok()) << executor.status();
  EXPECT_EQ((*executor)->Run(Section::kMicroStep, ContextOfSteps()), absl::OkStatus());
  EXPECT_EQ((*executor)->Synchronize(kTimeout), absl::OkStatus());
  std::erase_if(log, [](const std::string& op) {
    return op != "wait" && op != "expert_segments" && !absl::StartsWith(op, "rows_");
  });
  return log;
}

// Once in each layer's forward, and not before the device has made them. The backward knows them.
// Where a copy itself may block, the host waits in front of it too.
TEST(DeviceExecutor, WaitsForNumbersThatTheHostMustKnow) {
  for (const bool pinned : {false, true}) {
    std::vector<std::string> wanted;
    for (int layer = 0; layer < 2; ++layer) {
      wanted.emplace_back("expert_segments");
      wanted.insert(wanted.end(), pinned ? 1 : 2, "wait");
      wanted.insert(wanted.end(), {"rows_to_experts", "rows_from_experts"});
    }
    for (int layer = 0; layer < 2; ++layer) {
      wanted.insert(wanted.end(), {"rows_to_experts", "rows_from_experts"});
    }
    EXPECT_EQ(LogOfExperts(pinned), wanted);
  }
}

}  // namespace
}  // namespace milepost::runtime
