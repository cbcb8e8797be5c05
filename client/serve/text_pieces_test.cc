#include "client/serve/text_pieces.h"

#include <gtest/gtest.h>

#include <random>

namespace milepost::client {
namespace {

std::string ByBytes(const std::string& bytes) {
  Utf8Pieces utf8;
  std::string text;
  for (const char c : bytes) text += utf8.Feed(std::string(1, c));
  return text + utf8.Rest();
}

TEST(Utf8Pieces, CharactersAreHeldUntilTheyAreWhole) {
  Utf8Pieces utf8;
  EXPECT_EQ(utf8.Feed("a\xf0\x9f"), "a");
  EXPECT_EQ(utf8.Feed("\x98"), "");
  EXPECT_EQ(utf8.Feed("\x80z"), "\xf0\x9f\x98\x80z");
  EXPECT_EQ(utf8.Rest(), "");
  EXPECT_EQ(utf8.Feed("\xc3"), "");
  EXPECT_EQ(utf8.Rest(), "\xef\xbf\xbd");
  EXPECT_EQ(utf8.Rest(), "");
}

// What Python's bytes.decode("utf-8", "replace") makes of them.
TEST(Utf8Pieces, WrongBytesAreReplacedAsPythonDoes) {
  const std::string bad = "\xef\xbf\xbd";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\xff", bad},
      {"a\x80z", "a" + bad + "z"},
      {"\xc3(", bad + "("},
      {"\xe2\x82", bad},
      {"\xe2\x82(", bad + "("},
      {"\xf0\x9f\x98", bad},
      {"\xf0\x9f\xf0\x9f\x98\x80", bad + "\xf0\x9f\x98\x80"},
      {"\xed\xa0\x80", bad + bad + bad},            // a surrogate
      {"\xc0\x80", bad + bad},                      // overlong
      {"\xe0\x80\x80", bad + bad + bad},            // likewise
      {"\xf4\x90\x80\x80", bad + bad + bad + bad},  // above U+10FFFF
      {"\xc3\xc3\xa9", bad + "\xc3\xa9"},
  };
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(ByBytes(bytes), text);
    Utf8Pieces whole;
    const std::string fed = whole.Feed(bytes);
    EXPECT_EQ(fed + whole.Rest(), text);
  }
}

struct Stopped {
  std::string text;
  bool found = false;
  bool operator==(const Stopped&) const = default;
};
Stopped StopIn(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopText stop(stops);
  Stopped stopped;
  for (const std::string& piece : pieces) stopped.text += stop.Feed(piece);
  stopped.text += stop.Rest();
  stopped.found = stop.found();
  return stopped;
}

TEST(StopText, EndsTheTextBeforeIt) {
  EXPECT_EQ(StopIn({"END"}, {"one ", "END", " two"}), (Stopped{"one ", true}));
  EXPECT_EQ(StopIn({"END"}, {"one E", "N", "D two"}), (Stopped{"one ", true}));
  EXPECT_EQ(StopIn({"END"}, {"one E", "N", "d two"}), (Stopped{"one ENd two", false}));
  EXPECT_EQ(StopIn({"END"}, {"one EN"}), (Stopped{"one EN", false}));
  EXPECT_EQ(StopIn({}, {"one", " two"}), (Stopped{"one two", false}));
  EXPECT_EQ(StopIn({"aab"}, {"aa", "aab"}), (Stopped{"aa", true}));
  EXPECT_EQ(StopIn({"\n\n", "User:"}, {"hi\n", "User", ":"}), (Stopped{"hi\n", true}));
  // "bc" is whole before "abcd" is, however they come.
  EXPECT_EQ(StopIn({"abcd", "bc"}, {"xabcd"}), (Stopped{"xa", true}));
  EXPECT_EQ(StopIn({"abcd", "bc"}, {"xab", "cd"}), (Stopped{"xa", true}));
  EXPECT_EQ(StopIn({"c", "abc"}, {"xab", "c"}), (Stopped{"x", true}));
}

TEST(StopText, HoldsBackOnlyWhatMayBeAStop) {
  StopText stop({"END"});
  EXPECT_EQ(stop.Feed("one E"), "one ");
  EXPECT_EQ(stop.Feed("x"), "Ex");
  EXPECT_EQ(stop.Feed("EN"), "");
  EXPECT_EQ(stop.Rest(), "EN");
}

TEST(StopText, DoesNotDependOnThePieces) {
  std::mt19937 random(7);
  const auto below = [&](size_t n) { return random() % n; };
  for (int round = 0; round < 3000; ++round) {
    const auto word = [&](size_t size) {
      std::string text;
      for (size_t i = 0; i < size; ++i) text += static_cast<char>('a' + below(2));
      return text;
    };
    std::vector<std::string> stops;
    for (size_t i = 0; i <= below(3); ++i) stops.push_back(word(1 + below(5)));
    const std::string text = word(below(24));
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + below(4);
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    EXPECT_EQ(StopIn(stops, pieces), StopIn(stops, {text})) << text;
  }
}

}  // namespace
}  // namespace milepost::client
