// Whole training runs of several ranks: sessions on the GPU's engine, kernels and libraries on the
// host, every rank a thread with a device of its own that runs in an order of its own, and each of
// the communicators between them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/comm/in_process.h"
#include "engine/kernels/cuda/testing/host_graphs.h"
#include "engine/kernels/cuda/testing/host_products.h"
#include "engine/ops/linear/linear_contract.h"
#include "engine/runtime/gpu/backend/cuda_step_engine.h"
#include "engine/runtime/gpu/communicators/host_staged_communicator.h"
#include "engine/runtime/gpu/communicators/nccl_communicator.h"
#include "engine/runtime/gpu/communicators/testing/fake_nccl.h"
#include "engine/runtime/gpu/communicators/testing/in_process_device_communicator.h"
#include "engine/runtime/gpu/device/testing/fake_device.h"
#include "engine/runtime/session/training_session.h"
#include "engine/runtime/testing/tiny_job.h"
#include "engine/state/layout.h"

namespace milepost::runtime {
namespace {

enum class Transport { kCpu, kInProcess, kThroughTheHost, kNccl };

// Done when it returns, as all work of the fake device.
class AtOnce : public StagingStream {
 public:
  absl::Status Copy(void* to, const void* from, int64_t bytes, cudaStream_t) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  absl::Status Set(uint32_t* word, uint32_t value, cudaStream_t) override {
    std::atomic_ref(*word).store(value, std::memory_order_release);
    return absl::OkStatus();
  }
  absl::Status Await(uint32_t* word, uint32_t value, cudaStream_t) override {
    while (static_cast<int32_t>(std::atomic_ref(*word).load(std::memory_order_acquire) - value) <
           0) {
      std::this_thread::yield();
    }
    return absl::OkStatus();
  }
};

// What the calls of one stream need beside their ranks.
struct GpuLink {
  explicit GpuLink(FakeNcclCluster& cluster) : nccl(cluster) { nccl.lag = 1; }

  absl::StatusOr<std::unique_ptr<DeviceCommunicator>> Connect(Transport transport,
                                                              const plan::StepPlan& plan,
                                                              plan::Stream of,
                                                              comm::Communicator& ranks) {
    if (transport == Transport::kInProcess) {
      return std::make_unique<InProcessDeviceCommunicator>(ranks);
    }
    if (transport == Transport::kNccl) {
      return NcclCommunicator::Create({.sets = *RankSetsOf(plan, ranks.rank(), of)}, nccl, ranks);
    }
    staging.resize(*StagingBytes(plan, ranks.rank(), of));
    return std::make_unique<HostStagedCommunicator>(
        stream, ranks,
        HostStagedCommunicator::Pinned{&words[0], &words[1], staging.data(),
                                       static_cast<int64_t>(staging.size())});
  }

  FakeNccl nccl;
  AtOnce stream;
  uint32_t words[2] = {};
  std::vector<char> staging;
};

// One rank's, for as long as its session lives.
struct GpuRank {
  GpuRank(comm::Communicator& ranks, const StageTransfers& transfers, FakeNcclCluster& cluster)
      : ranks(ranks), transfers(transfers) {
    for (auto& link : links) link = std::make_unique<GpuLink>(cluster);
  }

  absl::StatusOr<std::unique_ptr<StepEngine>> Engine(Transport transport,
                                                     const StepEngineArguments& arguments) {
    CudaEngineParts parts;
    auto device = std::make_unique<FakeDevice>(/*seed=*/5 + ranks.rank());
    if (arguments.spec.resources().mesh().pipeline() > 1) device->SetBeside(MeetsPeers);
    parts.device = std::move(device);
    parts.products = std::make_unique<kernels::cuda::HostProducts>(
        kernels::cuda::kProductScratchBytes, order, identity);
    parts.graphs = std::make_unique<kernels::cuda::HostGraphs>();
    parts.communicator = [this, transport](const plan::StepPlan& plan, plan::Stream stream) {
      return links[static_cast<size_t>(stream)]->Connect(transport, plan, stream,
                                                         RanksOf(stream, ranks, transfers));
    };
    return CudaStepEngine(arguments, std::move(parts));
  }

