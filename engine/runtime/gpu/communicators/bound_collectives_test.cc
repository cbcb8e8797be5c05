// The ops of the communication stream as a GPU's backend binds them: what a whole step enqueues
// against what the plan says, and what each does to memory against the CPU's backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/comm/in_process.h"
#include "engine/kernels/cuda/testing/host_graphs.h"
#include "engine/kernels/cuda/testing/host_products.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/cpu/cpu_backend.h"
#include "engine/runtime/gpu/backend/cuda_backend.h"
#include "engine/runtime/gpu/backend/tables_on_device.h"
#include "engine/runtime/gpu/communicators/testing/in_process_device_communicator.h"
#include "engine/runtime/gpu/communicators/testing/recording_communicator.h"
#include "engine/runtime/gpu/device/device_executor.h"
#include "engine/runtime/gpu/device/testing/fake_device.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int kRanks = 4;

struct Case {
  int stage = 0;
  int group = 0;
  v1::OptimizerSpec::Type optimizer = v1::OptimizerSpec::TYPE_ADAMW;
  int64_t accumulation = 1;
  v1::GradReduce reduce = v1::GRAD_REDUCE_FP32;
  v1::Precision precision = v1::PRECISION_FP32;
  int context = 1;  // as a Llama with two heads of keys
  int64_t micro_batch = 1;
  int factors = 0;  // their rank, where gradients travel as such
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << "stage " << c.stage << ", groups of " << c.group << ", context " << c.context << ", "
       << v1::OptimizerSpec::Type_Name(c.optimizer) << ", accumulation " << c.accumulation << ", "
       << v1::GradReduce_Name(c.reduce) << ", " << v1::Precision_Name(c.precision)
       << ", factors of " << c.factors;
}

// Every stage with everything else; hybrid sharding where there are shards.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int stage : {0, 1, 2, 3}) {
    for (const int group : {0, 2}) {
      if (stage == 0 && group > 0) continue;
      for (const int64_t accumulation : {1, 2}) {
        for (const auto optimizer : {v1::OptimizerSpec::TYPE_ADAMW, v1::OptimizerSpec::TYPE_LAMB,
                                     v1::OptimizerSpec::TYPE_MUON}) {
          cases.push_back({stage, group, optimizer, accumulation});
        }
        cases.push_back({stage, group, v1::OptimizerSpec::TYPE_ADAMW, accumulation,
                         v1::GRAD_REDUCE_BF16, v1::PRECISION_BF16});
      }
    }
  }
  for (const int factors : {1, 3}) {
    cases.emplace_back();
    cases.back().accumulation = factors;
    cases.back().factors = factors;
  }
  for (const int context : {2, 4}) {
    for (const int64_t micro_batch : {1, 3}) {
      for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
        Case c{.stage = context == 2 ? 3 : 1, .group = context == 2 ? 2 : 0};
        c.precision = precision;
        c.context = context;
        c.micro_batch = micro_batch;
        cases.push_back(c);
      }
    }
  }
  return cases;
}

plan::StepPlan PlanOf(const Case& c) {
  static const TinyJob job;
  TinyOptions tiny{.ranks = kRanks,
                   .context = c.context,
                   .stage = c.stage,
                   .group = c.group,
                   .precision = c.precision,
                   .llama = c.context > 1};
  tiny.micro_batch = c.micro_batch;
  tiny.global_batch = kRanks / c.context * c.micro_batch * c.accumulation;
  v1::JobSpec spec = job.Spec(tiny);
  spec.mutable_train()->mutable_optimizer()->set_type(c.optimizer);
  spec.mutable_train()->set_grad_reduce(c.reduce);
  if (c.factors > 0) spec.mutable_train()->mutable_powersgd()->set_rank(c.factors);
  plan::PlanOptions options = *plan::OptionsFromSpec(spec, 1);
  options.device = plan::DeviceKind::kCuda;
  return *plan::PlanTraining(spec, options);
}

// Untouched, so that the scratch in it costs nothing.
struct Memory {
  explicit Memory(int64_t bytes) : data(new (std::align_val_t{256}) char[bytes]) {}
  ~Memory() { ::operator delete[](data, std::align_val_t{256}); }
  char* data;
};

