#include "engine/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "engine/data/fingerprint.h"
#include "engine/data/mixture.h"
#include "engine/data/npy.h"
#include "engine/data/prefetcher.h"

namespace milepost::data {
namespace {

using ::testing::HasSubstr;

class DatasetTest : public testing::Test {
 protected:
  DatasetTest() {
    std::string pattern = absl::StrCat(testing::TempDir(), "/milepost_data_XXXXXX");
    folder_ = mkdtemp(pattern.data());
  }
  ~DatasetTest() override { std::filesystem::remove_all(folder_); }

  // Token i is i, so that a token says where it comes from; `bad` gets an id of 60000.
  std::string Write(int64_t tokens, int64_t bad = -1) {
    const std::string path = absl::StrCat(folder_, "/tokens.npy");
    auto writer = NpyWriter::Create(path, TokenType::kUint16);
    for (int64_t i = 0; i < tokens; ++i) {
      EXPECT_TRUE((*writer)->Append({static_cast<uint32_t>(i == bad ? 60000 : i)}).ok());
    }
    EXPECT_TRUE((*writer)->Finish().ok());
    return path;
  }
  std::shared_ptr<const TokenDataset> Open(int64_t tokens, int64_t length, int64_t bad = -1) {
    auto dataset =
        TokenDataset::Open(Write(tokens, bad), {.sequence_length = length, .vocabulary = 50000});
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    return *dataset;
  }
  std::string folder_;
};

TEST_F(DatasetTest, SamplesAreInputsAndShiftedTargets) {
  for (int64_t tokens : {9, 10, 11, 12, 13, 40}) {
    const auto dataset = Open(tokens, 4);
    EXPECT_EQ(dataset->samples(), (tokens - 1) / 4) << tokens;
    std::vector<int32_t> in(dataset->samples() * 4), out(in.size());
    ASSERT_TRUE(
        dataset->FetchInOrder(0, dataset->samples(), absl::MakeSpan(in), absl::MakeSpan(out)).ok());
    for (size_t i = 0; i < in.size(); ++i) {
      EXPECT_EQ(in[i], i);
      EXPECT_EQ(out[i], i + 1);
    }
  }
  EXPECT_EQ(Open(10, 1)->samples(), 9);
}

uint64_t FingerprintOfSource(const SampleSource& source) {
  Fingerprint print;
  EXPECT_EQ(source.AddTo(&print), absl::OkStatus());
  return print.value();
}

TEST(Fingerprint, PlacesAreSpreadFromTheFirstToTheLast) {
  EXPECT_THAT(Fingerprint::Places(0, 4), ::testing::IsEmpty());
  EXPECT_THAT(Fingerprint::Places(1, 4), ::testing::ElementsAre(0));
  EXPECT_THAT(Fingerprint::Places(3, 4), ::testing::ElementsAre(0, 1, 2));
  EXPECT_THAT(Fingerprint::Places(1001, 5), ::testing::ElementsAre(0, 250, 500, 750, 1000));
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(Fingerprint::Places(most, 3), ::testing::ElementsAre(0, most / 2, most - 1));
}

// Checkpoints keep it: never another value for the same data.
TEST(Fingerprint, ItsValueStays) {
  Fingerprint print;
  EXPECT_EQ(print.value(), 0u);
  print.Add(int64_t{3});
  print.Add(std::vector<int32_t>{1, -1});
  print.Add("abc");
  EXPECT_EQ(print.value(), 5778167290265591951u);
}

TEST_F(DatasetTest, OtherTokensMoreOrLessHaveAnotherFingerprint) {
  const auto print = [&](int64_t tokens, int64_t bad = -1) {
    const auto dataset =
        TokenDataset::Open(Write(tokens, bad), {.sequence_length = 4, .vocabulary = 65536});
    return FingerprintOfSource(TokensInOrder(*dataset));
  };
  const uint64_t whole = print(3000);
  EXPECT_EQ(print(3000), whole);
  EXPECT_NE(print(3001), whole);
  EXPECT_NE(print(2999), whole);
  for (const int64_t other : {0, 1500, 2999}) EXPECT_NE(print(3000, other), whole) << other;
}

TEST_F(DatasetTest, BatchesFollowTheOrderAcrossEpochs) {
  const auto dataset = Open(41, 4);
  const SampleOrder order(dataset->samples(), 5);
  std::vector<int32_t> in(25 * 4), out(in.size());
  ASSERT_TRUE(dataset->FetchBatch(order, 3, 25, absl::MakeSpan(in), absl::MakeSpan(out)).ok());
  for (int64_t i = 0; i < 25; ++i) {
    for (int64_t t = 0; t < 4; ++t) {
      EXPECT_EQ(in[i * 4 + t], order.SampleAt(3 + i) * 4 + t);
      EXPECT_EQ(out[i * 4 + t], in[i * 4 + t] + 1);
    }
  }
}

TEST_F(DatasetTest, ShortFilesAndBadIdsAreClear) {
  const auto shorter = TokenDataset::Open(Write(8), {.sequence_length = 8, .vocabulary = 50000});
  EXPECT_TRUE(absl::IsInvalidArgument(shorter.status())) << shorter.status();
  EXPECT_THAT(shorter.status().message(), HasSubstr("the sequence is longer than the file"));
  EXPECT_THAT(shorter.status().message(), HasSubstr("tokens.npy"));
  EXPECT_TRUE(TokenDataset::Open(Write(9), {.sequence_length = 8, .vocabulary = 50000}).ok());

  for (int64_t bad : {9, 12}) {  // inside the inputs; the very last target
    const auto dataset = Open(13, 4, bad);
    std::vector<int32_t> in(4), out(4);
    const absl::Status status =
        dataset->FetchInOrder(2, 1, absl::MakeSpan(in), absl::MakeSpan(out));
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("token ", bad, " has id 60000")));
  }
}

