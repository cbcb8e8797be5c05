#include "client/cli/prompt_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace milepost::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PromptFile, EachLineIsAPrompt) {
  EXPECT_THAT(*ParsePrompts("p.txt", "one\n{\"prompt\": 1}\r\n"),
              ElementsAre("one", "{\"prompt\": 1}"));
  EXPECT_THAT(*ParsePrompts("p.txt", "no line's end"), ElementsAre("no line's end"));
  EXPECT_THAT(*ParsePrompts("p.jsonl", "{\"prompt\": \"a\\nb\", \"id\": 3}\n{\"prompt\": \"\"}\n"),
              ElementsAre("a\nb", ""));
}

TEST(PromptFile, OtherLinesAreRefusedByTheirPlace) {
  const auto error = [](const char* path, const char* text) {
    return std::string(ParsePrompts(path, text).status().message());
  };
  EXPECT_THAT(error("p.txt", ""), HasSubstr("p.txt has no prompt"));
  EXPECT_THAT(error("p.txt", "\n"), HasSubstr("p.txt has no prompt"));
  EXPECT_THAT(error("p.txt", "a\n\nb\n"), HasSubstr("p.txt:2: an empty line"));
  for (const char* line : {"a", "[1]", "{}", "{\"prompt\": 7}", "\"a\""}) {
    EXPECT_THAT(error("p.jsonl", (std::string("{\"prompt\": \"a\"}\n") + line).c_str()),
                HasSubstr("p.jsonl:2: not an object"))
        << line;
  }
}

// Lines come in the prompts' order, whichever text ends first.
TEST(PromptTexts, KeepTheOrder) {
  PromptTexts texts({"a", "b", "c"}, {7, 9}, /*tokens=*/3);
  EXPECT_TRUE(texts.Take(1, 1, "x"));
  EXPECT_FALSE(texts.Take(1, 9, "never shown"));
  EXPECT_EQ(texts.Ready(), "");
  EXPECT_TRUE(texts.Take(2, 1, "\xc3"));
  EXPECT_TRUE(texts.Take(0, 1, "1"));
  EXPECT_TRUE(texts.Take(0, 8, "\n"));
  EXPECT_FALSE(texts.Take(0, 1, "\xc3"));  // a part of a character
  EXPECT_EQ(texts.Ready(),
            "{\"prompt\":\"a\",\"text\":\"1\\n\xef\xbf\xbd\",\"tokens\":3,"
            "\"finish_reason\":\"length\"}\n"
            "{\"prompt\":\"b\",\"text\":\"x\",\"tokens\":1,\"finish_reason\":\"stop\"}\n");
  EXPECT_EQ(texts.Ready(), "");
  EXPECT_TRUE(texts.Take(2, 1, "\xa9"));
  EXPECT_FALSE(texts.Take(2, 7, ""));
  EXPECT_EQ(texts.Ready(),
            "{\"prompt\":\"c\",\"text\":\"\xc3\xa9\",\"tokens\":2,"
            "\"finish_reason\":\"stop\"}\n");
}

}  // namespace
}  // namespace milepost::client
