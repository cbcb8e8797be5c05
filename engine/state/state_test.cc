#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "engine/state/flat_group.h"
#include "engine/state/layout.h"
#include "milepost/v1/checkpoint.pb.h"

namespace milepost::state {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

StateLayout MakeLayout(std::vector<TensorSpec> tensors) {
  auto layout = StateLayout::Create(std::move(tensors));
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *std::move(layout);
}

StateLayout SmallLayout() {
  return MakeLayout({{"wte.weight", "master", DType::kF32, {5, 4}},
                     {"ln.bias", "master", DType::kF32, {3}},
                     {"ln.bias", "m", DType::kBf16, {3}}});
}

TEST(StateLayoutTest, CountsElementsAndBytes) {
  const StateLayout layout = SmallLayout();
  EXPECT_EQ(layout.tensor(0).elements, 20);
  EXPECT_EQ(layout.bytes(), 20 * 4 + 3 * 4 + 3 * 2);
  EXPECT_EQ(layout.BytesOf({2, 1, 3}), 4);
  EXPECT_EQ(layout.Describe({0, 2, 7}), "wte.weight (master) [2, 7)");
  EXPECT_EQ(MakeLayout({{"scalar", "master", DType::kI64, {}}}).bytes(), 8);
  EXPECT_EQ(MakeLayout({{"none", "master", DType::kF64, {0, 7}}}).bytes(), 0);
}

TEST(StateLayoutTest, GoesThroughTheProto) {
  v1::CheckpointManifest manifest;
  const StateLayout small = SmallLayout();
  for (const TensorSpec& spec : small.tensors()) {
    *manifest.add_tensors() = TensorSpecToProto(spec);
  }
  EXPECT_EQ(manifest.tensors(2).dtype(), "BF16");
  const auto layout = StateLayout::FromProto(manifest.tensors());
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->bytes(), SmallLayout().bytes());
  EXPECT_EQ(layout->tensor(0).shape, (std::vector<int64_t>{5, 4}));
  manifest.mutable_tensors(1)->set_dtype("FLOAT");
  const absl::Status status = StateLayout::FromProto(manifest.tensors()).status();
  EXPECT_THAT(status.message(), HasSubstr("ln.bias: unknown dtype 'FLOAT'; known are F64, F32"));
}

TEST(StateLayoutTest, RefusesNonsense) {
  const std::vector<std::vector<TensorSpec>> cases = {
      {{"a", "m", DType::kF32, {-1}}},
      {{"a", "m", DType::kF32, {int64_t{1} << 40, int64_t{1} << 40}}},
      {{"a", "m", DType::kF32, {int64_t{1} << 55}}, {"b", "m", DType::kF64, {int64_t{1} << 58}}},
      {{"a", "m", DType::kF32, {1}}, {"a", "m", DType::kF32, {1}}},
      {{"", "m", DType::kF32, {1}}},
      {{"a", "", DType::kF32, {1}}},
  };
  for (const auto& tensors : cases) {
    EXPECT_TRUE(absl::IsInvalidArgument(StateLayout::Create(tensors).status())) << tensors[0].name;
  }
  for (const Interval& bad :
       std::vector<Interval>{{0, 0, 21}, {0, -1, 3}, {0, 4, 4}, {0, 5, 4}, {3, 0, 1}, {-1, 0, 1}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(SmallLayout().CheckInterval(bad)));
    EXPECT_TRUE(absl::IsInvalidArgument(CheckCoverage(SmallLayout(), {bad})));
  }
}