// The samples of a step are the same whatever the world size, each on exactly one rank.
TEST_F(DatasetTest, LayoutsPartitionTheStep) {
  const int64_t global = 24;
  for (int world : {1, 2, 3, 4}) {
    for (int64_t micro : {1, 2, 6}) {
      if (global % (world * micro) != 0) continue;
      std::map<int64_t, int> uses;
      for (int rank = 0; rank < world; ++rank) {
        const BatchLayout layout = {micro, global / (world * micro), rank, world};
        ASSERT_EQ(layout.GlobalBatch(), global);
        for (int64_t a = 0; a < layout.accumulation; ++a) {
          const int64_t first = layout.FirstSample(5 * global, a);
          EXPECT_EQ(first, 5 * global + a * micro * world + rank * micro);
          for (int64_t i = 0; i < micro; ++i) ++uses[first + i];
        }
      }
      EXPECT_EQ(uses.size(), global);
      EXPECT_EQ(uses.begin()->first, 5 * global);
      for (const auto& [sample, count] : uses) EXPECT_EQ(count, 1) << sample;
    }
  }
}

// An island's samples too.
TEST_F(DatasetTest, IslandsHaveTheSameSamplesAtAnyNumberOfRanks) {
  const int64_t global = 24;
  for (const int islands : {2, 3}) {
    for (const int ranks : {1, 2, 4}) {  // of an island
      const int world = islands * ranks;
      std::map<int64_t, int> island_of;
      for (int rank = 0; rank < world; ++rank) {
        const BatchLayout layout = {.micro_batch = 1,
                                    .accumulation = global / world,
                                    .rank = rank,
                                    .world = world,
                                    .islands = islands};
        ASSERT_EQ(layout.GlobalBatch(), global);
        for (int64_t a = 0; a < layout.accumulation; ++a) {
          EXPECT_TRUE(island_of.emplace(layout.FirstSample(global, a), rank / ranks).second);
        }
      }
      ASSERT_EQ(island_of.size(), global);
      for (const auto& [sample, island] : island_of) {
        EXPECT_EQ(island, (sample - global) / (global / islands)) << sample;
      }
    }
  }
}