  comm::Communicator& ranks;
  const StageTransfers transfers;
  kernels::cuda::HostProducts::Order order = kernels::cuda::HostProducts::Order::kForward;
  std::string identity = "the host";
  std::unique_ptr<GpuLink> links[plan::kStreams];
};

// What a rank keeps of all ranks' state, where each has all of it: but for errors, its own.
std::vector<char> KeptAlike(TrainingSession& session) {
  EXPECT_EQ(session.PrepareSave(), absl::OkStatus());
  std::vector<char> kept;
  for (const StateInterval& i : session.RestoreTargets()) {
    const v1::TensorInfo& tensor = session.state_tensors()[static_cast<size_t>(i.tensor)];
    if (tensor.kind() == state::kErrorKind) continue;
    const int64_t bytes = (i.end - i.begin) * ByteSize(*state::ParseDType(tensor.dtype()));
    kept.insert(kept.end(), i.data, i.data + bytes);
  }
  return kept;
}

// Losses and norms of every step, as rank 0 has them; all ranks have the same. `choices`: rank 0 is
// given them, and what it has then is put there.
std::vector<double> Train(
    const v1::JobSpec& spec, Transport transport,
    const std::function<kernels::cuda::HostProducts::Order(int rank)>& order_of = {},
    std::string* choices = nullptr) {
  const int world = spec.resources().ranks();
  auto host = comm::MakeInProcessGroup(world);
  auto device = comm::MakeInProcessGroup(world);
  auto activations = comm::MakeInProcessGroup(world);
  auto gradients = comm::MakeInProcessGroup(world);
  FakeNcclCluster cluster;
  std::vector<std::vector<double>> reports(world);
  std::vector<std::vector<char>> kept(world);
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      SessionOptions options;
      options.transfers = {activations[r].get(), gradients[r].get()};
      GpuRank rank(*device[r], options.transfers, cluster);
      if (order_of) rank.order = order_of(r);
      if (choices != nullptr && r == 0) options.choices = *choices;
      if (transport != Transport::kCpu) {
        options.engine = [&](const StepEngineArguments& arguments) {
          return rank.Engine(transport, arguments);
        };
      }
      auto session = TrainingSession::Create(spec, options, host[r].get());
      ASSERT_TRUE(session.ok()) << session.status();
      ASSERT_EQ((*session)->InitializeParameters(), absl::OkStatus());
      while ((*session)->step() < spec.train().steps()) {
        const auto report = (*session)->Step(false);
        ASSERT_TRUE(report.ok()) << report.status();
        reports[r].push_back(report->train_loss);
        reports[r].push_back(report->grad_norm);
      }
      if (choices != nullptr && r == 0) *choices = (*session)->choices();
      if (spec.train().has_powersgd()) kept[r] = KeptAlike(**session);
      session->reset();
      for (const auto& link : rank.links) EXPECT_THAT(link->nccl.misuse, testing::IsEmpty());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<double>& others : reports) EXPECT_EQ(others, reports[0]);
  for (const std::vector<char>& others : kept) EXPECT_TRUE(others == kept[0]);
  return reports[0];
}

// One sequence a micro-step; three steps: two op by op, then captured.
v1::JobSpec Spec(const TinyJob& job, TinyOptions tiny, int64_t micro_steps) {
  tiny.layers = 1;
  tiny.steps = 3;
  tiny.micro_batch = 1;
  tiny.global_batch = tiny.ranks * micro_steps;
  v1::JobSpec spec = job.Spec(tiny);
  const bool bf16 = tiny.precision == v1::PRECISION_BF16;
  if (bf16) spec.mutable_train()->set_grad_reduce(v1::GRAD_REDUCE_BF16);
  return spec;
}

// To the bit over every communicator, and nearly what the CPU has.
void ExpectAlike(const v1::JobSpec& spec, double relative) {
  const std::vector<double> in_process = Train(spec, Transport::kInProcess);
  const auto reported = static_cast<size_t>(2 * spec.train().steps());
  ASSERT_EQ(in_process.size(), reported);
  EXPECT_EQ(Train(spec, Transport::kThroughTheHost), in_process);
  EXPECT_EQ(Train(spec, Transport::kNccl), in_process);
  const std::vector<double> cpu = Train(spec, Transport::kCpu);
  ASSERT_EQ(cpu.size(), reported);
  for (size_t i = 0; i < cpu.size(); ++i) {
    EXPECT_NEAR(in_process[i], cpu[i], relative * cpu[i]) << i;
  }
}

TEST(RanksOnGpus, TrainAlikeWithWholeGradients) {
  const TinyJob job;
  ExpectAlike(Spec(job, {.ranks = 2, .stage = 0, .precision = v1::PRECISION_BF16}, 1), 2e-2);
}

v1::JobSpec FactorsSpec(const TinyJob& job, int ranks, bool warm = true) {
  v1::JobSpec spec = Spec(job, {.ranks = ranks, .stage = 0}, 1);
  v1::PowerSgdSpec* powersgd = spec.mutable_train()->mutable_powersgd();
  powersgd->set_rank(3);
  powersgd->set_start_step(1);
  powersgd->set_warm_start(warm);
  return spec;
}

// One step sends them whole; of those that do not the third is captured.
TEST(RanksOnGpus, TrainAlikeWithFactorsOfGradients) {
  const TinyJob job;
  for (const bool warm : {true, false}) {
    v1::JobSpec spec = FactorsSpec(job, 3, warm);
    spec.mutable_train()->set_steps(5);
    ExpectAlike(spec, 1e-4);
  }
}

// Why a job does not start whose second rank has another device than the first, which knows the
// algorithms of both from attempts before. Empty: it starts.
std::string RefusalOfAnotherDevice(const v1::JobSpec& spec) {
  std::string choices;
  Train(spec, Transport::kInProcess, {}, &choices);
  auto host = comm::MakeInProcessGroup(2), device = comm::MakeInProcessGroup(2);
  FakeNcclCluster cluster;
  std::string refusals[2];
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      SessionOptions options;
      GpuRank rank(*device[r], options.transfers, cluster);
      if (r == 0) {
        rank.identity = "another device";
        options.choices = choices;
      }
      options.engine = [&](const StepEngineArguments& arguments) {
        return rank.Engine(Transport::kInProcess, arguments);
      };
      const auto session = TrainingSession::Create(spec, options, host[r].get());
      refusals[r] = std::string(session.status().message());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refusals[0], refusals[1]);
  return refusals[0];
}

