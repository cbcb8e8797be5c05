#include "client/cli/text_generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "client/cli/tokenizer_stand_ins.h"

namespace milepost::client {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class TextGenerationTest : public ::testing::Test {
 protected:
  TextGenerationTest() {
    std::string name = (fs::temp_directory_path() / "milepost_text_XXXXXX").string();
    folder_ = mkdtemp(name.data());
    Write("tokenizers.py", kGeneratingTokenizersStandIn);
    Write("transformers.py", kGeneratingTransformersStandIn);
    Write("tokenizer.json", "{}");
    setenv("PYTHONPATH", folder_.c_str(), 1);
  }
  ~TextGenerationTest() override {
    unsetenv("PYTHONPATH");
    fs::remove_all(folder_);
  }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }
  TextPrompt Prompt(const std::string& text, bool message = false) const {
    return {folder_.string(), text, message};
  }
  // What is written for these ids.
  std::string Text(const TextPrompt& prompt, const std::string& prompt_ids,
                   const std::string& ids) const {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    EXPECT_EQ(write(ends[1], ids.data(), ids.size()), static_cast<ssize_t>(ids.size()));
    close(ends[1]);
    testing::internal::CaptureStdout();
    const auto all = WriteText(prompt, prompt_ids, UniqueFd(ends[0]));
    const std::string text = testing::internal::GetCapturedStdout();
    if (!all.ok()) return std::string(all.status().message());
    return *all ? text : text + "ended before";
  }

  fs::path folder_;
};

TEST_F(TextGenerationTest, APromptIsIds) {
  EXPECT_EQ(*PromptIds(Prompt("ab")), "94,97,98");
  EXPECT_EQ(*PromptIds({(folder_ / "tokenizer.json").string(), "ab"}), "94,97,98");
  // The template has all that is needed before it.
  EXPECT_EQ(*PromptIds(Prompt("Q", true)), "117,58,81,124,97,58");
}

TEST_F(TextGenerationTest, IdsAreTextUpToTheEnd) {
  Write("tokenizer_config.json", R"({"eos_token": {"content": "|"}})");
  EXPECT_EQ(Text(Prompt("ab"), "94,97,98", "94 97 98 99 \n"), "abc\n");
  EXPECT_EQ(Text(Prompt("ab"), "94,97,98", "94 97 98 99 124 100 "), "abc\nended before");
  // Of the prompt an end is none.
  EXPECT_EQ(Text(Prompt("a|"), "94,97,124", "94 97 124 99 124 100 "), "a|c\nended before");
  // Only the answer of a chat.
  EXPECT_EQ(Text(Prompt("Q", true), "117,58,81,124,97,58", "117 58 81 124 97 58 111 107 124 120 "),
            "ok\nended before");
  fs::remove(folder_ / "tokenizer_config.json");
  Write("generation_config.json", R"({"eos_token_id": [99, 100]})");
  EXPECT_EQ(Text(Prompt("ab"), "97", "97 98 100 98 "), "ab\nended before");
}

TEST_F(TextGenerationTest, WhatCannotBeIsExplained) {
  EXPECT_THAT(PromptIds(Prompt("")).status().message(), HasSubstr("gives no tokens"));
  EXPECT_THAT(PromptIds(Prompt("\xff")).status().message(), HasSubstr("not UTF-8"));
  EXPECT_THAT(PromptIds({(folder_ / "none").string(), "a"}).status().message(),
              HasSubstr("none: not a tokenizer.json"));
  Write("transformers.py", "raise ImportError()");
  EXPECT_THAT(PromptIds(Prompt("a", true)).status().message(),
              HasSubstr("text needs the Python package `transformers`: pip install"));
  Write("tokenizers.py", "raise ImportError()");
  const absl::Status missing = PromptIds(Prompt("a")).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(missing.message(), HasSubstr("pip install 'tokenizers"));
}

}  // namespace
}  // namespace milepost::client
