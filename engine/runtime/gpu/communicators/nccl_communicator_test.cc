// The communicator over NCCL with a double of NCCL: ranks are threads, device memory is host
// memory, and kernels run on the host.
#include "engine/runtime/gpu/communicators/nccl_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/comm/in_process.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/gpu/communicators/testing/exchanges.h"
#include "engine/runtime/gpu/communicators/testing/fake_nccl.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = Collective::Kind;

// Ranks with what each needs.
struct Ranks {
  explicit Ranks(int world) : tcp(comm::MakeInProcessGroup(world)) {
    for (int rank = 0; rank < world; ++rank) {
      nccl.push_back(std::make_unique<FakeNccl>(cluster));
      options.emplace_back();
    }
  }

  using Body = std::function<void(int rank, absl::StatusOr<std::unique_ptr<NcclCommunicator>>)>;
  // On every rank, at once.
  void Run(const Body& body) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < nccl.size(); ++rank) {
      threads.emplace_back([&, rank] {
        body(static_cast<int>(rank),
             NcclCommunicator::Create(options[rank], *nccl[rank], *tcp[rank]));
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& one : nccl) EXPECT_THAT(one->misuse, IsEmpty());
  }

  FakeNcclCluster cluster;
  std::vector<std::unique_ptr<FakeNccl>> nccl;
  std::vector<NcclOptions> options;
  std::vector<std::unique_ptr<comm::Communicator>> tcp;
};

// Pairs of neighbours, and every other rank, of four.
std::vector<comm::RankSet> SetsOfFour(int rank) { return {{rank / 2 * 2, 2, 1}, {rank % 2, 2, 2}}; }

std::vector<Collective> NcclCallsOfFour(int rank) {
  std::vector<Collective> calls;
  for (const comm::RankSet& set :
       {comm::RankSet{0, 4, 1}, SetsOfFour(rank)[0], SetsOfFour(rank)[1]}) {
    for (const Kind kind : {Kind::kAllReduce, Kind::kReduceScatter, Kind::kAllGather}) {
      calls.push_back({.kind = kind, .offset = 64, .elements = 512, .among = set});
      if (kind == Kind::kAllGather) calls.back().dtype = DType::kBf16;
      if (kind == Kind::kAllGather) continue;
      calls.push_back(calls.back());
      calls.back().rounded = true;
    }
  }
  calls.push_back({.elements = 7, .dtype = DType::kF64, .among = {0, 4, 1}});
  calls.push_back(
      {.offset = 64, .elements = 1024, .dtype = DType::kBf16, .among = SetsOfFour(rank)[0]});
  return calls;
}

std::vector<float> NcclValues(int rank) {
  std::vector<float> values(1024);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(static_cast<float>(i) * 0.7F + static_cast<float>(rank)) * 3;
  }
  return values;
}

// What counts afterwards: of a rounded reduce-scatter only the own shard does.
std::string Outcome(const Collective& call, int rank, const std::vector<float>& values) {
  const char* data = reinterpret_cast<const char*>(values.data()) + call.offset;
  int64_t bytes = call.bytes();
  if (call.kind == Kind::kReduceScatter) {
    bytes /= call.among.count;
    data += bytes * call.among.IndexOf(rank);
  }
  return {data, static_cast<size_t>(bytes)};
}

TEST(NcclCommunicator, GivesWhatTheRanksCommunicatorGives) {
  for (const int lag : {0, 3}) {
    Ranks ranks(4);
    for (int rank = 0; rank < 4; ++rank) {
      ranks.nccl[rank]->lag = lag;
      ranks.options[rank].sets = SetsOfFour(rank);
    }
    ranks.Run([&](int rank, auto communicator) {
      ASSERT_TRUE(communicator.ok()) << communicator.status();
      for (const Collective& call : NcclCallsOfFour(rank)) {
        SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(call.kind) << " among "
                                        << call.among.count << ", rounded " << call.rounded);
        std::vector<float> found = NcclValues(rank);
        std::vector<float> wanted = NcclValues(rank);
        std::vector<char> scratch(CollectiveScratchBytes(call) + 16);
        ASSERT_EQ(
            (*communicator)
                ->Enqueue(call, reinterpret_cast<char*>(found.data()),
                          scratch.data() + (-reinterpret_cast<uintptr_t>(scratch.data())) % 16,
                          nullptr),
            absl::OkStatus());
        char* data = reinterpret_cast<char*>(wanted.data()) + call.offset;
        std::vector<float> sums(1024);
        ASSERT_EQ(CallOnHost(call, data, *ranks.tcp[rank], reinterpret_cast<char*>(sums.data())),
                  absl::OkStatus());
        EXPECT_TRUE(Outcome(call, rank, found) == Outcome(call, rank, wanted));
        // Nothing outside of the values.
        const std::vector<float> before = NcclValues(rank);
        EXPECT_EQ(found[15], before[15]);
        EXPECT_EQ(found[16 + 512], before[16 + 512]);
      }
      EXPECT_EQ((*communicator)->Health(), absl::OkStatus());
    });
    for (const auto& one : ranks.nccl) EXPECT_EQ(one->alive(), 0u);
  }
}