TEST(CoverageTest, EveryElementExactlyOnce) {
  const StateLayout layout = SmallLayout();
  const std::vector<Interval> good = {{2, 0, 3}, {0, 7, 20}, {1, 0, 1}, {0, 0, 7}, {1, 1, 3}};
  EXPECT_TRUE(CheckCoverage(layout, good).ok());
  struct Case {
    std::vector<Interval> intervals;
    const char* message;
  };
  const Case cases[] = {
      {{}, "wte.weight (master) [0, 20) is missing"},
      {{{0, 0, 7}, {0, 9, 20}, {1, 0, 3}, {2, 0, 3}}, "wte.weight (master) [7, 9) is missing"},
      {{{0, 0, 20}, {1, 0, 3}, {2, 0, 2}}, "ln.bias (m) [2, 3) is missing"},
      {{{0, 0, 20}, {2, 0, 3}}, "ln.bias (master) [0, 3) is missing"},
      {{{0, 0, 20}, {1, 1, 3}, {2, 0, 3}}, "ln.bias (master) [0, 1) is missing"},
      {{{0, 0, 12}, {0, 10, 20}, {1, 0, 3}, {2, 0, 3}},
       "wte.weight (master) [10, 12) is there more than once"},
      {{{0, 0, 20}, {0, 4, 5}, {1, 0, 3}, {2, 0, 3}},
       "wte.weight (master) [4, 5) is there more than once"},
      {{{0, 0, 20}, {1, 0, 3}, {1, 0, 3}, {2, 0, 3}},
       "ln.bias (master) [0, 3) is there more than once"},
  };
  for (const Case& c : cases) {
    const absl::Status status = CheckCoverage(layout, c.intervals);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_EQ(status.message(), c.message);
  }
  EXPECT_TRUE(CheckCoverage(MakeLayout({{"none", "m", DType::kF32, {0}}}), {}).ok());
}

TEST(CoverageTest, AgreesWithCountingOnRandomInput) {
  std::mt19937 random(3);
  const StateLayout layout = MakeLayout(
      {{"a", "m", DType::kF32, {3}}, {"b", "m", DType::kF32, {1}}, {"c", "m", DType::kF32, {2}}});
  int covered = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<Interval> intervals;
    std::vector<std::vector<int>> uses = {std::vector<int>(3), {0}, std::vector<int>(2)};
    for (int i = 2 + random() % 4; i > 0; --i) {
      const int32_t tensor = random() % 3;
      const int64_t n = uses[tensor].size();
      const int64_t begin = random() % n, end = begin + 1 + random() % (n - begin);
      intervals.push_back({tensor, begin, end});
      for (int64_t e = begin; e < end; ++e) ++uses[tensor][e];
    }
    bool exactly_once = true;
    for (const auto& tensor : uses) {
      for (const int count : tensor) exactly_once &= count == 1;
    }
    covered += exactly_once;
    ASSERT_EQ(CheckCoverage(layout, intervals).ok(), exactly_once);
  }
  EXPECT_GT(covered, 20) << "the random input never covers";
}

TEST(IntersectTest, FindsEveryCommonRange) {
  const std::vector<Interval> wanted = {{1, 0, 10}, {0, 5, 8}};
  const std::vector<Interval> held = {{1, 8, 20}, {0, 0, 6}, {1, 2, 4}, {0, 6, 7}};
  std::vector<std::tuple<Interval, int, int>> found;
  for (const Overlap& o : Intersect(wanted, held)) found.emplace_back(o.interval, o.wanted, o.held);
  EXPECT_THAT(
      found,
      ElementsAre(std::tuple(Interval{0, 5, 6}, 1, 1), std::tuple(Interval{0, 6, 7}, 1, 3),
                  std::tuple(Interval{1, 2, 4}, 0, 2), std::tuple(Interval{1, 8, 10}, 0, 0)));
  EXPECT_TRUE(Intersect({}, held).empty());
  EXPECT_TRUE(Intersect(wanted, {}).empty());
}

