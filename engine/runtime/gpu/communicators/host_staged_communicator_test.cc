// The staged communicator with streams that are threads of this process.
#include "engine/runtime/gpu/communicators/host_staged_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/comm/in_process.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/gpu/communicators/testing/exchanges.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

using testing::HasSubstr;
using Kind = Collective::Kind;

// A stream: work in order, on a thread of its own. At most `room` pieces wait; more block the
// caller, as a device's queue does.
class HostStream : public StagingStream {
 public:
  explicit HostStream(size_t room = 1000) : room_(room), thread_([this] { Run(); }) {}
  ~HostStream() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  absl::Status failure_of_set;

  absl::Status Copy(void* to, const void* from, int64_t bytes, cudaStream_t) override {
    Add([=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
    return absl::OkStatus();
  }
  absl::Status Set(uint32_t* word, uint32_t value, cudaStream_t) override {
    if (!failure_of_set.ok()) return failure_of_set;
    Add([=] { std::atomic_ref(*word).store(value, std::memory_order_release); });
    return absl::OkStatus();
  }
  absl::Status Await(uint32_t* word, uint32_t value, cudaStream_t) override {
    Add([=] {
      while (static_cast<int32_t>(std::atomic_ref(*word).load(std::memory_order_acquire) - value) <
             0) {
        std::this_thread::yield();
      }
    });
    return absl::OkStatus();
  }
  // A kernel.
  void Add(std::function<void()> work) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return work_.size() < room_; });
    work_.push_back(std::move(work));
    changed_.notify_all();
  }
  // Until all of it is done.
  void Synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return work_.empty(); });
  }
  void Pause(bool paused) {
    const std::lock_guard lock(mutex_);
    paused_ = paused;
    changed_.notify_all();
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stop_ || (!work_.empty() && !paused_); });
      if (work_.empty()) return;
      const std::function<void()> work = work_.front();
      lock.unlock();
      work();
      lock.lock();
      work_.pop_front();
      changed_.notify_all();
    }
  }

  const size_t room_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool stop_ = false;
  bool paused_ = false;
  std::thread thread_;
};

// One rank's parts.
struct Rank {
  explicit Rank(comm::Communicator& ranks, size_t room = 1000) : stream(room), staging(1 << 14) {
    communicator = std::make_unique<HostStagedCommunicator>(
        stream, ranks,
        HostStagedCommunicator::Pinned{&words[0], &words[1], staging.data(),
                                       static_cast<int64_t>(staging.size())});
  }
  absl::Status Enqueue(const Collective& call, void* arena) {
    return communicator->Enqueue(call, static_cast<char*>(arena), nullptr, nullptr);
  }

  HostStream stream;
  uint32_t words[2] = {};
  std::vector<char> staging;
  std::unique_ptr<HostStagedCommunicator> communicator;
};

void OnRanks(int world, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

std::vector<float> Values(int rank) {
  std::vector<float> values(1024);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(static_cast<float>(i) * 0.7F + static_cast<float>(rank)) * 3;
  }
  return values;
}

std::vector<Collective> CallsOfFour(int rank) {
  std::vector<Collective> calls;
  for (const comm::RankSet& set :
       {comm::RankSet{0, 4, 1}, comm::RankSet{rank / 2 * 2, 2, 1}, comm::RankSet{rank % 2, 2, 2}}) {
    for (const Kind kind : {Kind::kAllReduce, Kind::kReduceScatter, Kind::kAllGather}) {
      calls.push_back({.kind = kind, .offset = 64, .elements = 512, .among = set});
      if (kind == Kind::kAllGather) calls.back().dtype = DType::kBf16;
      if (kind == Kind::kAllGather) continue;
      calls.push_back(calls.back());
      calls.back().rounded = true;
    }
  }
  calls.push_back({.elements = 7, .dtype = DType::kF64, .among = {0, 4, 1}});
  calls.push_back({.elements = 1024, .dtype = DType::kBf16, .among = {rank / 2 * 2, 2, 1}});
  return calls;
}