TEST(NcclCommunicator, ExchangesPiecesWhereverTheyLie) {
  Ranks ranks(4);
  for (int rank = 0; rank < 4; ++rank) ranks.options[rank].sets = SetsOfFour(rank);
  ranks.Run([&](int rank, auto communicator) {
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    for (const Collective& call : ExchangesOfFour(rank)) {
      std::vector<float> found = NcclValues(rank), wanted = NcclValues(rank);
      char* arena = reinterpret_cast<char*>(wanted.data());
      ASSERT_EQ(
          (*communicator)->Enqueue(call, reinterpret_cast<char*>(found.data()), nullptr, nullptr),
          absl::OkStatus());
      ASSERT_EQ(ExchangeOnHost(call, arena + call.sent.offset, arena + call.received.offset,
                               *ranks.tcp[rank]),
                absl::OkStatus());
      EXPECT_TRUE(found == wanted) << call.among.count << " by " << call.among.stride;
    }
  });
}

TEST(NcclCommunicator, ExchangesAsManyRowsAsThereAre) {
  Ranks ranks(4);
  for (int rank = 0; rank < 4; ++rank) ranks.options[rank].sets = SetsOfFour(rank);
  ranks.Run([&](int rank, auto communicator) {
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    std::vector<float> found = NcclValues(rank), wanted = NcclValues(rank);
    const auto here = RowExchangesOfFour(rank, reinterpret_cast<char*>(found.data()));
    const auto there = RowExchangesOfFour(rank, reinterpret_cast<char*>(wanted.data()));
    for (size_t i = 0; i < here.size(); ++i) {
      ASSERT_EQ((*communicator)->EnqueueRows(here[i], nullptr), absl::OkStatus());
      const RowTransfers::Copy& stays = there[i].stays;
      std::memcpy(stays.to, stays.from, static_cast<size_t>(stays.bytes));
      ASSERT_EQ(ranks.tcp[rank]->Exchange(there[i].transfers, there[i].among), absl::OkStatus());
      EXPECT_TRUE(found == wanted) << i;
    }
  });
}

// Those of a mesh: tensor ranks, data ranks with a tensor rank, and all.
TEST(NcclCommunicator, AMeshHasASetForEachOfItsAxes) {
  const TinyJob job;
  TinyOptions tiny{.ranks = 4, .tensor = 2, .stage = 3};
  const v1::JobSpec spec = job.Spec(tiny);
  const plan::StepPlan plan = *plan::PlanTraining(spec, *plan::OptionsFromSpec(spec, 1));
  for (int rank = 0; rank < 4; ++rank) {
    const std::vector<comm::RankSet> wanted = {{rank % 2, 2, 2}, {rank / 2 * 2, 2, 1}};
    EXPECT_EQ(*RankSetsOf(plan, rank), wanted) << rank;
  }
  tiny = {.ranks = 8, .tensor = 2, .context = 2, .stage = 0, .global_batch = 8};
  const v1::JobSpec divided = job.Spec(tiny);
  const plan::StepPlan of_context =
      *plan::PlanTraining(divided, *plan::OptionsFromSpec(divided, 1));
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_THAT(*RankSetsOf(of_context, rank),
                Contains(comm::RankSet{rank / 4 * 4 + rank % 2, 2, 2}))
        << rank;
  }
}

std::vector<Collective> CallsOf(const plan::StepPlan& plan, int rank) {
  absl::StatusOr<std::vector<Collective>> calls = CollectivesOfStep(plan, rank);
  EXPECT_TRUE(calls.ok()) << calls.status();
  for (const plan::PlannedOp& op : plan.outer.ops) {
    const auto call = CollectiveOf(plan, plan.outer, op, rank);
    EXPECT_TRUE(call.ok()) << call.status();
    if (call->has_value()) calls->push_back(**call);
  }
  return *std::move(calls);
}

