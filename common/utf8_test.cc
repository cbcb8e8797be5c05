#include "common/utf8.h"

#include <gtest/gtest.h>

namespace milepost {
namespace {

TEST(CutUtf8Test, CutsBetweenCharacters) {
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x9a\x80z";  // 1, 2, 3, 4 and 1 bytes
  const size_t lengths[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11};
  for (size_t most = 0; most < std::size(lengths); ++most) {
    EXPECT_EQ(CutUtf8(text, most), text.substr(0, lengths[most])) << most;
  }
}

TEST(CutUtf8Test, ReplacesWhatIsNoCharacter) {
  EXPECT_EQ(CutUtf8("a\xff\xe2\x82z\xed\xa0\x80", 100), "a???z???");
}

}  // namespace
}  // namespace milepost
