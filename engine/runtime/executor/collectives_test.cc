// The calls that CollectiveOf tells, against those that the CPU backend makes of a communicator
// which only writes them down; and one rank's against another's.
#include "engine/runtime/executor/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/cpu/cpu_backend.h"
#include "engine/runtime/executor/arena.h"
#include "engine/runtime/executor/executor.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

using comm::RankSet;

std::string Text(const char* kind, int64_t offset, int64_t bytes, const RankSet& set) {
  return absl::StrFormat("%s of %d bytes at %d among %d from %d by %d", kind, bytes, offset,
                         set.count, set.first, set.stride);
}

// One rank alone: nothing is sent, and values stay what they are.
class Recorder : public comm::Communicator {
 public:
  Recorder(int rank, int world) : Communicator(rank, world) {}
  void SetTimeout(absl::Duration) override {}
  absl::Duration timeout() const override { return absl::InfiniteDuration(); }
  void Abort(absl::string_view) override {}

  const char* arena = nullptr;
  std::vector<std::string> calls;

 private:
  absl::Status Add(const char* kind, const void* data, size_t bytes, const RankSet& set) {
    calls.push_back(
        Text(kind, static_cast<const char*>(data) - arena, static_cast<int64_t>(bytes), set));
    return absl::OkStatus();
  }
  absl::Status DoAllReduce(void* values, size_t count, comm::ElementType type, comm::ReduceOp,
                           const RankSet& set, int64_t*) override {
    return Add("all-reduce", values, count * (type == comm::ElementType::kFloat ? 4 : 8), set);
  }
  absl::Status DoReduceScatter(float* buffer, size_t count, const RankSet& set, int64_t*) override {
    return Add("reduce-scatter", buffer, count * 4, set);
  }
  absl::Status DoReduceScatterBf16(char* data, size_t count, float*, const RankSet& set,
                                   int64_t*) override {
    return Add("rounded reduce-scatter", data, count * 2, set);
  }
  absl::Status DoAllGather(char* buffer, size_t bytes, const RankSet& set, int64_t*) override {
    return Add("all-gather", buffer, bytes, set);
  }
  absl::Status DoBroadcast(char* buffer, size_t bytes, int, int64_t*) override {
    return Add("broadcast", buffer, bytes, {});
  }
  absl::Status DoExchange(absl::Span<const Transfer>, const RankSet&, int64_t*) override {
    return absl::UnimplementedError("no step does this");
  }
  absl::Status DoSend(int, const char*, size_t, int64_t*) override {
    return absl::UnimplementedError("no step without stages does this");
  }
  absl::Status DoReceive(int, char*, size_t) override {
    return absl::UnimplementedError("no step without stages does this");
  }
  absl::Status Health() override { return absl::OkStatus(); }
};

// What the CPU's communicator makes of it: a rounded all-reduce is two calls there.
std::vector<std::string> AsCalls(const std::vector<Collective>& collectives) {
  std::vector<std::string> calls;
  for (const Collective& c : collectives) {
    if (c.rounded) {
      calls.push_back(Text("rounded reduce-scatter", c.offset, c.elements * 2, c.among));
      if (c.kind == Collective::Kind::kAllReduce) {
        calls.push_back(Text("all-gather", c.offset, c.elements * 2, c.among));
      }
      continue;
    }
    const char* kind = c.kind == Collective::Kind::kAllReduce       ? "all-reduce"
                       : c.kind == Collective::Kind::kReduceScatter ? "reduce-scatter"
                                                                    : "all-gather";
    calls.push_back(Text(kind, c.offset, c.bytes(), c.among));
  }
  return calls;
}

plan::StepPlan PlanOf(const v1::JobSpec& spec, CpuBackend& backend) {
  plan::PlanOptions options = *plan::OptionsFromSpec(spec, 1);
  const plan::StepPlan plan = *plan::PlanTraining(spec, options);
  options.min_matmul_workspace_bytes = backend.CheckMatmulWorkspace(plan)->needed;
  return *plan::PlanTraining(spec, options);
}

