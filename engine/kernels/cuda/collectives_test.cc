#include "engine/kernels/cuda/collectives.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/comm/reduce.h"
#include "engine/kernels/cpu/testing.h"
#include "engine/kernels/cuda/collectives_kernels.h"
#include "engine/kernels/cuda/testing/run_kernel.h"

namespace milepost::kernels::cuda {
namespace {

TEST(Collectives, ZeroesRangesAndNothingElse) {
  const std::vector<FlatRange> ranges = {{0, 1}, {7, 9}, {33, 64}, {100, 100}, {1000, 6001}};
  HostArray<FlatChunk> chunks(MakeChunks(ranges));
  std::vector<float> want = RandomVector<float>(6003, 5);
  HostArray<float> flat(want);
  for (const FlatRange& range : ranges) {
    std::fill(want.begin() + range.begin, want.begin() + range.end, 0.0f);
  }
  RunKernel(ZeroRangesKernel{chunks.data(), chunks.size(), flat.data()});
  EXPECT_TRUE(SameBits(flat.values(), want));
}

// Pieces as they are received: `stride` apart, the own one elsewhere.
struct Received {
  Received(int ranks, int own, int64_t n, int64_t stride) : all(ranks * stride), mine(n) {
    for (int rank = 0; rank < ranks; ++rank) {
      sources.push_back(RandomVector<bf16>(n, 10 * n + rank));
      bf16* to = rank == own ? mine.data() : all.data() + rank * stride;
      std::copy(sources[rank].begin(), sources[rank].end(), to);
    }
    pieces = {all.data(), stride, mine.data(), own, ranks};
  }
  // By the communicators' own sum.
  std::vector<float> Sum() const {
    std::vector<const char*> data;
    for (const auto& source : sources) {
      data.push_back(reinterpret_cast<const char*>(source.data()));
    }
    std::vector<float> sum(sources[0].size());
    comm::SumBf16InOrder(data, sum.data(), sum.size());
    return sum;
  }

  HostArray<bf16> all;
  HostArray<bf16> mine;
  std::vector<std::vector<bf16>> sources;
  RoundedPieces pieces;
};

TEST(Collectives, SumsInRankOrderAsTheCommunicatorsDo) {
  for (const int ranks : {1, 2, 3, 8}) {
    for (const int64_t n : {1, 8, 131, 5000}) {
      const int own = ranks / 2;
      Received received(ranks, own, n, (n + 7) / 8 * 16);
      HostArray<float> sum(n);
      RunKernel(SumInRankOrderKernel<float>{received.pieces, n, sum.data()});
      EXPECT_TRUE(SameBits(sum.values(), received.Sum())) << ranks << " ranks, " << n;
    }
  }
}

TEST(Collectives, RoundsSumsInPlace) {
  Received received(3, 0, 500, 1008);
  std::vector<bf16> want;
  for (const float sum : received.Sum()) want.push_back(FromFloat<bf16>(sum));
  RunKernel(SumInRankOrderKernel<bf16>{received.pieces, 500, received.mine.data()});
  EXPECT_TRUE(SameBits(received.mine.values(), want));
}

// Order counts: (1e8 + 1) - 1e8 is not 1e8 - 1e8 + 1.
TEST(Collectives, TheOrderIsTheRanks) {
  HostArray<bf16> all(24), mine(1);
  const float values[3] = {1, 1e8f, -1e8f};
  all.data()[0] = FromFloat<bf16>(values[0]);
  all.data()[8] = FromFloat<bf16>(values[1]);
  mine.data()[0] = FromFloat<bf16>(values[2]);
  HostArray<float> sum(1);
  RunKernel(SumInRankOrderKernel<float>{{all.data(), 8, mine.data(), 2, 3}, 1, sum.data()});
  EXPECT_EQ(sum.values()[0], 0.0f);
}

}  // namespace
}  // namespace milepost::kernels::cuda