TEST(ChunkTest, CutsOnElementBoundaries) {
  const StateLayout layout = MakeLayout(
      {{"a", "m", DType::kF32, {25}}, {"b", "m", DType::kBf16, {9}}, {"c", "m", DType::kF64, {3}}});
  std::vector<char> bytes(400);
  const std::vector<TensorSlice> slices = {
      {{0, 3, 24}, &bytes[0]}, {{1, 0, 9}, &bytes[100]}, {{2, 1, 2}, &bytes[200]}};
  std::vector<std::pair<Interval, int64_t>> chunks;
  for (const TensorSlice& c : SplitIntoChunks(layout, slices, 39)) {
    chunks.emplace_back(c.interval, c.data - bytes.data());
    EXPECT_LE(layout.BytesOf(c.interval), 39);
  }
  EXPECT_THAT(chunks,
              ElementsAre(std::pair(Interval{0, 3, 12}, 0), std::pair(Interval{0, 12, 21}, 36),
                          std::pair(Interval{0, 21, 24}, 72), std::pair(Interval{1, 0, 9}, 100),
                          std::pair(Interval{2, 1, 2}, 200)));
}

TEST(ChunkTest, DefaultIsOneMebibyte) {
  const StateLayout layout = MakeLayout({{"a", "m", DType::kF32, {(1 << 18) + 1}}});
  char byte = 0;
  const auto chunks = SplitIntoChunks(layout, {{{0, 0, (1 << 18) + 1}, &byte}});
  ASSERT_EQ(chunks.size(), 2);
  EXPECT_EQ(layout.BytesOf(chunks[0].interval), kChunkBytes);
}

// The first is XXH3's published value for no input; the second keeps old checkpoints readable.
TEST(ChecksumTest, IsCanonicalXxh3) {
  EXPECT_EQ(Xxh3(""), 0x2d06800538d394c2u);
  EXPECT_EQ(Xxh3("milepost"), 0x2bf21d64ad1ee3e6u);
}

TEST(FlatGroupTest, PaddingNeverLeaves) {
  const FlatGroupMap map({{7, 10, 5}, {3, 0, 6}, {9, 15, 0}});
  std::vector<float> data(32);
  const auto slices = [&](int64_t begin, int64_t end) {
    std::vector<std::pair<Interval, int64_t>> found;
    for (const TensorSlice& s :
         map.Slices(begin, end, reinterpret_cast<char*>(data.data()), sizeof(float))) {
      found.emplace_back(s.interval, reinterpret_cast<float*>(s.data) - data.data());
    }
    return found;
  };
  EXPECT_THAT(slices(0, 32),
              ElementsAre(std::pair(Interval{3, 0, 6}, 0), std::pair(Interval{7, 0, 5}, 10)));
  EXPECT_THAT(slices(4, 12),
              ElementsAre(std::pair(Interval{3, 4, 6}, 0), std::pair(Interval{7, 0, 2}, 6)));
  EXPECT_THAT(slices(12, 14), ElementsAre(std::pair(Interval{7, 2, 4}, 0)));
  EXPECT_TRUE(slices(6, 10).empty());
  EXPECT_TRUE(slices(15, 32).empty());
  EXPECT_TRUE(slices(5, 5).empty());
}

// A model's flat groups, as N ranks shard them.
struct Sharded {
  struct Rank {
    std::vector<std::vector<float>> shards;  // per group
    std::vector<TensorSlice> slices;
  };
  std::vector<Rank> ranks;
};

Sharded Shard(const std::vector<std::vector<GroupMember>>& groups, int world, int64_t align) {
  Sharded sharded;
  sharded.ranks.resize(world);
  for (const auto& members : groups) {
    int64_t elements = 0;
    for (const GroupMember& m : members) elements = std::max(elements, m.begin + m.elements);
    const int64_t unit = world * align;
    const int64_t shard = (elements + unit - 1) / unit * align;
    const FlatGroupMap map(members);
    for (int r = 0; r < world; ++r) {
      std::vector<float>& data = sharded.ranks[r].shards.emplace_back(shard, -1.0f);
      for (const TensorSlice& s :
           map.Slices(r * shard, (r + 1) * shard, reinterpret_cast<char*>(data.data()), 4)) {
        sharded.ranks[r].slices.push_back(s);
      }
    }
  }
  return sharded;
}