// The GPU's backend with everything bound, of which the communication alone is run.
class Bound {
 public:
  Bound(const plan::StepPlan& plan, DeviceCommunicator* communicator, int rank, cudaStream_t stream)
      : arena(plan.arena_bytes),
        control_(ControlLayoutOf(plan, rank).bytes),
        device_(/*seed=*/17 + rank),
        streams(*DeviceStreams::Add(device_)),
        tables_(&device_, streams.compute, kTimeout),
        backend_({.products = &products_,
                  .graphs = &graphs_,
                  .tables = &tables_,
                  .communicator = communicator}),
        only_(backend_) {
    std::memset(control_.data, 0, ControlLayoutOf(plan, rank).bytes);
    EXPECT_EQ(backend_.Prepare(plan), absl::OkStatus());
    backend_.Attach({.arena = arena.data,
                     .control = control_.data,
                     .update = &update_,
                     .streams = {nullptr, stream}});
  }
  Device& device() { return device_; }
  Backend& backend() { return only_; }

  const Memory arena;

 private:
  struct OnlyCommunication : Backend {
    explicit OnlyCommunication(Backend& whole) : whole(whole) {}
    absl::StatusOr<BoundOp> Bind(const plan::StepPlan& plan, const plan::Program& program,
                                 const plan::PlannedOp& planned) override {
      MP_ASSIGN_OR_RETURN(BoundOp bound, whole.Bind(plan, program, planned));
      if (planned.stream == plan::Stream::kCommunication) return bound;
      return [](const StepContext&) { return absl::OkStatus(); };
    }
    Backend& whole;
  };

  const Memory control_;
  FakeDevice device_;

 public:
  const DeviceStreams streams;

 private:
  TablesOnDevice tables_;
  kernels::cuda::HostProducts products_;
  kernels::cuda::HostGraphs graphs_;
  kernels::cuda::UpdateControl update_;
  CudaBackend backend_;
  OnlyCommunication only_;
};

absl::Status RunStep(const plan::StepPlan& plan, DeviceExecutor& executor, bool captured) {
  StepContext context;
  for (int64_t micro = 0; micro < plan.options.accumulation; ++micro) {
    context.first_micro_step = micro == 0;
    context.last_micro_step = micro + 1 == plan.options.accumulation;
    constexpr Section kSections[] = {Section::kMicroStep, Section::kReduce, Section::kUpdate};
    const absl::Span<const Section> sections(kSections, context.last_micro_step ? 3 : 1);
    if (captured) {
      MP_ASSIGN_OR_RETURN(const GraphId graph, executor.Capture(sections, context));
      MP_RETURN_IF_ERROR(executor.Launch(graph));
    } else {
      for (const Section section : sections) MP_RETURN_IF_ERROR(executor.Run(section, context));
    }
  }
  return executor.Synchronize(kTimeout);
}

std::vector<Collective> Recorded(const plan::StepPlan& plan, int rank, bool captured) {
  int some_stream = 0;
  auto* stream = reinterpret_cast<cudaStream_t>(&some_stream);
  RecordingCommunicator recorder(rank, kRanks);
  Bound bound(plan, &recorder, rank, stream);
  auto executor = DeviceExecutor::Create(plan, plan.train, &bound.backend(), &bound.device(),
                                         bound.streams, bound.arena.data);
  EXPECT_TRUE(executor.ok()) << executor.status();
  if (!executor.ok()) return {};
  EXPECT_EQ(RunStep(plan, **executor, captured), absl::OkStatus());
  for (const cudaStream_t used : recorder.streams) EXPECT_EQ(used, stream);
  return recorder.calls;
}

// Of two ranks' i-th calls: the same, but for what differs by rank.
bool Agree(Collective mine, Collective theirs) {
  if (mine.among.count != theirs.among.count || mine.among.stride != theirs.among.stride) {
    return false;
  }
  // A rank's own shard of a gradient, among the ranks that hold the same one.
  theirs.offset = mine.offset;
  theirs.among = mine.among;
  return mine == theirs;
}

TEST(BoundCollectives, AStepEnqueuesWhatThePlanSaysOnEveryRankInOneOrder) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(testing::PrintToString(c));
    const plan::StepPlan plan = PlanOf(c);
    std::vector<std::vector<Collective>> by_rank;
    for (int rank = 0; rank < kRanks; ++rank) {
      by_rank.push_back(Recorded(plan, rank, /*captured=*/rank % 2 == 1));
      const auto wanted = CollectivesOfStep(plan, rank);
      ASSERT_TRUE(wanted.ok()) << wanted.status();
      ASSERT_GT(wanted->size(), 3u);
      EXPECT_TRUE(by_rank[rank] == *wanted) << "rank " << rank;
    }
    for (const std::vector<Collective>& calls : by_rank) {
      ASSERT_EQ(calls.size(), by_rank[0].size());
      for (size_t i = 0; i < calls.size(); ++i) {
        EXPECT_TRUE(Agree(calls[i], by_rank[0][i])) << "call " << i;
        // Who is called makes the same call, among the same ranks.
        for (int peer = 0; peer < calls[i].among.count; ++peer) {
          EXPECT_EQ(by_rank[calls[i].among.RankAt(peer)][i].among, calls[i].among);
        }
      }
    }
  }
}