// Stages call different sets, and every rank splits off as many, in one order.
void ExpectTheSetsOfAllCalls(const v1::JobSpec& spec) {
  const int ranks = spec.resources().ranks();
  std::vector<std::vector<comm::RankSet>> sets;
  for (int rank = 0; rank < ranks; ++rank) {
    plan::PlanOptions of_stage = *plan::OptionsFromSpec(spec, 1);
    of_stage.stage = of_stage.StageOf(rank);
    const plan::StepPlan plan = *plan::PlanTraining(spec, of_stage);
    sets.push_back(*RankSetsOf(plan, rank));
    EXPECT_TRUE(RankSetsOf(plan, rank, plan::Stream::kStageGradients)->empty());
    const std::vector<comm::RankSet>& own = sets.back();
    for (const Collective& call : CallsOf(plan, rank)) {
      EXPECT_TRUE(call.among.count == ranks ||
                  std::find(own.begin(), own.end(), call.among) != own.end())
          << call.among.count << " ranks from " << call.among.first << " by " << call.among.stride;
    }
  }
  for (const std::vector<comm::RankSet>& own : sets) {
    ASSERT_EQ(own.size(), sets[0].size());
    for (size_t i = 0; i < own.size(); ++i) {
      for (int peer = 0; peer < own[i].count; ++peer) {
        EXPECT_EQ(sets[own[i].RankAt(peer)][i], own[i]);
      }
    }
  }
}

TEST(NcclCommunicator, StagesAndIslandsHaveTheSetsOfAllTheirCalls) {
  const TinyJob job;
  for (const TinyOptions& tiny :
       {TinyOptions{.ranks = 4, .tensor = 2, .pipeline = 2}, TinyOptions{.ranks = 3, .pipeline = 3},
        TinyOptions{.ranks = 6, .pipeline = 3, .stage = 0},
        TinyOptions{.ranks = 24, .tensor = 2, .pipeline = 3, .stage = 3, .group = 2},
        TinyOptions{.ranks = 6, .pipeline = 3, .context = 2, .stage = 1},
        TinyOptions{.ranks = 12, .pipeline = 3, .context = 2, .stage = 3, .group = 2},
        TinyOptions{.ranks = 24, .tensor = 2, .pipeline = 3, .context = 2, .stage = 0},
        TinyOptions{.ranks = 24, .tensor = 4, .pipeline = 3, .llama = true, .kv_heads = 2}}) {
    for (const int islands : {1, 3}) {
      TinyOptions options = tiny;
      options.ranks *= islands;
      options.layers = 3;
      options.micro_batch = 1;
      v1::JobSpec spec = job.Spec(options);
      if (islands > 1) {
        spec.mutable_train()->mutable_sync()->set_every(5);
        spec.mutable_train()->mutable_sync()->set_islands(islands);
        NormalizeJobSpec(&spec);
        ASSERT_EQ(ValidateJobSpec(spec), absl::OkStatus());
      }
      SCOPED_TRACE(testing::Message() << islands << " islands of " << tiny.ranks << " ranks");
      ExpectTheSetsOfAllCalls(spec);
    }
  }
}

TEST(NcclCommunicator, SplitsOffWhatThePlanNeedsInOneOrder) {
  TinyJob job;
  TinyOptions tiny{.ranks = 4, .stage = 3, .group = 2};
  tiny.micro_batch = 1;
  tiny.global_batch = 8;
  const v1::JobSpec spec = job.Spec(tiny);
  const plan::StepPlan plan = *plan::PlanTraining(spec, *plan::OptionsFromSpec(spec, 1));
  Ranks ranks(4);
  for (int rank = 0; rank < 4; ++rank) {
    ranks.options[rank].sets = *RankSetsOf(plan, rank);
    ASSERT_EQ(ranks.options[rank].sets.size(), 2u);
  }
  ranks.Run([&](int rank, auto communicator) {
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    std::vector<char> arena(plan.arena_bytes);
    EXPECT_EQ((*communicator)->capturable(), true);
    const auto calls = CollectivesOfStep(plan, rank);
    for (const Collective& call : *calls) {
      ASSERT_EQ((*communicator)->Enqueue(call, arena.data(), nullptr, nullptr), absl::OkStatus());
    }
  });
  EXPECT_THAT(ranks.nccl[0]->splits, ElementsAre("color 0, key 0", "color 0, key 0"));
  EXPECT_THAT(ranks.nccl[1]->splits, ElementsAre("color 0, key 1", "color 1, key 0"));
  EXPECT_THAT(ranks.nccl[2]->splits, ElementsAre("color 2, key 0", "color 0, key 1"));
  EXPECT_THAT(ranks.nccl[3]->splits, ElementsAre("color 2, key 1", "color 1, key 1"));
  for (int rank = 1; rank < 4; ++rank)
    EXPECT_EQ(ranks.nccl[rank]->calls.size(), ranks.nccl[1]->calls.size());
}

