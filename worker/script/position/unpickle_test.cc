#include "worker/script/position/unpickle.h"

#include <gtest/gtest.h>

#include <string>

namespace milepost::worker {
namespace {

using nlohmann::json;
using std::string_literals::operator""s;

TEST(UnpickleTest, Values) {
  // pickletools.dis() shows what each says.
  EXPECT_EQ(Unpickle("\x80\x02N."s).value(), nullptr);
  EXPECT_EQ(Unpickle("\x80\x02\x88."s).value(), true);
  EXPECT_EQ(Unpickle("K\xff."s).value(), 255);
  EXPECT_EQ(Unpickle("M\x01\x02."s).value(), 0x201);
  EXPECT_EQ(Unpickle("J\xfe\xff\xff\xff."s).value(), -2);
  EXPECT_EQ(Unpickle("\x8a\x00."s).value(), 0);
  EXPECT_EQ(Unpickle("\x8a\x02\x00\x80."s).value(), -32768);
  EXPECT_EQ(Unpickle("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."s).value(), INT64_MAX);
  EXPECT_EQ(Unpickle("G\xbf\xf8\x00\x00\x00\x00\x00\x00."s).value(), -1.5);
  EXPECT_EQ(Unpickle("](K\x01]e."s).value(), json({1, json::array()}));
  EXPECT_EQ(Unpickle("(K\x01K\x02t."s).value(), json({1, 2}));
  EXPECT_EQ(Unpickle("K\x01K\x02K\x03\x87."s).value(), json({1, 2, 3}));
  EXPECT_EQ(Unpickle("}(X\x01\0\0\0aq\0h\0u."s).value(), json::object({{"a", "a"}}));
}

TEST(UnpickleTest, RefusesWhatCallsOrIsCutOff) {
  for (const std::string& pickle : {""s,
                                    "N"s,
                                    "."s,
                                    "NN."s,
                                    "(."s,
                                    "K"s,
                                    "X\xff\xff\xff\xff."s,
                                    "X\x02\0\0\0a."s,
                                    "(e."s,
                                    "Ne."s,
                                    "N(Ne."s,
                                    "}(Nu."s,
                                    "}(NNu."s,
                                    "t."s,
                                    "\x86."s,
                                    "(\x85."s,
                                    "q\0."s,
                                    "h\0."s,
                                    "]q\0h\0\x86."s,
                                    "\x8a\x09\0\0\0\0\0\0\0\0\0."s,
                                    "cos\nsystem\nX\x02\0\0\0ls\x85R."s}) {
    const auto value = Unpickle(pickle);
    EXPECT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument) << pickle;
  }
}

// A text that is kept costs its bytes once and 2 for each time that it is taken.
TEST(UnpickleTest, ItsValuesAreBounded) {
  std::string pickle = "](X"s + "\x00\x40\x00\x00"s + std::string(0x4000, 'a') + "q\0"s;
  for (int i = 0; i < 1000; ++i) pickle += "h\0"s;
  EXPECT_EQ(Unpickle(pickle + "e.").status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(UnpickleTest, DeepListsAreNoTrouble) {
  std::string pickle;
  for (int i = 0; i < 20'000; ++i) pickle += "](";
  for (int i = 0; i < 20'000; ++i) pickle += "e";
  const auto value = Unpickle(pickle + ".");
  EXPECT_TRUE(value.ok()) << value.status();
}

}  // namespace
}  // namespace milepost::worker
