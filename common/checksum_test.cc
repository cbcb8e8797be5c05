#include "common/checksum.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace milepost {
namespace {

std::string RandomBytes(size_t size) {
  std::mt19937 random(1);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// XXH3's published value for no input: pieces and wide registers change nothing of it.
TEST(ChecksumTest, NothingHasThePublishedValue) {
  EXPECT_EQ(Xxh3(""), 0x2d06800538d394c2);
  EXPECT_EQ(Xxh3Sum().value(), 0x2d06800538d394c2);
}

TEST(ChecksumTest, PiecesOfAnySizeHaveTheSumOfTheWhole) {
  for (const size_t size : {1, 16, 17, 128, 129, 240, 241, 1024, 1025, 100'000, (1 << 20) + 3}) {
    const std::string bytes = RandomBytes(size);
    for (const size_t step : {1, 7, 64, 255, 256, 1000, 16384}) {
      if (size / step > 100'000) continue;
      Xxh3Sum sum;
      for (size_t at = 0; at < size; at += step) sum.Add(bytes.substr(at, step));
      EXPECT_EQ(sum.value(), Xxh3(bytes)) << size << " bytes by " << step;
    }
  }
}

TEST(ChecksumTest, ResetBeginsAnew) {
  Xxh3Sum sum;
  sum.Add("something else");
  EXPECT_EQ(sum.value(), Xxh3("something else"));
  sum.Reset();
  sum.Add("bytes");
  EXPECT_EQ(sum.value(), Xxh3("bytes"));
}

}  // namespace
}  // namespace milepost