// What ranks compute beside each other has to have the same bits.
TEST(RanksOnGpus, FactorsAndTensorRanksNeedDevicesOfOneKind) {
  const TinyJob job;
  for (const v1::JobSpec& spec :
       {FactorsSpec(job, 2), Spec(job, {.ranks = 2, .tensor = 2, .stage = 0}, 1)}) {
    EXPECT_THAT(
        RefusalOfAnotherDevice(spec),
        testing::HasSubstr("GPU and library: another device on rank 0; the host on rank 1"));
  }
  EXPECT_EQ(RefusalOfAnotherDevice(Spec(job, {.ranks = 2, .stage = 1}, 1)), "");
}

TEST(RanksOnGpus, TrainAlikeWithShardsOfGradients) {
  const TinyJob job;
  v1::JobSpec spec = Spec(job, {.ranks = 2, .stage = 2}, 2);
  spec.mutable_train()->mutable_optimizer()->set_type(v1::OptimizerSpec::TYPE_MUON);
  ExpectAlike(spec, 1e-4);
}

TEST(RanksOnGpus, TrainAlikeInGroupsThatShardEverything) {
  const TinyJob job;
  ExpectAlike(Spec(job, {.ranks = 4, .stage = 3, .group = 2}, 1), 1e-4);
}

TEST(RanksOnGpus, TrainAlikeInFewerBits) {
  const TinyJob job;
  v1::JobSpec spec = Spec(job, {.ranks = 2, .stage = 1, .precision = v1::PRECISION_BF16}, 1);
  spec.mutable_train()->mutable_optimizer()->set_master(v1::MASTER_DTYPE_NONE);
  spec.mutable_train()->set_grad_dtype(v1::GRAD_DTYPE_BF16);
  ExpectAlike(spec, 2e-2);
}

// Whatever a rank's own host finds the fastest.
TEST(RanksOnGpus, AllTakeTheAlgorithmsOfRankZero) {
  using Order = kernels::cuda::HostProducts::Order;
  const TinyJob job;
  const v1::JobSpec spec = Spec(job, {.ranks = 2, .stage = 1}, 2);
  const std::vector<double> forward = Train(spec, Transport::kInProcess);
  const auto train = [&](std::vector<Order> orders) {
    return Train(spec, Transport::kInProcess, [&](int rank) { return orders[rank]; });
  };
  EXPECT_EQ(train({Order::kForward, Order::kBackward}), forward);
  EXPECT_NE(train({Order::kBackward, Order::kForward}), forward);
}

