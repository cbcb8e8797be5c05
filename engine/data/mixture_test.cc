#include "engine/data/mixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/data/npy.h"

namespace milepost::data {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

MixtureOrder Order(const std::vector<double>& weights, uint64_t seed = 5) {
  auto order = MixtureOrder::Create(weights, seed);
  EXPECT_TRUE(order.ok()) << order.status();
  return *std::move(order);
}

TEST(MixtureOrderTest, SharesPlacesByWeight) {
  const MixtureOrder order = Order({7, 2, 1});
  EXPECT_EQ(order.PlacesOf(0), 734003);  // 0.7 * 2^20 = 734003.2
  EXPECT_EQ(order.PlacesOf(1), 209715);  // 209715.2
  EXPECT_EQ(order.PlacesOf(2), 104858);  // 104857.6: the largest rest
  EXPECT_EQ(Order({1e-6, 1}).PlacesOf(0), 1);
  const MixtureOrder thirds = Order({1, 1, 1});
  EXPECT_EQ(thirds.PlacesOf(0) + thirds.PlacesOf(1) + thirds.PlacesOf(2), MixtureOrder::kBlock);
}

// Of every block each set gets exactly its places, and its indices count up without gap or double.
TEST(MixtureOrderTest, EveryIndexOnceAndSharesExact) {
  const MixtureOrder order = Order({3, 1, 0.001});
  std::vector<std::vector<int>> seen(3);
  for (int64_t block = 0; block < 2; ++block) {
    for (size_t set = 0; set < 3; ++set) {
      seen[set].resize(static_cast<size_t>((block + 1) * order.PlacesOf(set)));
    }
    for (int64_t i = 0; i < MixtureOrder::kBlock; ++i) {
      const MixtureOrder::Pick pick = order.At(block * MixtureOrder::kBlock + i);
      ++seen[pick.set].at(static_cast<size_t>(pick.index));
    }
    for (const auto& uses : seen) EXPECT_THAT(uses, Each(1));
  }
}

// Also over short stretches the shares are those of chance.
TEST(MixtureOrderTest, IsWellMixed) {
  for (const uint64_t seed : {1, 2, 3}) {
    const MixtureOrder order = Order({0.7, 0.3}, seed);
    for (const int64_t start : {0, 5000, 1048000}) {
      int of_first = 0;
      for (int64_t i = 0; i < 2000; ++i) of_first += order.At(start + i).set == 0;
      EXPECT_NEAR(of_first, 1400, 5 * std::sqrt(2000 * 0.7 * 0.3));
    }
  }
  int same = 0;
  const MixtureOrder a = Order({1, 1}, 1), b = Order({1, 1}, 2);
  for (int64_t i = 0; i < 2000; ++i) same += a.At(i).set == b.At(i).set;
  EXPECT_NEAR(same, 1000, 150);
}

// Part of what a checkpoint relies on: these values may never change.
TEST(MixtureOrderTest, ValuesAreFixed) {
  const MixtureOrder order = Order({7, 2, 1}, 42);
  std::string picks;
  for (int64_t i = 0; i < 18; ++i) {
    const MixtureOrder::Pick pick = order.At(3 * MixtureOrder::kBlock + i);
    absl::StrAppend(&picks, pick.set, ":", pick.index, " ");
  }
  EXPECT_EQ(picks,
            "0:2879999 0:2385252 0:2603037 0:2924433 0:2434477 0:2806580 "
            "0:2664972 0:2378705 0:2904432 0:2374877 0:2599257 0:2208843 "
            "0:2338313 0:2352478 2:318127 0:2413938 0:2395226 2:315803 ");
}

TEST(MixtureOrderTest, RefusesBadWeights) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const std::vector<double>& weights :
       std::vector<std::vector<double>>{{}, {0}, {1, -1}, {1, NAN}, {1, infinity}, {1e-7, 1}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(MixtureOrder::Create(weights, 1).status()));
  }
}

class TokenMixtureTest : public testing::Test {
 protected:
  TokenMixtureTest() {
    std::string pattern = absl::StrCat(testing::TempDir(), "/milepost_mixture_XXXXXX");
    folder_ = mkdtemp(pattern.data());
  }
  ~TokenMixtureTest() override { std::filesystem::remove_all(folder_); }

  // Token i is first + i: it says which file it is of, and where.
  std::string Write(const std::string& name, uint32_t first, int64_t tokens) {
    const std::string path = absl::StrCat(folder_, "/", name);
    auto writer = NpyWriter::Create(path, TokenType::kUint16);
    for (int64_t i = 0; i < tokens; ++i) {
      EXPECT_TRUE((*writer)->Append({first + static_cast<uint32_t>(i)}).ok());
    }
    EXPECT_TRUE((*writer)->Finish().ok());
    return path;
  }