TEST(BoundCollectives, PlansHaveTheirScratch) {
  for (const Case& c : Cases()) {
    const plan::StepPlan plan = PlanOf(c);
    for (const plan::PlannedOp& op : plan.train.ops) {
      const auto call = CollectiveOf(plan, plan.train, op, 1);
      ASSERT_TRUE(call.ok()) << call.status();
      if (!call->has_value() || (*call)->kind == Collective::Kind::kExchange) continue;
      EXPECT_EQ(op.workspace_bytes, CollectiveScratchBytes(**call)) << testing::PrintToString(c);
    }
  }
}

// Offsets and sizes of all buffers but the products' large scratch.
using Range = std::pair<int64_t, int64_t>;
std::vector<Range> Used(const plan::StepPlan& plan) {
  std::vector<Range> ranges;
  for (const plan::Buffer& buffer : plan.buffers) {
    if (buffer.bytes < 1 << 20) ranges.push_back({buffer.offset, buffer.bytes});
  }
  return ranges;
}

// Numbers in every type that may lie there: floats whose lower halves are zero.
void Fill(char* arena, const std::vector<Range>& ranges, int rank) {
  for (const auto& [begin, bytes] : ranges) {
    for (int64_t at = begin; at < begin + bytes; at += 4) {
      const auto value = static_cast<float>(at * (rank + 3) % 997 - 500);
      uint32_t word = 0;
      std::memcpy(&word, &value, 4);
      word &= 0xffff0000;
      std::memcpy(arena + at, &word, 4);
    }
  }
}

// Every collective of the plan on the CPU's backend and on the GPU's, with memory that is the same
// before; it is the same to the bit afterwards.
void ExpectTheCpusMemory(const plan::StepPlan& plan, int rank, comm::Communicator& ranks) {
  InProcessDeviceCommunicator communicator(ranks);
  Bound gpu(plan, &communicator, rank, nullptr);
  const Memory cpus(plan.arena_bytes);
  CpuBackend cpu(1);
  cpu.Attach(cpus.data, &ranks);
  const std::vector<Range> ranges = Used(plan);
  for (const plan::PlannedOp& op : plan.train.ops) {
    if (op.stream != plan::Stream::kCommunication) continue;
    if (op.op.kind == graph::OpKind::kReduceScalars) continue;  // reads the step's control
    const auto wanted = cpu.Bind(plan, plan.train, op);
    const auto found = gpu.backend().Bind(plan, plan.train, op);
    ASSERT_TRUE(wanted.ok() && found.ok()) << wanted.status() << found.status();
    for (const bool first : {true, false}) {
      StepContext context;
      context.first_micro_step = first;
      Fill(cpus.data, ranges, rank);
      Fill(gpu.arena.data, ranges, rank);
      ASSERT_EQ((*wanted)(context), absl::OkStatus());
      ASSERT_EQ((*found)(context), absl::OkStatus());
      for (const auto& [begin, bytes] : ranges) {
        ASSERT_EQ(std::memcmp(cpus.data + begin, gpu.arena.data + begin, bytes), 0)
            << graph::Name(op.op.kind) << ", first " << first;
      }
    }
  }
}

TEST(BoundCollectives, DoToMemoryWhatTheCpusDo) {
  for (const Case& c : Cases()) {
    if (c.stage == 0 && c.accumulation == 2) continue;
    SCOPED_TRACE(testing::PrintToString(c));
    const plan::StepPlan plan = PlanOf(c);
    auto group = comm::MakeInProcessGroup(kRanks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] { ExpectTheCpusMemory(plan, rank, *group[rank]); });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(BoundCollectives, NeedACommunicator) {
  const plan::StepPlan plan = PlanOf({.stage = 1});
  Bound gpu(plan, nullptr, 0, nullptr);
  for (const plan::PlannedOp& op : plan.train.ops) {
    if (op.op.kind != graph::OpKind::kGatherParameters) continue;
    EXPECT_THAT(gpu.backend().Bind(plan, plan.train, op).status().message(),
                testing::HasSubstr("there is no communicator"));
  }
}

}  // namespace
}  // namespace milepost::runtime
