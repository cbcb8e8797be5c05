// The same tests for every kind of communicator.
#include "engine/comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <future>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "engine/comm/in_process.h"
#include "engine/comm/tcp.h"

namespace milepost::comm {
namespace {

using ::testing::HasSubstr;

using Ranks = std::vector<std::unique_ptr<Communicator>>;

enum class Kind { kInProcess, kTcp };

std::string NameOf(Kind kind) { return kind == Kind::kInProcess ? "InProcess" : "Tcp"; }

void OnThreads(int world, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

Ranks MakeRanks(Kind kind, int world, absl::Duration timeout = absl::Seconds(30)) {
  if (kind == Kind::kInProcess) return MakeInProcessGroup(world, {timeout});
  InMemoryKeyValueStore store;
  Ranks ranks(world);
  OnThreads(world, [&](int rank) {
    auto made = ConnectTcp(rank, world, &store, {.communicator = {timeout}});
    ASSERT_TRUE(made.ok()) << made.status();
    ranks[rank] = *std::move(made);
  });
  return ranks;
}

// Runs `body` on every rank and expects OK everywhere.
void ExpectOk(const Ranks& ranks, const std::function<absl::Status(Communicator&)>& body) {
  OnThreads(ranks.size(), [&](int rank) {
    const absl::Status status = body(*ranks[rank]);
    EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status;
  });
}

std::vector<float> RandomFloats(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> value(-1, 1);
  std::vector<float> values(n);
  for (float& v : values) v = value(random);
  return values;
}

// Added in rank order: what every implementation promises, bit by bit.
std::vector<float> SumInOrder(const std::vector<std::vector<float>>& inputs) {
  std::vector<float> sum = inputs[0];
  for (size_t r = 1; r < inputs.size(); ++r) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += inputs[r][i];
  }
  return sum;
}

class CommunicatorTest : public testing::TestWithParam<std::tuple<Kind, int>> {
 protected:
  int world() const { return std::get<1>(GetParam()); }
  Ranks Make() { return MakeRanks(std::get<0>(GetParam()), world()); }
  std::vector<std::vector<float>> Inputs(size_t n) {
    std::vector<std::vector<float>> inputs;
    for (int r = 0; r < world(); ++r) inputs.push_back(RandomFloats(n, 100 * n + r));
    return inputs;
  }
};

// A rank that waits for one that is busy for long, before steps begin.
TEST_P(CommunicatorTest, TheTimeoutIsThatOfTheCallsFromThenOn) {
  if (world() == 1) GTEST_SKIP() << "waits for nobody";
  const Ranks ranks = MakeRanks(std::get<0>(GetParam()), world(), absl::Milliseconds(1));
  std::atomic<int> waiting = 0;
  ExpectOk(ranks, [&](Communicator& c) {
    c.SetTimeout(absl::Minutes(5));
    // Many times the first time-out after all others have begun to wait.
    if (c.rank() == 0) {
      while (waiting.load() < world() - 1) std::this_thread::yield();
      absl::SleepFor(absl::Milliseconds(20));
    } else {
      ++waiting;
    }
    return c.Barrier();
  });
  const absl::Status late = ranks[1]->Check();
  EXPECT_EQ(late, absl::OkStatus());
  ranks[1]->SetTimeout(absl::Milliseconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(ranks[1]->Barrier()));
}

TEST_P(CommunicatorTest, AllReduceAddsInRankOrder) {
  const Ranks ranks = Make();
  for (size_t n : {0, 1, 2, 5, 1000, 4099, 300007}) {
    const auto inputs = Inputs(n);
    const std::vector<float> expected = SumInOrder(inputs);
    ExpectOk(ranks, [&](Communicator& c) -> absl::Status {
      std::vector<float> values = inputs[c.rank()];
      MP_RETURN_IF_ERROR(c.AllReduce(absl::MakeSpan(values)));
      EXPECT_EQ(values, expected) << n << " elements";
      return absl::OkStatus();
    });
  }
}

// Halves and pairs across them, as hybrid sharding has them, in turns; an odd world is one set.
TEST_P(CommunicatorTest, SetsOfRanksWorkAmongThemselves) {
  const int half = world() % 2 == 0 ? world() / 2 : world();
  const Ranks ranks = Make();
  for (size_t shard : {1, 100, 70001}) {
    const size_t n = shard * half;
    const auto inputs = Inputs(n);
    const auto sum_of = [&](const RankSet& set) {
      std::vector<std::vector<float>> members;
      for (int i = 0; i < set.count; ++i) members.push_back(inputs[set.RankAt(i)]);
      return SumInOrder(members);
    };
    ExpectOk(ranks, [&](Communicator& c) -> absl::Status {
      const RankSet mine = {c.rank() / half * half, half, 1};
      const RankSet across = {c.rank() % half, world() / half, half};
      const size_t begin = shard * (c.rank() % half);
      std::vector<float> values = inputs[c.rank()];
      MP_RETURN_IF_ERROR(c.ReduceScatter(absl::MakeSpan(values), mine));
      const std::vector<float> scattered = sum_of(mine);
      EXPECT_EQ(std::vector<float>(&values[begin], &values[begin] + shard),
                std::vector<float>(&scattered[begin], &scattered[begin] + shard));
      values = inputs[c.rank()];
      MP_RETURN_IF_ERROR(c.AllReduce(absl::MakeSpan(values), ReduceOp::kSum, across));
      EXPECT_EQ(values, sum_of(across));
      std::vector<float> gathered(n, -1);
      std::copy(&scattered[begin], &scattered[begin] + shard, &gathered[begin]);
      MP_RETURN_IF_ERROR(c.AllGather(gathered.data(), n * sizeof(float), mine));
      EXPECT_EQ(gathered, scattered);
      return absl::OkStatus();
    });
  }
}

TEST_P(CommunicatorTest, AllReduceOfScalars) {
  const Ranks ranks = Make();
  ExpectOk(ranks, [&](Communicator& c) -> absl::Status {
    const int n = c.world();
    std::vector<double> sum = {1e-9 * c.rank(), 1.0};
    MP_RETURN_IF_ERROR(c.AllReduce(absl::MakeSpan(sum)));
    EXPECT_DOUBLE_EQ(sum[0], 1e-9 * n * (n - 1) / 2);
    EXPECT_EQ(sum[1], n);
    std::vector<int64_t> big = {int64_t{1} << 60, -c.rank()};
    MP_RETURN_IF_ERROR(c.AllReduce(absl::MakeSpan(big), ReduceOp::kMax));
    EXPECT_EQ(big, (std::vector<int64_t>{int64_t{1} << 60, 0}));
    std::vector<int64_t> count = {(int64_t{1} << 55) + c.rank()};
    MP_RETURN_IF_ERROR(c.AllReduce(absl::MakeSpan(count)));
    EXPECT_EQ(count[0], (int64_t{1} << 55) * n + n * (n - 1) / 2);
    std::vector<float> max = {-1.0f - c.rank(), c.rank() == n - 1 ? NAN : 1.0f,
                              std::numeric_limits<float>::infinity()};
    MP_RETURN_IF_ERROR(c.AllReduce(absl::MakeSpan(max), ReduceOp::kMax));
    EXPECT_EQ(max[0], -1.0f);
    EXPECT_TRUE(std::isnan(max[1])) << "a NaN must win on every rank";
    EXPECT_EQ(max[2], std::numeric_limits<float>::infinity());
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorTest, ReduceScatterFillsOwnShardOnly) {
  const Ranks ranks = Make();
  for (size_t shard : {0, 1, 3, 1000, 150001}) {
    const size_t n = shard * world();
    const auto inputs = Inputs(n);
    const std::vector<float> sum = SumInOrder(inputs);
    ExpectOk(ranks, [&](Communicator& c) -> absl::Status {
      std::vector<float> values = inputs[c.rank()];
      std::vector<float> expected = values;
      std::copy_n(sum.begin() + c.rank() * shard, shard, expected.begin() + c.rank() * shard);
      MP_RETURN_IF_ERROR(c.ReduceScatter(absl::MakeSpan(values)));
      EXPECT_EQ(values, expected) << shard << " elements per shard";
      return absl::OkStatus();
    });
  }
}

// Written out again: to nearest, ties to even.
float Bf16(float value) {
  int exponent = 0;
  const float mantissa = std::frexp(value, &exponent);  // 8 bits of it are kept
  return std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8);
}

float Widened(uint16_t element) {
  const uint32_t bits = uint32_t{element} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Half the bytes on the wire; the sums are fp32's of the rounded values, bit by bit.
TEST_P(CommunicatorTest, Bf16ReductionsSumRoundedValuesInFp32) {
  const Ranks ranks = Make();
  for (size_t shard : {2, 64, 1000, 150002}) {
    const size_t n = shard * world();
    auto inputs = Inputs(n);
    inputs.back()[1] = 0;
    std::vector<std::vector<float>> rounded = inputs;
    if (world() > 1) {
      for (auto& values : rounded) {
        for (float& value : values) value = Bf16(value);
      }
    }
    const std::vector<float> sum = SumInOrder(rounded);
    std::vector<float> sum_rounded = sum;
    if (world() > 1) {
      for (float& value : sum_rounded) value = Bf16(value);
    }
    ExpectOk(ranks, [&](Communicator& c) -> absl::Status {
      std::vector<float> values = inputs[c.rank()];
      const int64_t before = c.stats().bytes_sent;
      MP_RETURN_IF_ERROR(c.ReduceScatterBf16(absl::MakeSpan(values)));
      EXPECT_EQ(c.stats().bytes_sent - before, static_cast<int64_t>(2 * shard * (world() - 1)));
      const size_t begin = shard * c.rank();
      EXPECT_EQ(std::vector<float>(&values[begin], &values[begin] + shard),
                std::vector<float>(&sum[begin], &sum[begin] + shard));
      values = inputs[c.rank()];
      MP_RETURN_IF_ERROR(c.AllReduceBf16(absl::MakeSpan(values)));
      EXPECT_EQ(values, sum_rounded) << shard << " elements per shard";
      EXPECT_EQ(c.stats().bytes_sent - before, static_cast<int64_t>(6 * shard * (world() - 1)));
      return absl::OkStatus();
    });
  }
}

// Of elements that are bf16 already: no rounding before the sum, one behind it.
TEST_P(CommunicatorTest, ElementsOfBf16AreSummedInFp32AndRoundedOnce) {
  const Ranks ranks = Make();
  for (const size_t shard : {1, 64, 1001}) {
    const size_t n = shard * world();
    auto inputs = Inputs(n);
    for (auto& values : inputs) {
      for (float& value : values) value = Bf16(value);
    }
    std::vector<float> sum = SumInOrder(inputs);
    for (float& value : sum) value = Bf16(value);
    ExpectOk(ranks, [&](Communicator& c) -> absl::Status {
      std::vector<uint16_t> elements(n);
      for (size_t i = 0; i < n; ++i) {
        uint32_t bits;
        std::memcpy(&bits, &inputs[c.rank()][i], sizeof bits);
        elements[i] = static_cast<uint16_t>(bits >> 16);
      }
      const std::vector<uint16_t> given = elements;
      std::vector<float> scratch(shard);
      const int64_t before = c.stats().bytes_sent;
      MP_RETURN_IF_ERROR(c.AllReduceElementsBf16(elements.data(), n, scratch.data()));
      EXPECT_EQ(c.stats().bytes_sent - before, static_cast<int64_t>(4 * shard * (world() - 1)));
      for (size_t i = 0; i < n; ++i) EXPECT_EQ(Widened(elements[i]), sum[i]) << i;
      // The own share of it alone, for half the bytes.
      std::vector<uint16_t> share = given;
      MP_RETURN_IF_ERROR(c.ReduceScatterElementsBf16(share.data(), n, scratch.data()));
      EXPECT_EQ(c.stats().bytes_sent - before, static_cast<int64_t>(6 * shard * (world() - 1)));
      for (size_t i = shard * c.rank(); i < shard * (c.rank() + 1); ++i) {
        EXPECT_EQ(Widened(share[i]), sum[i]) << i;
      }
      return absl::OkStatus();
    });
  }
}

TEST_P(CommunicatorTest, Bf16ReductionsAmongSetsKeepWhatIsNotFinite) {
  const int half = world() % 2 == 0 ? world() / 2 : world();
  const Ranks ranks = Make();
  ExpectOk(ranks, [&](Communicator& c) -> absl::Status {
    const RankSet mine = {c.rank() / half * half, half, 1};
    std::vector<float> values(6 * half, 1.0f);
    if (c.rank() % half == 0) {
      for (int i = 0; i < half; ++i) {
        values[6 * i] = std::numeric_limits<float>::quiet_NaN();
        values[6 * i + 1] = std::numeric_limits<float>::infinity();
        values[6 * i + 2] = -3e38f;
      }
    }
    std::vector<float> all = values;
    MP_RETURN_IF_ERROR(c.ReduceScatterBf16(absl::MakeSpan(values), mine));
    const size_t own = 6 * (c.rank() % half);
    EXPECT_TRUE(std::isnan(values[own]));
    EXPECT_TRUE(std::isinf(values[own + 1]));
    EXPECT_NEAR(values[own + 2], -3e38f, 2e36f);
    EXPECT_EQ(values[own + 3], half);
    MP_RETURN_IF_ERROR(c.AllReduceBf16(absl::MakeSpan(all), mine));
    for (int i = 0; i < half; ++i) {
      EXPECT_TRUE(std::isnan(all[6 * i]));
      EXPECT_TRUE(std::isinf(all[6 * i + 1]));
      EXPECT_EQ(all[6 * i + 5], half);
    }
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorTest, AllGatherBringsEveryShard) {
  const Ranks ranks = Make();
  for (size_t shard : {0, 1, 7, 4096, 700001}) {
    std::vector<char> expected(shard * world());
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<char>(i * 131 >> 3);
    ExpectOk(ranks, [&](Communicator& c) -> absl::Status {
      std::vector<char> bytes(expected.size(), 'x');
      std::copy_n(expected.begin() + c.rank() * shard, shard, bytes.begin() + c.rank() * shard);
      MP_RETURN_IF_ERROR(c.AllGather(bytes.data(), bytes.size()));
      EXPECT_TRUE(bytes == expected) << shard << " bytes per shard";
      return absl::OkStatus();
    });
  }
}

TEST_P(CommunicatorTest, BroadcastFromEveryRoot) {
  const Ranks ranks = Make();
  for (int root = 0; root < world(); ++root) {
    for (size_t n : {0, 1, 1000003}) {
      ExpectOk(ranks, [&](Communicator& c) -> absl::Status {
        std::vector<char> bytes(n, c.rank() == root ? static_cast<char>('a' + root) : '-');
        MP_RETURN_IF_ERROR(c.Broadcast(bytes.data(), n, root));
        EXPECT_TRUE(bytes == std::vector<char>(n, static_cast<char>('a' + root)));
        return absl::OkStatus();
      });
    }
  }
}

// From a to b go a + 2b pieces, so that some pairs move nothing, or one way only.
TEST_P(CommunicatorTest, ExchangeMovesWhatEveryPairAgreedOn) {
  const Ranks ranks = Make();
  constexpr size_t kPiece = 70'000;
  const auto bytes = [](int from, int to) { return ((from + 2 * to) % 4) * kPiece; };
  const auto value = [](int from, int to, size_t i) {
    return static_cast<char>(from * 31 + to * 7 + i);
  };
  ExpectOk(ranks, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    std::vector<std::vector<char>> out(world()), in(world());
    std::vector<Communicator::Transfer> transfers;
    for (int peer = 0; peer < world(); ++peer) {
      if (peer == rank) continue;
      for (size_t i = 0; i < bytes(rank, peer); ++i) out[peer].push_back(value(rank, peer, i));
      in[peer].resize(bytes(peer, rank));
      transfers.push_back(
          {peer, out[peer].data(), out[peer].size(), in[peer].data(), in[peer].size()});
    }
    MP_RETURN_IF_ERROR(communicator.Exchange(transfers));
    for (int peer = 0; peer < world(); ++peer) {
      for (size_t i = 0; i < in[peer].size(); ++i) {
        if (in[peer][i] != value(peer, rank, i)) {
          return absl::DataLossError(absl::StrCat("byte ", i, " from ", peer));
        }
      }
    }
    MP_RETURN_IF_ERROR(communicator.Exchange({}));
    return communicator.Barrier();
  });
}

// Each rank hands on to the next what it has from the one before. Sizes beyond what sockets hold.
TEST_P(CommunicatorTest, TransfersFromRankToRank) {
  const Ranks ranks = Make();
  const std::vector<float> values = RandomFloats(size_t{3} << 20, 7);
  ExpectOk(ranks, [&](Communicator& c) {
    for (const size_t count : {size_t{1}, values.size(), size_t{0}, size_t{1000}}) {
      std::vector<float> own(values.begin(), values.begin() + static_cast<ptrdiff_t>(count));
      const size_t bytes = count * sizeof(float);
      if (c.rank() > 0) {
        std::fill(own.begin(), own.end(), 0.0F);
        MP_RETURN_IF_ERROR(c.Receive(c.rank() - 1, own.data(), bytes));
        EXPECT_TRUE(std::equal(own.begin(), own.end(), values.begin()));
      }
      const int64_t before = c.stats().bytes_sent;
      if (c.rank() + 1 < world()) {
        MP_RETURN_IF_ERROR(c.Send(c.rank() + 1, own.data(), bytes));
        EXPECT_EQ(c.stats().bytes_sent - before, bytes);
      }
    }
    return c.Barrier();
  });
}

// What has been sent may be changed at once, and arrives as it was.
TEST_P(CommunicatorTest, TransfersArriveInOrder) {
  if (world() == 1) GTEST_SKIP() << "nobody to send to";
  const Ranks ranks = Make();
  ExpectOk(ranks, [&](Communicator& c) {
    for (int i = 0; i < 50; ++i) {
      int value = i;
      if (c.rank() == 0) {
        MP_RETURN_IF_ERROR(c.Send(1, &value, sizeof(value)));
        value = -1;
      } else if (c.rank() == 1) {
        MP_RETURN_IF_ERROR(c.Receive(0, &value, sizeof(value)));
        EXPECT_EQ(value, i);
      }
    }
    return absl::OkStatus();
  });
}

// Sets make as many calls as they like, and meet again.
TEST_P(CommunicatorTest, SetsNeedNotKeepStep) {
  const Ranks ranks = Make();
  if (world() % 2 == 1) GTEST_SKIP() << "no two halves";
  ExpectOk(ranks, [&](Communicator& c) {
    const int half = world() / 2;
    const RankSet own = {c.rank() / half * half, half, 1};
    for (int i = 0; i < (c.rank() < half ? 1 : 7); ++i) {
      std::vector<float> values(5, 1);
      MP_RETURN_IF_ERROR(c.AllReduce(absl::MakeSpan(values), ReduceOp::kSum, own));
      EXPECT_EQ(values[4], half);
    }
    std::vector<double> all = {1};
    MP_RETURN_IF_ERROR(c.AllReduce(absl::MakeSpan(all)));
    EXPECT_EQ(all[0], world());
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorTest, BarrierWaitsForEveryRank) {
  const Ranks ranks = Make();
  std::atomic<int> arrived = 0;
  ExpectOk(ranks, [&](Communicator& c) -> absl::Status {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      MP_RETURN_IF_ERROR(c.Barrier());
      EXPECT_GE(arrived, round * c.world());
    }
    return absl::OkStatus();
  });
}

// Ranks run ahead of one another: messages of later calls must not be taken for earlier ones.
TEST_P(CommunicatorTest, ManyCallsInARow) {
  const Ranks ranks = Make();
  ExpectOk(ranks, [&](Communicator& c) -> absl::Status {
    for (int i = 0; i < 100; ++i) {
      std::vector<float> values(37 * c.world(), static_cast<float>(i + c.rank()));
      MP_RETURN_IF_ERROR(c.ReduceScatter(absl::MakeSpan(values)));
      MP_RETURN_IF_ERROR(c.AllGather(values.data(), values.size() * sizeof(float)));
      const float expected = i * c.world() + c.world() * (c.world() - 1) / 2;
      EXPECT_EQ(values, std::vector<float>(values.size(), expected));
    }
    EXPECT_EQ(c.stats().calls, c.world() == 1 ? 0 : 200);
    EXPECT_EQ(c.stats().bytes_sent, 100 * 2 * 37 * 4 * (c.world() - 1));
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, CommunicatorTest,
                         testing::Combine(testing::Values(Kind::kInProcess, Kind::kTcp),
                                          testing::Values(1, 2, 3, 4, 5, 7)),
                         [](const auto& info) {
                           return absl::StrCat(NameOf(std::get<0>(info.param)),
                                               std::get<1>(info.param));
                         });

class FailureTest : public testing::TestWithParam<Kind> {};

TEST_P(FailureTest, AbortWakesEveryoneAndStays) {
  const Ranks ranks = MakeRanks(GetParam(), 3);
  std::promise<void> waiting;
  std::thread aborter([&] {
    waiting.get_future().wait();
    ranks[1]->Abort("told to stop");
    ranks[1]->Abort("a second time");
  });
  OnThreads(3, [&](int rank) {
    if (rank == 2) {
      waiting.set_value();
      return;  // never joins: the others can only be freed by the abort
    }
    const absl::Status status = ranks[rank]->Barrier();
    EXPECT_TRUE(IsPeerLost(status)) << status;
    EXPECT_EQ(absl::IsAborted(status), rank == 1) << status;
    EXPECT_EQ(ranks[rank]->Barrier(), status) << "the first error stays";
  });
  aborter.join();
  EXPECT_THAT(ranks[1]->Barrier().message(), HasSubstr("told to stop"));
  // The others' tokens for the first barrier may have been on their way before the abort.
  absl::Status status = ranks[2]->Barrier();
  if (status.ok()) status = ranks[2]->Barrier();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST_P(FailureTest, AbortDuringLargeTransfers) {
  for (int round = 0; round < 5; ++round) {
    const Ranks ranks = MakeRanks(GetParam(), 2);
    std::atomic<int> calls = 0;
    std::thread aborter([&] {
      while (calls < 4 + round) std::this_thread::yield();
      ranks[0]->Abort("enough");
    });
    OnThreads(2, [&](int rank) {
      absl::Status status;
      while (status.ok()) {
        std::vector<float> values(400000, 1.0f);  // freed as soon as the call has failed
        status = ranks[rank]->AllReduce(absl::MakeSpan(values));
        ++calls;
      }
      EXPECT_EQ(status.code(),
                rank == 0 ? absl::StatusCode::kAborted : absl::StatusCode::kUnavailable)
          << status;
    });
    aborter.join();
  }
}

TEST_P(FailureTest, DestroyedPeerIsUnavailableAtOnce) {
  Ranks ranks = MakeRanks(GetParam(), 3);
  const auto start = std::chrono::steady_clock::now();
  OnThreads(3, [&](int rank) {
    if (rank == 2) {
      ranks[2].reset();
      return;
    }
    std::vector<float> values(300000);
    const absl::Status status = ranks[rank]->ReduceScatter(absl::MakeSpan(values));
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    ranks[rank]->Abort("done");
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

// Also when the dead rank has no part in what is being waited for.
TEST_P(FailureTest, DeathOfABystanderIsNoticed) {
  const Ranks ranks = MakeRanks(GetParam(), 3);
  const auto start = std::chrono::steady_clock::now();
  ranks[1]->Abort("dead");
  std::vector<char> bytes(100);
  const absl::Status status = ranks[0]->Broadcast(bytes.data(), bytes.size(), /*root=*/2);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

// Many pieces, and ranks that begin at different times: what a fast rank sends must wait for its
// turn in the sum.
TEST_P(FailureTest, LateRanksDoNotSpoilTheSum) {
  const Ranks ranks = MakeRanks(GetParam(), 3);
  const size_t n = 3 * 700001;
  std::atomic<int> entered = 0;
  for (int late = 0; late < 3; ++late) {
    const int before = entered;
    OnThreads(3, [&](int rank) {
      std::vector<float> values(n);
      for (size_t i = 0; i < n; ++i) values[i] = (i * 7 + rank * 3) % 1000;
      while (rank == late && entered < before + 2) std::this_thread::yield();
      ++entered;
      ASSERT_TRUE(ranks[rank]->ReduceScatter(absl::MakeSpan(values)).ok());
      size_t wrong = 0;
      for (size_t i = n / 3 * rank; i < n / 3 * (rank + 1); ++i) {
        wrong += values[i] != i * 7 % 1000 + (i * 7 + 3) % 1000 + (i * 7 + 6) % 1000;
      }
      EXPECT_EQ(wrong, 0) << "rank " << rank << ", late " << late;
    });
  }
}

// A rank that is done and leaves must not fail the others' last collective.
TEST_P(FailureTest, LeavingAfterTheLastCallIsClean) {
  for (int round = 0; round < 20; ++round) {
    Ranks ranks = MakeRanks(GetParam(), 4);
    OnThreads(4, [&](int rank) {
      std::vector<float> values(4 * 20000);
      EXPECT_TRUE(ranks[rank]->ReduceScatter(absl::MakeSpan(values)).ok());
      const absl::Status last = ranks[rank]->AllGather(values.data(), values.size() * 4);
      EXPECT_TRUE(last.ok()) << last;
      ranks[rank].reset();
    });
  }
}

TEST_P(FailureTest, SilentPeerIsFoundByTheTimeout) {
  const Ranks ranks = MakeRanks(GetParam(), 2, absl::Milliseconds(100));
  std::vector<char> bytes(1 << 20);
  const absl::Status status = ranks[0]->AllGather(bytes.data(), bytes.size());
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::ContainsRegex("100ms|0\\.1 s"));
  EXPECT_FALSE(ranks[1]->Barrier().ok());
}

TEST_P(FailureTest, ASilentPeerEndsATransfer) {
  const Ranks ranks = MakeRanks(GetParam(), 2, absl::Milliseconds(50));
  int value = 0;
  const absl::Status late = ranks[0]->Receive(1, &value, sizeof(value));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(late.message(), HasSubstr("rank 1"));
  EXPECT_FALSE(ranks[1]->Receive(0, &value, sizeof(value)).ok());
}

TEST_P(FailureTest, TransfersOfOtherSizesAreAnError) {
  const Ranks ranks = MakeRanks(GetParam(), 2);
  OnThreads(2, [&](int rank) {
    int64_t value = 0;
    if (rank == 0) {
      ranks[0]->Send(1, &value, 8).IgnoreError();  // may be gone before the other one looks
      EXPECT_FALSE(ranks[0]->Receive(1, &value, 8).ok());
    } else {
      EXPECT_FALSE(ranks[1]->Receive(0, &value, 4).ok());
    }
  });
}

TEST_P(FailureTest, DifferentCallsAreAnErrorNotGarbage) {
  const Ranks ranks = MakeRanks(GetParam(), 2, absl::Milliseconds(200));
  OnThreads(2, [&](int rank) {
    std::vector<float> values(rank == 0 ? 1000 : 2000);
    EXPECT_FALSE(ranks[rank]->AllReduce(absl::MakeSpan(values)).ok());
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, FailureTest, testing::Values(Kind::kInProcess, Kind::kTcp),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace milepost::comm