// For the call: as bf16 each is a value of the same size and a zero.
std::vector<float> ValuesFor(const Collective& call, int rank) {
  std::vector<float> values = Values(rank);
  if (call.dtype != DType::kBf16 || call.kind != Kind::kAllReduce) return values;
  for (float& value : values) {
    value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xffff0000U);
  }
  return values;
}

// All calls are enqueued before the first one is waited for; also where the stream holds two
// pieces.
TEST(HostStagedCommunicator, GivesWhatTheRanksCommunicatorGives) {
  for (const size_t room : {1000, 2}) {
    auto staged = comm::MakeInProcessGroup(4);
    auto direct = comm::MakeInProcessGroup(4);
    OnRanks(4, [&](int r) {
      Rank rank(*staged[r], room);
      const std::vector<Collective> calls = CallsOfFour(r);
      std::vector<std::vector<float>> found;
      for (const Collective& call : calls) found.push_back(ValuesFor(call, r));
      for (size_t i = 0; i < calls.size(); ++i) {
        ASSERT_EQ(rank.Enqueue(calls[i], found[i].data()), absl::OkStatus());
      }
      rank.stream.Synchronize();
      EXPECT_EQ(rank.communicator->Health(), absl::OkStatus());
      for (size_t i = 0; i < calls.size(); ++i) {
        const Collective& call = calls[i];
        std::vector<float> wanted = ValuesFor(call, r), sums(1024);
        const std::vector<float> before = ValuesFor(call, r);
        ASSERT_EQ(CallOnHost(call, reinterpret_cast<char*>(wanted.data()) + call.offset, *direct[r],
                             reinterpret_cast<char*>(sums.data())),
                  absl::OkStatus());
        // Of a reduce-scatter the own shard, and the others as they were.
        if (call.kind == Kind::kReduceScatter) {
          const int64_t own = call.among.IndexOf(r);
          for (int64_t k = 0; k < call.elements; ++k) {
            if (k / call.shard_elements() != own) wanted[16 + k] = before[16 + k];
          }
        }
        EXPECT_EQ(found[i], wanted) << i;
      }
    });
  }
}

TEST(HostStagedCommunicator, ExchangesPiecesWhereverTheyLie) {
  auto staged = comm::MakeInProcessGroup(4);
  auto direct = comm::MakeInProcessGroup(4);
  OnRanks(4, [&](int r) {
    Rank rank(*staged[r]);
    for (const Collective& call : ExchangesOfFour(r)) {
      std::vector<float> found = Values(r), wanted = Values(r);
      ASSERT_EQ(rank.Enqueue(call, found.data()), absl::OkStatus());
      rank.stream.Synchronize();
      char* arena = reinterpret_cast<char*>(wanted.data());
      ASSERT_EQ(
          ExchangeOnHost(call, arena + call.sent.offset, arena + call.received.offset, *direct[r]),
          absl::OkStatus());
      EXPECT_EQ(found, wanted) << call.among.count << " by " << call.among.stride;
    }
    EXPECT_EQ(rank.communicator->Health(), absl::OkStatus());
  });
}

TEST(HostStagedCommunicator, ExchangesAsManyRowsAsThereAre) {
  auto staged = comm::MakeInProcessGroup(4);
  auto direct = comm::MakeInProcessGroup(4);
  OnRanks(4, [&](int r) {
    Rank rank(*staged[r]);
    std::vector<float> found = Values(r), wanted = Values(r);
    const auto here = RowExchangesOfFour(r, reinterpret_cast<char*>(found.data()));
    const auto there = RowExchangesOfFour(r, reinterpret_cast<char*>(wanted.data()));
    for (size_t i = 0; i < here.size(); ++i) {
      ASSERT_EQ(rank.communicator->EnqueueRows(here[i], nullptr), absl::OkStatus());
      rank.stream.Synchronize();
      const RowTransfers::Copy& stays = there[i].stays;
      std::memcpy(stays.to, stays.from, static_cast<size_t>(stays.bytes));
      ASSERT_EQ(direct[r]->Exchange(there[i].transfers, there[i].among), absl::OkStatus());
      EXPECT_EQ(found, wanted) << i;
    }
    // What fails here ends the others' calls too.
    ASSERT_EQ(direct[r]->Barrier(), absl::OkStatus());
    RowTransfers large = here[0];
    large.transfers[0].send_bytes = rank.staging.size() + 1;
    EXPECT_THAT(rank.communicator->EnqueueRows(large, nullptr).message(),
                HasSubstr("with staging for"));
  });
}