// A step of one rank on the CPU.
std::vector<std::string> CallsOnTheCpu(const v1::JobSpec& spec, int rank) {
  CpuBackend backend(1);
  const plan::StepPlan plan = PlanOf(spec, backend);
  const Arena arena = *Arena::Allocate(plan.arena_bytes);
  Recorder recorder(rank, spec.resources().ranks());
  recorder.arena = arena.data();
  backend.Attach(arena.data(), &recorder);
  auto executor = *Executor::Create(plan, plan.train, &backend, {});
  StepContext context;
  context.learning_rate = 1e-3F;
  for (int64_t micro = 0; micro < plan.options.accumulation; ++micro) {
    context.first_micro_step = micro == 0;
    context.last_micro_step = micro + 1 == plan.options.accumulation;
    EXPECT_EQ(executor->Run(Section::kMicroStep, context), absl::OkStatus());
  }
  EXPECT_EQ(executor->Run(Section::kReduce, context), absl::OkStatus());
  EXPECT_EQ(executor->Run(Section::kUpdate, context), absl::OkStatus());
  return recorder.calls;
}

v1::JobSpec Spec(const TinyJob& job, int stage, int group, v1::OptimizerSpec::Type optimizer,
                 v1::GradReduce reduce) {
  TinyOptions options{.ranks = 4, .stage = stage, .group = group};
  options.micro_batch = 1;
  options.global_batch = 8;
  v1::JobSpec spec = job.Spec(options);
  spec.mutable_train()->mutable_optimizer()->set_type(optimizer);
  spec.mutable_train()->set_grad_reduce(reduce);
  return spec;
}

TEST(Collectives, AreTheCallsOfTheCpuBackendInItsOrder) {
  TinyJob job;
  for (int stage : {0, 1, 2, 3}) {
    for (int group : {0, 2}) {
      for (const auto optimizer : {v1::OptimizerSpec::TYPE_ADAMW, v1::OptimizerSpec::TYPE_LAMB,
                                   v1::OptimizerSpec::TYPE_MUON}) {
        const auto reduce = optimizer == v1::OptimizerSpec::TYPE_ADAMW && group == 2
                                ? v1::GRAD_REDUCE_BF16
                                : v1::GRAD_REDUCE_FP32;
        const v1::JobSpec spec = Spec(job, stage, group, optimizer, reduce);
        SCOPED_TRACE(testing::Message() << "stage " << stage << ", groups of " << group
                                        << ", optimizer " << optimizer);
        CpuBackend backend(1);
        const plan::StepPlan plan = PlanOf(spec, backend);
        for (int rank : {0, 3}) {
          const auto calls = CollectivesOfStep(plan, rank);
          ASSERT_TRUE(calls.ok()) << calls.status();
          EXPECT_GT(calls->size(), 3u);
          EXPECT_THAT(AsCalls(*calls), testing::ElementsAreArray(CallsOnTheCpu(spec, rank)));
        }
      }
    }
  }
}

// Both exchanges of factors; before the first step that compresses, the gradients' one.
TEST(Collectives, OfFactorsAreThoseOfTheCpuBackend) {
  TinyJob job;
  v1::JobSpec spec = Spec(job, 0, 0, v1::OptimizerSpec::TYPE_ADAMW, v1::GRAD_REDUCE_FP32);
  const auto whole = CallsOnTheCpu(spec, 1);
  spec.mutable_train()->mutable_powersgd()->set_rank(4);
  CpuBackend backend(1);
  const plan::StepPlan plan = PlanOf(spec, backend);
  const auto calls = CollectivesOfStep(plan, 1);
  ASSERT_TRUE(calls.ok()) << calls.status();
  EXPECT_THAT(AsCalls(*calls), testing::ElementsAreArray(CallsOnTheCpu(spec, 1)));
  EXPECT_GT(calls->size(), whole.size());
  spec.mutable_train()->mutable_powersgd()->set_start_step(1);
  EXPECT_EQ(CallsOnTheCpu(spec, 1).size(), whole.size());
}