// Three micro-batches through stages of a layer each. The embedding is tied: both ends have it.
v1::JobSpec PipelineSpec(const TinyJob& job, TinyOptions tiny) {
  tiny.layers = tiny.pipeline * std::max(1, tiny.chunks);
  tiny.steps = 3;
  tiny.micro_batch = 1;
  tiny.global_batch = 3 * (tiny.ranks / tiny.pipeline / tiny.tensor);
  return job.Spec(tiny);
}

TEST(RanksOnGpus, TrainAlikeInStagesOfTensorRanks) {
  const TinyJob job;
  for (const auto schedule : {v1::PIPELINE_SCHEDULE_1F1B, v1::PIPELINE_SCHEDULE_ZERO_BUBBLE}) {
    for (const bool llama : {false, true}) {  // whose tensor ranks share a head of keys
      ExpectAlike(PipelineSpec(job, {.ranks = 4,
                                     .tensor = 2,
                                     .pipeline = 2,
                                     .schedule = schedule,
                                     .llama = llama,
                                     .kv_heads = 1}),
                  1e-5);
    }
  }
}

// Two ranks are each other's next one and the one before; three are a ring.
TEST(RanksOnGpus, TrainAlikeInInterleavedStages) {
  const TinyJob job;
  for (const TinyOptions& options :
       {TinyOptions{.ranks = 4, .tensor = 2, .pipeline = 2}, TinyOptions{.ranks = 3, .pipeline = 3},
        TinyOptions{.ranks = 4, .pipeline = 2, .stage = 3}}) {
    TinyOptions tiny = options;
    tiny.schedule = v1::PIPELINE_SCHEDULE_INTERLEAVED;
    tiny.chunks = 2;
    ExpectAlike(PipelineSpec(job, tiny), 1e-5);
  }
}

TEST(RanksOnGpus, TrainAlikeInStagesThatShardEverything) {
  const TinyJob job;
  ExpectAlike(
      PipelineSpec(job, {.ranks = 4, .pipeline = 2, .stage = 3, .llama = true, .tied = true}),
      1e-5);
}

TEST(RanksOnGpus, TrainAlikeInStagesWithRoundedGradients) {
  const TinyJob job;
  v1::JobSpec spec =
      PipelineSpec(job, {.ranks = 4, .pipeline = 2, .stage = 1, .precision = v1::PRECISION_BF16});
  spec.mutable_train()->set_grad_reduce(v1::GRAD_REDUCE_BF16);
  ExpectAlike(spec, 2e-2);
}

// The middle one has no part of the embedding that the others share.
TEST(RanksOnGpus, TrainAlikeInThreeStages) {
  const TinyJob job;
  ExpectAlike(
      PipelineSpec(job,
                   {.ranks = 3, .pipeline = 3, .precision = v1::PRECISION_BF16, .dropout = 0.1}),
      2e-3);
}

// Ranks that divide sequences, in batches of one and of two.
v1::JobSpec ContextSpec(const TinyJob& job, TinyOptions tiny) {
  tiny.layers = tiny.pipeline;
  tiny.steps = 3;
  tiny.global_batch =
      2 * tiny.micro_batch * (tiny.ranks / tiny.pipeline / tiny.tensor / tiny.context);
  return job.Spec(tiny);
}

TEST(RanksOnGpus, TrainAlikeWhereTheyDivideSequences) {
  const TinyJob job;
  for (const int64_t micro_batch : {1, 2}) {
    for (const auto precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
      ExpectAlike(ContextSpec(job, {.ranks = 4,
                                    .context = 4,
                                    .stage = 1,
                                    .precision = precision,
                                    .micro_batch = micro_batch,
                                    .llama = true,
                                    .kv_heads = 2}),
                  precision == v1::PRECISION_FP32 ? 1e-5 : 2e-2);
    }
  }
  ExpectAlike(ContextSpec(job, {.ranks = 4, .context = 2, .stage = 3, .dropout = 0.1}), 1e-5);
  ExpectAlike(ContextSpec(job, {.ranks = 4, .tensor = 2, .context = 2, .stage = 0}), 1e-5);
}

TEST(RanksOnGpus, TrainAlikeInStagesThatDivideSequences) {
  const TinyJob job;
  for (const int stage : {0, 3}) {
    ExpectAlike(ContextSpec(job, {.ranks = 4,
                                  .pipeline = 2,
                                  .context = 2,
                                  .schedule = v1::PIPELINE_SCHEDULE_ZERO_BUBBLE,
                                  .stage = stage,
                                  .micro_batch = 1,
                                  .dropout = 0.1}),
                1e-5);
  }
}