// Values that kernels on the stream make between the calls; more calls than numbers until the wrap.
TEST(HostStagedCommunicator, IsPartOfTheStreamsWork) {
  constexpr int kCalls = 200;
  auto group = comm::MakeInProcessGroup(2);
  OnRanks(2, [&](int r) {
    Rank rank(*group[r]);
    double value = 1;
    double total = 0;
    const Collective call = {.elements = 1, .dtype = DType::kF64, .among = {0, 2, 1}};
    for (int i = 0; i < kCalls; ++i) {
      rank.stream.Add([&value, i, r] { value = i + 10.0 * r; });
      ASSERT_EQ(rank.Enqueue(call, &value), absl::OkStatus());
      rank.stream.Add([&value, &total] { total += value; });
    }
    rank.stream.Synchronize();
    EXPECT_EQ(total, kCalls * (kCalls - 1.0) + 10.0 * kCalls);
    EXPECT_EQ(rank.communicator->Health(), absl::OkStatus());
  });
}

// A chain of three: what is received is handed on, with a kernel between, and nothing else changes.
TEST(HostStagedCommunicator, HandsOnInOrder) {
  constexpr int kTransfers = 100;
  auto group = comm::MakeInProcessGroup(3);
  std::vector<int> arrived;
  OnRanks(3, [&](int r) {
    Rank rank(*group[r]);
    int values[3] = {-1, 0, -1};
    const auto call = [&](Kind kind, int peer) {
      return rank.Enqueue({.kind = kind,
                           .offset = 4,
                           .elements = 4,
                           .dtype = DType::kU8,
                           .among = {0, 3, 1},
                           .peer = peer},
                          values);
    };
    for (int i = 0; i < kTransfers; ++i) {
      if (r == 0) rank.stream.Add([&values, i] { values[1] = i; });
      if (r > 0) {
        ASSERT_EQ(call(Kind::kReceive, r - 1), absl::OkStatus());
      }
      if (r == 1) rank.stream.Add([&values] { values[1] *= 3; });
      if (r < 2) {
        ASSERT_EQ(call(Kind::kSend, r + 1), absl::OkStatus());
      }
      if (r == 2) rank.stream.Add([&] { arrived.push_back(values[1]); });
    }
    rank.stream.Synchronize();
    EXPECT_EQ(rank.communicator->Health(), absl::OkStatus());
    EXPECT_EQ(values[0], -1);
    EXPECT_EQ(values[2], -1);
  });
  ASSERT_EQ(arrived.size(), size_t{kTransfers});
  for (int i = 0; i < kTransfers; ++i) EXPECT_EQ(arrived[static_cast<size_t>(i)], 3 * i);
}

TEST(HostStagedCommunicator, CannotBeCaptured) {
  auto group = comm::MakeInProcessGroup(1);
  EXPECT_FALSE(Rank(*group[0]).communicator->capturable());
}

TEST(HostStagedCommunicator, AbortDrainsTheStream) {
  auto group = comm::MakeInProcessGroup(2);
  Rank rank(*group[0]);  // the other one never comes
  float value = 1;
  const Collective call = {.elements = 1, .among = {0, 2, 1}};
  for (int i = 0; i < 3; ++i) ASSERT_EQ(rank.Enqueue(call, &value), absl::OkStatus());
  EXPECT_EQ(rank.communicator->Health(), absl::OkStatus());
  std::thread other([&] { rank.communicator->Abort("a new generation"); });
  rank.stream.Synchronize();
  other.join();
  EXPECT_EQ(rank.communicator->Health(), absl::AbortedError("a new generation"));
  EXPECT_EQ(rank.Enqueue(call, &value), absl::AbortedError("a new generation"));
  rank.communicator->Abort("again");
  EXPECT_EQ(rank.communicator->Health(), absl::AbortedError("a new generation"));
}

