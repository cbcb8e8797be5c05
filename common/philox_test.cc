#include "common/philox.h"

#include <gtest/gtest.h>

namespace milepost {
namespace {

using Words = std::array<uint32_t, 4>;

// Known answers of philox4x32-10 from Random123's kat_vectors.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, KeysDifferBySeedAndStream) {
  EXPECT_NE(PhiloxKey(1, 2), PhiloxKey(2, 1));
  EXPECT_NE(PhiloxKey(1, 2), PhiloxKey(1, 3));
  EXPECT_EQ(PhiloxKey(1, 2), PhiloxKey(1, 2));
}

}  // namespace
}  // namespace milepost