  static constexpr DatasetOptions kOptions = {.sequence_length = 4, .vocabulary = 60000};
  std::string folder_;
};

TEST_F(TokenMixtureTest, GivesEachSetsSamplesInItsOwnOrder) {
  const std::string a = Write("a.npy", 0, 41), b = Write("b.npy", 10000, 81);
  const auto mixture = TokenMixture::Open({{a, 3}, {b, 1}}, kOptions, 9);
  ASSERT_TRUE(mixture.ok()) << mixture.status();
  const MixtureOrder order = Order({3, 1}, 9);
  std::vector<int32_t> in(200 * 4), out(in.size());
  ASSERT_TRUE((*mixture)->FetchBatch(50, 200, absl::MakeSpan(in), absl::MakeSpan(out)).ok());
  for (size_t i = 0; i < 200; ++i) {
    const MixtureOrder::Pick pick = order.At(50 + static_cast<int64_t>(i));
    EXPECT_EQ(in[4 * i] / 10000, static_cast<int32_t>(pick.set));
    EXPECT_EQ(out[4 * i], in[4 * i] + 1);
  }
  // The same samples however they are fetched.
  std::vector<int32_t> one(4), target(4);
  for (const size_t i : {0, 7, 199}) {
    ASSERT_TRUE((*mixture)
                    ->FetchBatch(50 + static_cast<int64_t>(i), 1, absl::MakeSpan(one),
                                 absl::MakeSpan(target))
                    .ok());
    EXPECT_EQ(one, std::vector<int32_t>(in.begin() + 4 * i, in.begin() + 4 * i + 4));
  }
}

TEST_F(TokenMixtureTest, OneSetIsThatSetsOrder) {
  const std::string path = Write("a.npy", 0, 41);
  const auto mixture = TokenMixture::Open({{path, 0.5}}, kOptions, 9);
  ASSERT_TRUE(mixture.ok()) << mixture.status();
  const auto dataset = TokenDataset::Open(path, kOptions);
  std::vector<int32_t> in(25 * 4), out(in.size()), in2(in.size()), out2(in.size());
  ASSERT_TRUE((*mixture)->FetchBatch(3, 25, absl::MakeSpan(in), absl::MakeSpan(out)).ok());
  ASSERT_TRUE((*dataset)
                  ->FetchBatch(SampleOrder(10, 9), 3, 25, absl::MakeSpan(in2), absl::MakeSpan(out2))
                  .ok());
  EXPECT_EQ(in, in2);
  EXPECT_EQ(out, out2);
}

TEST_F(TokenMixtureTest, ASetMayHaveALossMask) {
  const std::string a = Write("a.npy", 0, 41), b = Write("b.npy", 10000, 81);
  const std::string mask = folder_ + "/a.mask.npy";
  auto writer = NpyWriter::Create(mask, TokenType::kUint8);
  for (uint32_t i = 0; i < 41; ++i) EXPECT_TRUE((*writer)->Append({i % 2}).ok());
  EXPECT_TRUE((*writer)->Finish().ok());
  for (const bool first : {true, false}) {
    const WeightedPath masked = {a, 1, mask}, whole = {b, 1};
    const auto mixture = first ? TokenMixture::Open({masked, whole}, kOptions, 9)
                               : TokenMixture::Open({whole, masked}, kOptions, 9);
    ASSERT_TRUE(mixture.ok()) << mixture.status();
    EXPECT_TRUE(TargetsVary(**mixture));
    std::vector<int32_t> in(40 * 4), out(in.size());
    ASSERT_TRUE((*mixture)->FetchBatch(0, 40, absl::MakeSpan(in), absl::MakeSpan(out)).ok());
    for (size_t i = 0; i < in.size(); ++i) {
      EXPECT_EQ(out[i], in[i] < 10000 && in[i] % 2 == 1 ? -1 : in[i] + 1);
    }
  }
}

TEST_F(TokenMixtureTest, BadFilesAreNamed) {
  const std::string a = Write("a.npy", 0, 41), tiny = Write("tiny.npy", 0, 3);
  EXPECT_THAT(TokenMixture::Open({{a, 1}, {tiny, 1}}, kOptions, 1).status().message(),
              HasSubstr("tiny.npy"));
  EXPECT_TRUE(absl::IsNotFound(
      TokenMixture::Open({{a, 1}, {folder_ + "/absent.npy", 1}}, kOptions, 1).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(TokenMixture::Open({}, kOptions, 1).status()));
}

}  // namespace
}  // namespace milepost::data
