#include "engine/kernels/cuda/libraries/algorithm_file.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::kernels::cuda {
namespace {

using ::testing::HasSubstr;

Algorithm SomeAlgorithm(uint64_t seed) {
  Algorithm algorithm{.workspace_bytes = 4096 * static_cast<int64_t>(seed), .nanoseconds = 71234};
  for (uint64_t& word : algorithm.words) word = seed = seed * 6364136223846793005u + 1;
  return algorithm;
}

AlgorithmTable SomeTable() {
  AlgorithmTable table("NVIDIA H200, cuBLASLt 130100");
  table.Put("m=1 n=2", SomeAlgorithm(1));
  table.Put("m=3 n=4 ep=1", SomeAlgorithm(2));
  return table;
}

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = absl::StrCat(::testing::TempDir(), "/algorithms.XXXXXX");
    path_ = mkdtemp(pattern.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::string File(const char* name) const { return absl::StrCat(path_, "/", name); }

 private:
  std::string path_;
};

TEST(AlgorithmFileTest, ReadsWhatItWrote) {
  const TempFolder folder;
  const std::string path = folder.File("h200");
  ASSERT_TRUE(SomeTable().Save(path).ok());
  AlgorithmTable read("NVIDIA H200, cuBLASLt 130100");
  ASSERT_TRUE(read.Load(path).ok());
  ASSERT_EQ(read.size(), 2);
  ASSERT_NE(read.Find("m=3 n=4 ep=1"), nullptr);
  EXPECT_EQ(*read.Find("m=3 n=4 ep=1"), SomeAlgorithm(2));
  EXPECT_EQ(read.Find("m=3 n=4"), nullptr);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.File("")), {}), 1);
}

TEST(AlgorithmFileTest, AMissingFileIsNotFound) {
  const TempFolder folder;
  AlgorithmTable table = SomeTable();
  EXPECT_EQ(table.Load(folder.File("none")).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(table.size(), 0);
  EXPECT_EQ(SomeTable().Save(folder.File("no/folder")).code(), absl::StatusCode::kUnavailable);
}

TEST(AlgorithmFileTest, EveryFlippedBitAndEveryCutIsNoticed) {
  const std::string good = SomeTable().Format();
  AlgorithmTable table = SomeTable();
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int bit : {0, 4, 7}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      ASSERT_FALSE(table.Parse(bad).ok() && bad != good) << i << " " << bit;
      ASSERT_EQ(table.size(), 0);
    }
    ASSERT_FALSE(table.Parse(good.substr(0, i)).ok()) << i;
  }
  EXPECT_TRUE(table.Parse(good).ok());
  EXPECT_FALSE(table.Parse(good + "x").ok());
}

TEST(AlgorithmFileTest, AnotherDeviceOrVersionIsNotUsed) {
  AlgorithmTable other("NVIDIA H200, cuBLASLt 130200");
  const absl::Status status = other.Parse(SomeTable().Format());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("130100\", not \"NVIDIA H200, cuBLASLt 130200\""));
  EXPECT_EQ(other.size(), 0);
}

TEST(AlgorithmFileTest, SizesAreBounded) {
  AlgorithmTable table("x");
  for (int i = 0; i < kMaxAlgorithms + 10; ++i) table.Put(absl::StrCat("m=", i), {});
  EXPECT_EQ(table.size(), kMaxAlgorithms);
  EXPECT_LE(static_cast<int64_t>(table.Format().size()), kMaxAlgorithmFileBytes);
  table.Put("m=7", SomeAlgorithm(3));  // one that is there is still replaced
  EXPECT_EQ(*table.Find("m=7"), SomeAlgorithm(3));
  EXPECT_THAT(table.Parse(std::string(kMaxAlgorithmFileBytes + 1, 'x')).message(),
              HasSubstr("more than"));
  table.Put("two\nlines", {});
  table.Put(std::string(257, 'k'), {});
  EXPECT_EQ(table.size(), 0);
}

TEST(AlgorithmFileTest, AHugeFileIsNotReadWhole) {
  const TempFolder folder;
  const std::string path = folder.File("huge");
  std::ofstream(path) << "milepost-products 1\n";
  std::filesystem::resize_file(path, uint64_t{1} << 40);  // sparse
  AlgorithmTable table("x");
  EXPECT_EQ(table.Load(path).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace milepost::kernels::cuda