TEST_F(DatasetTest, ValidationSharesPartitionTheSamples) {
  for (int64_t total : {0, 1, 5, 16, 17}) {
    for (int world : {1, 2, 3}) {
      std::vector<int> uses(total);
      for (int rank = 0; rank < world; ++rank) {
        const BatchLayout layout = {4, 1, rank, world};
        for (int64_t turn = 0; turn < ValidationTurns(total, layout); ++turn) {
          const ValidationShare share = ValidationShareOf(total, layout, turn);
          ASSERT_GE(share.count, 0);
          ASSERT_LE(share.count, 4);
          for (int64_t i = 0; i < share.count; ++i) ++uses.at(share.first + i);
        }
      }
      EXPECT_EQ(uses, std::vector<int>(total, 1)) << total << " over " << world;
    }
  }
}

TEST_F(DatasetTest, PrefetcherGivesTheRanksMicroBatchesInOrder) {
  const auto dataset = Open(400, 4);
  const SampleOrder order(dataset->samples(), 9);
  const BatchLayout layout = {3, 2, 1, 2};
  Prefetcher prefetcher(TokenMixture::Of(dataset, order), layout);
  std::vector<int32_t> in(12), out(12);
  for (const int64_t start : {0, 36, 12}) {  // restartable anywhere, also backwards
    prefetcher.Start(start);
    for (int64_t number = 0; number < 40; ++number) {
      auto batch = prefetcher.Next();
      ASSERT_TRUE(batch.ok()) << batch.status();
      const int64_t first = start + number / 2 * layout.GlobalBatch() + number % 2 * 3 * 2 + 1 * 3;
      EXPECT_EQ((*batch)->first_sample, first);
      ASSERT_TRUE(
          dataset->FetchBatch(order, first, 3, absl::MakeSpan(in), absl::MakeSpan(out)).ok());
      EXPECT_EQ(std::memcmp((*batch)->fields[0].data(), in.data(), 12 * sizeof(int32_t)), 0);
      EXPECT_EQ(std::memcmp((*batch)->fields[1].data(), out.data(), 12 * sizeof(int32_t)), 0);
      EXPECT_EQ((*batch)->step.targets, (std::vector<int64_t>{0, 2 * 3 * 4}));
    }
  }
  EXPECT_GE(prefetcher.wait_seconds(), 0);
}

TEST_F(DatasetTest, PrefetcherReportsTheErrorAtItsPlace) {
  const auto dataset = Open(401, 4, /*bad=*/201);  // in sample 50 alone
  const SampleOrder order(dataset->samples(), 9);
  int64_t bad_at = 0;
  while (order.SampleAt(bad_at) != 50) ++bad_at;
  Prefetcher prefetcher(TokenMixture::Of(dataset, order), {1, 1, 0, 1});
  prefetcher.Start(0);
  for (int64_t i = 0; i < bad_at; ++i) ASSERT_TRUE(prefetcher.Next().ok()) << i;
  for (int again = 0; again < 2; ++again) {
    EXPECT_THAT(prefetcher.Next().status().message(), HasSubstr("token 201 has id 60000"));
  }
  prefetcher.Start(bad_at + 1);
  EXPECT_TRUE(prefetcher.Next().ok()) << "another position, another try";
}

TEST_F(DatasetTest, PrefetcherStopsAtAnyMoment) {
  const auto dataset = Open(400, 4);
  for (int taken = 0; taken < 6; ++taken) {
    Prefetcher prefetcher(TokenMixture::Of(dataset, SampleOrder(dataset->samples(), 1)),
                          {2, 1, 0, 1}, {.depth = 1});
    EXPECT_EQ(prefetcher.Bytes(), 2 * 2 * 2 * 4 * 4);
    if (taken == 5) continue;  // never started
    prefetcher.Start(0);
    for (int i = 0; i < taken; ++i) EXPECT_TRUE(prefetcher.Next().ok());
  }
}

}  // namespace
}  // namespace milepost::data