// Also calls that the stream has not come to.
TEST(HostStagedCommunicator, AbortDrainsAStreamThatIsBehind) {
  auto group = comm::MakeInProcessGroup(2);
  Rank rank(*group[0]);
  rank.stream.Pause(true);
  float value = 1;
  const Collective call = {.elements = 1, .among = {0, 2, 1}};
  for (int i = 0; i < 3; ++i) ASSERT_EQ(rank.Enqueue(call, &value), absl::OkStatus());
  rank.communicator->Abort("a new generation");
  rank.stream.Pause(false);
  rank.stream.Synchronize();
}

TEST(HostStagedCommunicator, APeerThatIsGoneShowsInHealth) {
  auto group = comm::MakeInProcessGroup(2);
  Rank rank(*group[0]);
  float value = 1;
  const Collective call = {.elements = 1, .among = {0, 2, 1}};
  ASSERT_EQ(rank.Enqueue(call, &value), absl::OkStatus());
  group[1].reset();
  rank.stream.Synchronize();
  EXPECT_EQ(rank.communicator->Health().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(rank.Enqueue(call, &value).code(), absl::StatusCode::kUnavailable);
}

TEST(HostStagedCommunicator, APeerThatIsSilentIsADeadline) {
  auto group = comm::MakeInProcessGroup(2, {.timeout = absl::Milliseconds(20)});
  Rank rank(*group[0]);
  float value = 1;
  ASSERT_EQ(rank.Enqueue({.elements = 1, .among = {0, 2, 1}}, &value), absl::OkStatus());
  rank.stream.Synchronize();
  EXPECT_EQ(rank.communicator->Health().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(HostStagedCommunicator, AnErrorOfTheDeviceEndsIt) {
  auto group = comm::MakeInProcessGroup(2);
  Rank rank(*group[0]);
  rank.stream.failure_of_set = absl::InternalError("the device is lost");
  float value = 1;
  const Collective call = {.elements = 1, .among = {0, 2, 1}};
  EXPECT_EQ(rank.Enqueue(call, &value), absl::InternalError("the device is lost"));
  EXPECT_EQ(rank.communicator->Health(), absl::InternalError("the device is lost"));
  rank.stream.Synchronize();
  double other = 0;  // peers hear of it, at once
  EXPECT_EQ(group[1]->AllReduce(absl::MakeSpan(&other, 1)).code(), absl::StatusCode::kUnavailable);
}

TEST(HostStagedCommunicator, IsClosedWhileACallIsUnderWay) {
  auto group = comm::MakeInProcessGroup(2);
  Rank rank(*group[0]);
  float value = 1;
  ASSERT_EQ(rank.Enqueue({.elements = 1, .among = {0, 2, 1}}, &value), absl::OkStatus());
  rank.communicator.reset();
  rank.stream.Synchronize();
}

TEST(HostStagedCommunicator, RefusesWhatDoesNotFitItsStaging) {
  auto group = comm::MakeInProcessGroup(1);
  Rank rank(*group[0]);
  std::vector<float> values(1 << 13);
  EXPECT_THAT(rank.Enqueue({.elements = 1 << 13, .among = {0, 1, 1}}, values.data()).message(),
              HasSubstr("staging for 16384"));
}

TEST(StagingBytes, IsTheLargestCall) {
  TinyJob job;
  TinyOptions tiny{.ranks = 2, .stage = 1};
  const v1::JobSpec spec = job.Spec(tiny);
  const plan::StepPlan plan = *plan::PlanTraining(spec, *plan::OptionsFromSpec(spec, 1));
  int64_t most = 0;
  for (const plan::FlatGroup& group : plan.groups) most = std::max(most, group.padded_elements * 4);
  EXPECT_EQ(*StagingBytes(plan, 1), most);
}

}  // namespace
}  // namespace milepost::runtime