TEST(NcclCommunicator, VersionsAreCompared) {
  Ranks ranks(3);
  ranks.nccl[1]->version = 22703;
  ranks.Run([&](int, auto communicator) {
    EXPECT_EQ(communicator.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(communicator.status().message(),
                AllOf(HasSubstr("2.27.3 on rank 1"), HasSubstr("2.28.9 on ranks 0, 2")));
  });
}

TEST(NcclCommunicator, EveryoneHearsThatThereIsNoId) {
  Ranks ranks(2);
  ranks.nccl[0]->results["unique id"] = NcclResult::kSystemError;
  ranks.Run([&](int, auto communicator) {
    EXPECT_EQ(communicator.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(communicator.status().message(), HasSubstr("no unique id on rank 0"));
  });
}

TEST(NcclCommunicator, ARankThatNeverComesIsADeadline) {
  Ranks ranks(2);
  ranks.options[0].init_timeout = absl::Milliseconds(50);
  ranks.nccl[1]->results["init"] = NcclResult::kSystemError;
  ranks.Run([&](int rank, auto communicator) {
    if (rank == 1) {
      EXPECT_EQ(communicator.status().code(), absl::StatusCode::kInternal);
      return;
    }
    EXPECT_EQ(communicator.status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(communicator.status().message(), HasSubstr("connecting the ranks"));
  });
  EXPECT_THAT(ranks.nccl[0]->calls, ElementsAre("unique id", "init", "abort"));
}

TEST(NcclCommunicator, WaitingForOthersCanBeCancelled) {
  Ranks ranks(2);
  std::atomic<int> asked{0};
  ranks.options[0].cancelled = [&] { return ++asked > 3; };
  ranks.nccl[1]->results["init"] = NcclResult::kInvalidUsage;
  ranks.Run([&](int rank, auto communicator) {
    EXPECT_EQ(communicator.status().code(),
              rank == 0 ? absl::StatusCode::kAborted : absl::StatusCode::kFailedPrecondition);
  });
}

TEST(NcclCommunicator, AnErrorOfACallStaysAndEndsEverything) {
  Ranks ranks(2);
  for (int rank = 0; rank < 2; ++rank) ranks.options[rank].sets = {{rank, 1, 1}};
  ranks.Run([&](int rank, auto communicator) {
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    ranks.nccl[rank]->results["all-reduce"] = NcclResult::kUnhandledCudaError;
    ranks.nccl[rank]->calls.clear();
    std::vector<float> values(8);
    const Collective call = {.elements = 8, .among = {0, 2, 1}};
    char* data = reinterpret_cast<char*>(values.data());
    const absl::Status first = (*communicator)->Enqueue(call, data, nullptr, nullptr);
    EXPECT_EQ(first.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(first.message(), AllOf(HasSubstr("all-reduce"), HasSubstr("the last error")));
    EXPECT_EQ((*communicator)->Enqueue(call, data, nullptr, nullptr), first);
    (*communicator)->Abort("later");
    EXPECT_EQ((*communicator)->Health(), first);
    // The set before the world; nothing afterwards.
    EXPECT_THAT(ranks.nccl[rank]->calls, ElementsAre("all-reduce", "abort", "abort"));
  });
}

TEST(NcclCommunicator, HealthTellsOfAPeerThatIsGone) {
  Ranks ranks(2);
  ranks.Run([&](int rank, auto communicator) {
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    EXPECT_EQ((*communicator)->Health(), absl::OkStatus());
    ranks.nccl[rank]->state = NcclResult::kRemoteError;
    EXPECT_EQ((*communicator)->Health().code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(comm::IsPeerLost((*communicator)->Health()));
    EXPECT_EQ(ranks.nccl[rank]->alive(), 0u);
  });
}

TEST(NcclCommunicator, AGroupIsEndedWhateverHappensInIt) {
  Ranks ranks(2);
  ranks.Run([&](int rank, auto communicator) {
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    ranks.nccl[rank]->results["receive"] = NcclResult::kSystemError;
    ranks.nccl[rank]->calls.clear();
    alignas(16) float values[32] = {};
    alignas(16) char scratch[256];
    const Collective call = {.elements = 32, .rounded = true, .among = {0, 2, 1}};
    EXPECT_EQ(
        (*communicator)->Enqueue(call, reinterpret_cast<char*>(values), scratch, nullptr).code(),
        absl::StatusCode::kInternal);
    EXPECT_THAT(ranks.nccl[rank]->calls,
                ElementsAre("group start", "send", "receive", "group end", "abort"));
  });
}

// A call that never gets onto its stream ends when another thread aborts.
TEST(NcclCommunicator, AbortIsPromptAndOnce) {
  Ranks ranks(1);
  ranks.Run([&](int, auto communicator) {
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    FakeNccl& nccl = *ranks.nccl[0];
    nccl.stuck = true;
    std::thread other([&] {
      (*communicator)->Abort("a new generation");
      (*communicator)->Abort("again");
    });
    float value = 1;
    const Collective call = {.elements = 1, .among = {0, 1, 1}};
    const absl::Status status =
        (*communicator)->Enqueue(call, reinterpret_cast<char*>(&value), nullptr, nullptr);
    other.join();
    EXPECT_EQ(status, absl::AbortedError("a new generation"));
    EXPECT_EQ(std::count(nccl.calls.begin(), nccl.calls.end(), "abort"), 1);
  });
}

TEST(NcclCommunicator, ACallThatNeverGetsOntoItsStreamIsADeadline) {
  Ranks ranks(1);
  ranks.options[0].enqueue_timeout = absl::Milliseconds(20);
  ranks.Run([&](int, auto communicator) {
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    ranks.nccl[0]->stuck = true;
    float value = 1;
    const Collective call = {.elements = 1, .among = {0, 1, 1}};
    EXPECT_EQ(
        (*communicator)->Enqueue(call, reinterpret_cast<char*>(&value), nullptr, nullptr).code(),
        absl::StatusCode::kDeadlineExceeded);
  });
}

TEST(NcclCommunicator, ClosesInOrderOrByForce) {
  for (const bool stuck : {false, true}) {
    Ranks ranks(2);
    for (int rank = 0; rank < 2; ++rank) {
      ranks.options[rank].sets = {{rank, 1, 1}};
      ranks.options[rank].close_timeout = stuck ? absl::Milliseconds(20) : absl::InfiniteDuration();
    }
    ranks.Run([&](int rank, auto communicator) {
      ASSERT_TRUE(communicator.ok()) << communicator.status();
      FakeNccl& nccl = *ranks.nccl[rank];
      EXPECT_EQ((*communicator)->Register(reinterpret_cast<char*>(&nccl), 8), "");
      nccl.calls.clear();
      nccl.lag = 2;
      nccl.stuck = stuck;
      communicator->reset();
      if (stuck) {
        EXPECT_THAT(nccl.calls, ElementsAre("deregister", "finalize", "abort", "abort"));
      } else {
        EXPECT_THAT(nccl.calls, ElementsAre("deregister", "finalize", "destroy", "deregister",
                                            "finalize", "destroy"));
      }
      EXPECT_EQ(nccl.alive(), 0u);
    });
  }
}

TEST(NcclCommunicator, WorksWithoutRegisteredMemory) {
  Ranks ranks(2);
  ranks.Run([&](int rank, auto communicator) {
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    ranks.nccl[rank]->results["register"] = NcclResult::kInvalidArgument;
    float values[2] = {1, 2};
    EXPECT_THAT((*communicator)->Register(reinterpret_cast<char*>(values), sizeof(values)),
                HasSubstr("cannot register 8 bytes"));
    const Collective call = {.elements = 2, .among = {0, 2, 1}};
    EXPECT_EQ((*communicator)->Enqueue(call, reinterpret_cast<char*>(values), nullptr, nullptr),
              absl::OkStatus());
    EXPECT_THAT(values, ElementsAre(2, 4));
    EXPECT_THAT(ranks.nccl[rank]->calls, testing::Not(Contains("deregister")));
  });
}

TEST(NcclCommunicator, RefusesRanksThatItHasNoCommunicatorFor) {
  Ranks ranks(2);
  ranks.Run([&](int rank, auto communicator) {
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    float value = 0;
    const Collective call = {.elements = 1, .among = {rank, 1, 1}};
    EXPECT_THAT(
        (*communicator)->Enqueue(call, reinterpret_cast<char*>(&value), nullptr, nullptr).message(),
        HasSubstr("no communicator for 1 ranks"));
  });
}

}  // namespace
}  // namespace milepost::runtime
