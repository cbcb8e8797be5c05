#include "common/spec/byte_size.h"

#include <gtest/gtest.h>

namespace milepost {
namespace {

TEST(ByteSize, ReadsWhatPeopleWrite) {
  EXPECT_EQ(ParseByteSize("0"), 0);
  EXPECT_EQ(ParseByteSize("1000000"), 1000000);
  EXPECT_EQ(ParseByteSize("80GiB"), int64_t{80} << 30);
  EXPECT_EQ(ParseByteSize("80 GiB"), int64_t{80} << 30);
  EXPECT_EQ(ParseByteSize("1.5MiB"), 3 << 19);
  EXPECT_EQ(ParseByteSize("2TB"), 2'000'000'000'000);
  EXPECT_EQ(ParseByteSize("12B"), 12);
}

TEST(ByteSize, RefusesTheRest) {
  for (const char* text : {"", "GiB", "-1GiB", "1e3", "80Gi", "80gib", "0.3B", "1.2.3GiB", "1.5",
                           "99999999999TiB", "9223372036854775807", "1GiB more", "+1KiB"}) {
    EXPECT_EQ(ParseByteSize(text), std::nullopt) << text;
  }
}

TEST(ByteSize, TextComesBackTheSame) {
  EXPECT_EQ(ByteSizeText(int64_t{80} << 30), "80GiB");
  EXPECT_EQ(ByteSizeText(3 << 19), "1536KiB");
  for (int64_t bytes :
       {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{1} << 40, int64_t{1} << 62}) {
    EXPECT_EQ(ParseByteSize(ByteSizeText(bytes)), bytes);
  }
}

}  // namespace
}  // namespace milepost