// Ranks that share experts out: alone, among data ranks, and in every mesh that has sets of both.
TEST(RanksOnGpus, TrainAlikeWhereTheyShareExpertsOut) {
  const TinyJob job;
  const auto spec = [&](TinyOptions tiny) {
    tiny.llama = true;
    tiny.kv_heads = 4;
    tiny.experts = 4;
    tiny.micro_batch = 1;
    return ContextSpec(job, tiny);
  };
  for (const auto precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    ExpectAlike(spec({.ranks = 4, .expert = 4, .stage = 1, .precision = precision}),
                precision == v1::PRECISION_FP32 ? 1e-5 : 2e-2);
  }
  ExpectAlike(spec({.ranks = 4, .expert = 2, .stage = 3}), 1e-5);
  ExpectAlike(spec({.ranks = 4, .tensor = 2, .expert = 2, .stage = 1}), 1e-5);
  ExpectAlike(spec({.ranks = 4, .context = 2, .expert = 4, .stage = 2, .balance = 0}), 1e-5);
  for (const int stage : {0, 3}) {
    ExpectAlike(spec({.ranks = 4,
                      .pipeline = 2,
                      .expert = 2,
                      .schedule = v1::PIPELINE_SCHEDULE_ZERO_BUBBLE,
                      .stage = stage}),
                1e-5);
  }
}

// The first rank of each stage chooses for what no stage before it has, and rank 0 knows all.
TEST(RanksOnGpus, AllRanksOfAStageTakeTheAlgorithmsOfItsFirst) {
  using Order = kernels::cuda::HostProducts::Order;
  const TinyJob job;
  const v1::JobSpec spec = PipelineSpec(job, {.ranks = 4, .pipeline = 2});
  const auto train = [&](std::vector<Order> orders, std::string* choices = nullptr) {
    return Train(
        spec, Transport::kInProcess, [&](int rank) { return orders[rank]; }, choices);
  };
  constexpr Order kForward = Order::kForward, kBackward = Order::kBackward;
  const std::vector<double> forward = train({kForward, kForward, kForward, kForward});
  std::string choices;
  const std::vector<double> mixed = train({kForward, kBackward, kForward, kForward}, &choices);
  EXPECT_NE(mixed, forward);
  EXPECT_EQ(train({kForward, kBackward, kBackward, kBackward}), mixed);
  EXPECT_EQ(train({kBackward, kForward, kForward, kBackward}, &choices), mixed);
}

// A device whose work is not done for as long as it is told so.
class StuckDevice : public FakeDevice {
 public:
  StuckDevice(uint64_t seed, const std::atomic<bool>& stuck) : FakeDevice(seed), stuck_(stuck) {}
  absl::Status Synchronize(StreamId stream, absl::Duration timeout) override {
    if (stuck_) return absl::DeadlineExceededError("stuck");
    return FakeDevice::Synchronize(stream, timeout);
  }

 private:
  const std::atomic<bool>& stuck_;
};

// Hears of a peer, as NCCL does, and ends what is under way.
class HearsOfAPeer : public InProcessDeviceCommunicator {
 public:
  HearsOfAPeer(comm::Communicator& ranks, const std::atomic<bool>& gone)
      : InProcessDeviceCommunicator(ranks), gone_(gone) {}
  absl::Status Health() override {
    if (!gone_) return InProcessDeviceCommunicator::Health();
    InProcessDeviceCommunicator::Abort("a peer is gone");
    return absl::UnavailableError("a peer is gone");
  }

 private:
  const std::atomic<bool>& gone_;
};