// State saved by N ranks in chunks and loaded by M ranks is the same, to the byte.
TEST(ReshardTest, AnyWorldToAnyWorld) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    std::vector<TensorSpec> tensors;
    std::vector<std::vector<GroupMember>> groups(1 + random() % 3);
    for (auto& group : groups) {
      int64_t at = 0;
      for (int i = 1 + random() % 5; i > 0; --i) {
        const int64_t elements = 1 + random() % (random() % 4 == 0 ? 3000 : 50);
        group.push_back({static_cast<int32_t>(tensors.size()), at, elements});
        at += elements;
        tensors.push_back({absl::StrCat("t", tensors.size()), "m", DType::kF32, {elements}});
      }
    }
    const StateLayout layout = MakeLayout(tensors);
    const auto value = [](const Interval& i, int64_t e) { return i.tensor * 1e4f + i.begin + e; };

    const Sharded saved = Shard(groups, 1 + random() % 7, 8);
    std::vector<TensorSlice> chunks;
    for (const auto& rank : saved.ranks) {
      for (const TensorSlice& s : rank.slices) {
        for (int64_t e = 0; e < s.interval.size(); ++e) {
          reinterpret_cast<float*>(s.data)[e] = value(s.interval, e);
        }
      }
      for (const TensorSlice& c : SplitIntoChunks(layout, rank.slices, 100)) chunks.push_back(c);
    }
    std::vector<Interval> intervals;
    for (const TensorSlice& c : chunks) intervals.push_back(c.interval);
    ASSERT_TRUE(CheckCoverage(layout, intervals).ok()) << CheckCoverage(layout, intervals);
    std::shuffle(chunks.begin(), chunks.end(), random);

    const Sharded loaded = Shard(groups, 1 + random() % 7, 8);
    for (const auto& rank : loaded.ranks) {
      const absl::Status status = CopySlices(layout, chunks, rank.slices);
      ASSERT_TRUE(status.ok()) << status;
      size_t elements = 0;
      for (const TensorSlice& s : rank.slices) {
        for (int64_t e = 0; e < s.interval.size(); ++e) {
          ASSERT_EQ(reinterpret_cast<float*>(s.data)[e], value(s.interval, e));
        }
        elements += s.interval.size();
      }
      for (const auto& shard : rank.shards) elements += std::count(shard.begin(), shard.end(), -1);
      size_t allocated = 0;
      for (const auto& shard : rank.shards) allocated += shard.size();
      EXPECT_EQ(elements, allocated) << "padding was written";
    }
  }
}

TEST(ReshardTest, MissingRangesAreNamed) {
  const StateLayout layout = SmallLayout();
  std::vector<char> source(80), target(80);
  const auto copy = [&](const std::vector<Interval>& held, Interval wanted) {
    std::vector<TensorSlice> sources;
    for (const Interval& i : held) sources.push_back({i, source.data()});
    return CopySlices(layout, sources, {{wanted, target.data()}});
  };
  EXPECT_TRUE(copy({{0, 0, 9}, {0, 9, 20}}, {0, 3, 12}).ok());
  EXPECT_THAT(copy({{0, 0, 9}, {0, 10, 20}}, {0, 3, 12}).message(),
              HasSubstr("wte.weight (master) [9, 10) is wanted but not there"));
  EXPECT_THAT(copy({{0, 5, 9}}, {0, 3, 9}).message(), HasSubstr("[3, 5)"));
  EXPECT_THAT(copy({{0, 3, 8}}, {0, 3, 9}).message(), HasSubstr("[8, 9)"));
  EXPECT_THAT(copy({{1, 0, 3}}, {0, 3, 9}).message(), HasSubstr("[3, 9)"));
}

}  // namespace
}  // namespace milepost::state