// No deadlock: the i-th call of every rank is of the same kind, size and type, and every rank that
// a rank calls is calling the same set.
TEST(Collectives, RanksAgree) {
  TinyJob job;
  for (int stage : {0, 1, 2, 3}) {
    for (int group : {0, 2}) {
      const v1::JobSpec spec =
          Spec(job, stage, group, v1::OptimizerSpec::TYPE_ADAMW, v1::GRAD_REDUCE_FP32);
      CpuBackend backend(1);
      const plan::StepPlan plan = PlanOf(spec, backend);
      std::vector<std::vector<Collective>> by_rank;
      for (int rank = 0; rank < 4; ++rank) by_rank.push_back(*CollectivesOfStep(plan, rank));
      for (int rank = 0; rank < 4; ++rank) {
        ASSERT_EQ(by_rank[rank].size(), by_rank[0].size());
        for (size_t i = 0; i < by_rank[rank].size(); ++i) {
          const Collective& mine = by_rank[rank][i];
          for (int peer = 0; peer < mine.among.count; ++peer) {
            const Collective& theirs = by_rank[mine.among.RankAt(peer)][i];
            EXPECT_EQ(theirs.kind, mine.kind);
            EXPECT_EQ(theirs.elements, mine.elements);
            EXPECT_EQ(theirs.dtype, mine.dtype);
            EXPECT_EQ(theirs.rounded, mine.rounded);
            EXPECT_EQ(theirs.among.first, mine.among.first);
            EXPECT_EQ(theirs.among.stride, mine.among.stride);
          }
        }
      }
    }
  }
}

// In each direction a stage receives what the one before it sends, in that order.
TEST(Collectives, StagesReceiveWhatOthersSend) {
  const TinyJob job;
  const v1::JobSpec spec = job.Spec(
      {.ranks = 12, .tensor = 2, .pipeline = 3, .stage = 2, .micro_batch = 1, .layers = 3});
  struct Handed {
    std::vector<int64_t> sent, received;
  };
  std::map<std::tuple<plan::Stream, int, int>, Handed> lanes;  // by direction, sender and receiver
  for (int rank = 0; rank < 12; ++rank) {
    plan::PlanOptions options = *plan::OptionsFromSpec(spec, 1);
    options.stage = options.StageOf(rank);
    const plan::StepPlan plan = *plan::PlanTraining(spec, options);
    for (const plan::PlannedOp& op : plan.train.ops) {
      const auto call = *CollectiveOf(plan, plan.train, op, rank);
      if (!call.has_value() || !call->IsTransfer()) continue;
      EXPECT_EQ(std::abs(call->peer - rank), 2);
      const bool sends = call->kind == Collective::Kind::kSend;
      Handed& handed = lanes[{op.stream, sends ? rank : call->peer, sends ? call->peer : rank}];
      (sends ? handed.sent : handed.received).push_back(call->bytes());
    }
  }
  EXPECT_EQ(lanes.size(), 2U * 2 * 4);  // between three stages of four ranks each
  for (const auto& [lane, handed] : lanes) {
    EXPECT_EQ(handed.sent, handed.received);
    EXPECT_GE(handed.sent.size(), 6U);  // micro-batches
    EXPECT_EQ(std::get<1>(lane) < std::get<2>(lane),
              std::get<0>(lane) == plan::Stream::kStageActivations);
  }
}

// Copies to and from the host, and what the host and its disk do, lie on streams of their own: they
// are no calls.
TEST(Collectives, WhatIsOffloadedMakesNone) {
  TinyJob job;
  for (const v1::OffloadTarget target : {v1::OFFLOAD_TARGET_HOST, v1::OFFLOAD_TARGET_NVME}) {
    v1::JobSpec spec = Spec(job, 3, 0, v1::OptimizerSpec::TYPE_ADAMW, v1::GRAD_REDUCE_FP32);
    plan::PlanOptions options = *plan::OptionsFromSpec(spec, 1);
    options.device = plan::DeviceKind::kCuda;
    const auto without = CollectivesOfStep(*plan::PlanTraining(spec, options), 1);
    ASSERT_TRUE(without.ok()) << without.status();
    options.offload_optimizer = options.offload_activations = true;
    options.offload_disk = target == v1::OFFLOAD_TARGET_NVME;
    const auto with = CollectivesOfStep(*plan::PlanTraining(spec, options), 1);
    ASSERT_TRUE(with.ok()) << with.status();
    EXPECT_EQ(with->size(), without->size());
  }
}

}  // namespace
}  // namespace milepost::runtime