// Of every rank, in its second step, where the device is stuck.
std::vector<absl::Status> TrainUntilStuck(bool heard, absl::Duration timeout) {
  const TinyJob job;
  const v1::JobSpec spec = Spec(job, {.ranks = 2, .stage = 1}, 1);
  auto host = comm::MakeInProcessGroup(2);
  auto device = comm::MakeInProcessGroup(2);
  std::vector<absl::Status> ends(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      std::atomic<bool> stuck{false};
      SessionOptions options;
      options.engine = [&](const StepEngineArguments& arguments) {
        CudaEngineParts parts;
        parts.device = std::make_unique<StuckDevice>(3 + r, stuck);
        parts.products = std::make_unique<kernels::cuda::HostProducts>();
        parts.graphs = std::make_unique<kernels::cuda::HostGraphs>();
        parts.communicator = [&](const plan::StepPlan&, plan::Stream) {
          static const std::atomic<bool> never{false};
          return std::make_unique<HearsOfAPeer>(*device[r], heard ? stuck : never);
        };
        parts.timeout = timeout;
        return CudaStepEngine(arguments, std::move(parts));
      };
      auto session = TrainingSession::Create(spec, options, host[r].get());
      ASSERT_TRUE(session.ok()) << session.status();
      ASSERT_EQ((*session)->InitializeParameters(), absl::OkStatus());
      ASSERT_TRUE((*session)->Step(false).ok());
      stuck = true;
      ends[r] = (*session)->Step(false).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

// Long before the step's deadline.
TEST(RanksOnGpus, APeerThatIsGoneEndsTheWaitForTheDevice) {
  for (const absl::Status& end : TrainUntilStuck(/*heard=*/true, absl::Hours(1))) {
    EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable) << end;
  }
}

TEST(RanksOnGpus, AStepThatTakesTooLongEndsForAllRanks) {
  int late = 0;
  for (const absl::Status& end : TrainUntilStuck(/*heard=*/false, absl::Milliseconds(20))) {
    EXPECT_TRUE(comm::IsPeerLost(end)) << end;
    late += absl::IsDeadlineExceeded(end) ? 1 : 0;
  }
  EXPECT_GE(late, 1);
}

// Two ranks that stop for ever before what `stuck` holds of, in the step after `steps`.
std::vector<absl::Status> TrainUntilStuckIn(
    int steps, const std::function<bool(int rank, const std::string& work)>& stuck) {
  const TinyJob job;
  const v1::JobSpec spec = Spec(job, {.ranks = 2, .stage = 3}, 2);
  auto host = comm::MakeInProcessGroup(2);
  auto device = comm::MakeInProcessGroup(2);
  std::vector<absl::Status> ends(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      bool begun = false;
      SessionOptions options;
      options.engine = [&](const StepEngineArguments& arguments) {
        CudaEngineParts parts;
        auto fake = std::make_unique<FakeDevice>(3 + r);
        fake->SetStuck([&, r](const std::string& work) { return begun && stuck(r, work); });
        parts.device = std::move(fake);
        parts.products = std::make_unique<kernels::cuda::HostProducts>();
        parts.graphs = std::make_unique<kernels::cuda::HostGraphs>();
        parts.communicator = [&](const plan::StepPlan&, plan::Stream) {
          return std::make_unique<InProcessDeviceCommunicator>(*device[r]);
        };
        parts.timeout = absl::Milliseconds(20);
        return CudaStepEngine(arguments, std::move(parts));
      };
      auto session = TrainingSession::Create(spec, options, host[r].get());
      ASSERT_TRUE(session.ok()) << session.status();
      ASSERT_EQ((*session)->InitializeParameters(), absl::OkStatus());
      for (int step = 0; step < steps; ++step) ASSERT_TRUE((*session)->Step(false).ok());
      begun = true;
      ends[r] = (*session)->Step(false).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

// Op by op, and as a graph that has run before.
TEST(RanksOnGpus, TheCollectiveThatHangsIsNamed) {
  for (const int steps : {1, 6}) {
    const std::vector<absl::Status> ends =
        TrainUntilStuckIn(steps, [](int, const std::string& work) {
          return work.find("reduce_gradients") != std::string::npos;
        });
    for (const absl::Status& end : ends) {
      EXPECT_THAT(
          std::string(end.message()),
          testing::AllOf(testing::ContainsRegex("under way: op [0-9]+ .reduce_grad.*, block"),
                         testing::HasSubstr("every rank waits at the same place")))
          << steps;
    }
  }
}

TEST(RanksOnGpus, WhoHasNotComeToTheCollectiveIsNamed) {
  for (const int steps : {1, 6}) {
    const std::vector<absl::Status> ends =
        TrainUntilStuckIn(steps, [](int rank, const std::string& work) {
          return work.find(rank == 0 ? "reduce_gradients" : "(lm_head_loss") != std::string::npos;
        });
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_THAT(std::string(ends[rank].message()),
                  testing::AllOf(testing::HasSubstr(rank == 0 ? "(reduce_gradients" : "under way"),
                                 testing::HasSubstr("; rank 1 is behind the others")))
          << steps;
    }
  }
}

}  // namespace
}  // namespace milepost::runtime
