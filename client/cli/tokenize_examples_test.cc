// Examples with masks, for `milepost dataset tokenize`: chats, and prompts with completions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/tokenize.h"
#include "client/cli/tokenizer_stand_ins.h"
#include "engine/data/token_file.h"

namespace milepost::client {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

// {"user", "Q", "assistant", "yes"} as a line of JSON.
std::string Messages(const std::vector<std::string>& words) {
  std::vector<std::string> messages;
  for (size_t i = 0; i + 1 < words.size(); i += 2) {
    messages.push_back(
        absl::StrCat(R"({"role": ")", words[i], R"(", "content": ")", words[i + 1], R"("})"));
  }
  return absl::StrCat("[", absl::StrJoin(messages, ", "), "]");
}
std::string Chat(const std::vector<std::string>& words) {
  return absl::StrCat(R"({"messages": )", Messages(words), "}\n");
}
std::string Completion(const std::string& prompt, const std::string& completion) {
  return absl::StrCat(R"({"prompt": ")", prompt, R"(", "completion": ")", completion, "\"}\n");
}

class TokenizeExamplesTest : public ::testing::Test {
 protected:
  TokenizeExamplesTest() {
    std::string name = (fs::temp_directory_path() / "milepost_examples_XXXXXX").string();
    folder_ = mkdtemp(name.data());
    Write("tokenizers.py", kTokenizersStandIn);
    Write("transformers.py", kTransformersStandIn);
    Write("tokenizer_config.json", R"({"eos_token": {"content": "|"}})");
  }
  ~TokenizeExamplesTest() override { fs::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }

  struct Made {
    std::string tokens, targets;  // a character each; "." is what is no target
    TokenizeResult result;
  };
  absl::StatusOr<Made> Run(const std::string& lines, TokenizeJob job = {}) {
    Write("examples.jsonl", lines);
    job.inputs = {(folder_ / "examples.jsonl").string()};
    job.output = (folder_ / "out.npy").string();
    setenv("PYTHONPATH", folder_.c_str(), 1);
    const auto result = TokenizeHuggingFace(job, (folder_ / "tokenizer.json").string());
    unsetenv("PYTHONPATH");
    if (!result.ok()) return result.status();
    Made made = {Values(job.output), Values(MaskPath(job.output)), *result};
    EXPECT_EQ(made.tokens.size(), made.targets.size());
    for (size_t i = 0; i < made.tokens.size(); ++i) {
      made.targets[i] = made.targets[i] == 1 ? made.tokens[i] : '.';
    }
    fs::remove(job.output);
    fs::remove(MaskPath(job.output));
    return made;
  }
  std::string Problem(const std::string& lines, const TokenizeJob& job = {}) {
    return std::string(Run(lines, job).status().message());
  }
  static std::string Values(const std::string& path) {
    const auto file = data::TokenFile::Open(path);
    EXPECT_TRUE(file.ok()) << file.status();
    if (!file.ok()) return "";
    std::vector<int32_t> values(static_cast<size_t>((*file)->size()));
    EXPECT_TRUE((*file)->Read(0, 256, absl::MakeSpan(values)).ok());
    return std::string(values.begin(), values.end());
  }

  fs::path folder_;
};

TEST_F(TokenizeExamplesTest, AnswersAreTargets) {
  const std::string one = Chat({"user", "Q", "assistant", "yes"});
  const auto made =
      Run(one + Chat({"user", "Q", "assistant", "yes", "user", "R", "assistant", "no"}));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->tokens, "u:Q|a:yes|#u:Q|a:yes|u:R|a:no|#");
  EXPECT_EQ(made->targets, "......yes|.......yes|......no|.");
  EXPECT_TRUE(made->result.masks);
  EXPECT_EQ(made->result.documents, 2);
  // "|" is within chats, so it cannot end documents.
  EXPECT_EQ(made->result.separator, "<|endoftext|>");
  EXPECT_EQ(made->result.separator_id, 35);
  EXPECT_EQ(Run(one, {.all_tokens = true})->targets, ".:Q|a:yes|.");
}

TEST_F(TokenizeExamplesTest, ATemplateMayLeaveEarlierThoughtsOut) {
  std::string line = Chat({"user", "Q", "assistant", "yes", "user", "R", "assistant", "no"});
  line.insert(1, R"("chat_template_kwargs": {"thoughts": true}, )");
  const auto made = Run(line);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->tokens, "u:Q|a:yes|u:R|a:*no|#");
  EXPECT_EQ(made->targets, "......yes|......*no|.");
}

TEST_F(TokenizeExamplesTest, AnAnswerIsFoundWhereItIs) {
  // What the model is asked with is not in the chat, and the answer is also in the header.
  std::string line = Chat({"user", "Q", "assistant", "a", "user", "R", "assistant", "a"});
  line.insert(1, R"("chat_template_kwargs": {"think": "[]"}, )");
  auto made = Run(line);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->tokens, "u:Q|a:a|u:R|a:a|#");
  EXPECT_EQ(made->targets, "......a|......a|.");
  // Nothing is before it but what the template begins with.
  line = Chat({"assistant", "s", "user", "R", "assistant", ""});
  line.insert(1, R"("chat_template_kwargs": {"system": "s:sys|"}, )");
  made = Run(line);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->tokens, "s:sys|a:s|u:R|a:|#");
  EXPECT_EQ(made->targets, "........s|......|.");
}

TEST_F(TokenizeExamplesTest, ATokenThatReachesIntoAnAnswerIsATarget) {
  const auto made = Run(Completion("a~", "bc"));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->tokens, "^abc|");
  EXPECT_EQ(made->targets, "..bc|");
}

TEST_F(TokenizeExamplesTest, CompletionsAreTargetsWithTheirEnd) {
  const auto made = Run(Completion("ab", "cd") + Completion("", "e"));
  ASSERT_TRUE(made.ok()) << made.status();
  // "^" is what the tokenizer puts before a text.
  EXPECT_EQ(made->tokens, "^abcd|^e|");
  EXPECT_EQ(made->targets, "...cd|.e|");
  EXPECT_EQ(made->result.separator_id, 124);
  EXPECT_EQ(Run(Completion("ab", "cd"), {.all_tokens = true})->targets, ".abcd|");
  EXPECT_EQ(Run(Completion("ab", "cd"), {.separator = "<|endoftext|>"})->tokens, "^abcd|#");
  EXPECT_EQ(Run(Completion("ab", "cd"), {.separator = "<|endoftext|>"})->targets, "...cd|.");
  const auto chat = Run(absl::StrCat(R"({"prompt": )", Messages({"assistant", "x", "user", "Q"}),
                                     R"(, "completion": )", Messages({"assistant", "y"}), "}"));
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->tokens, "a:x|u:Q|a:y|#");
  EXPECT_EQ(chat->targets, "..........y|.");
}

TEST_F(TokenizeExamplesTest, WholeExamplesArePacked) {
  const auto made = Run(Completion("", "12345") + Completion("", "ab") + Completion("", "cde") +
                            Completion("", "x") + Completion("", "long-long") +
                            Completion("a prompt of its own", "y"),
                        {.sequence_length = 10});
  ASSERT_TRUE(made.ok()) << made.status();
  // 7 tokens; 4, which do not fit behind them; 5 behind those, the fullest with room; 3 behind the
  // 7, which are then full; 11, which are cut; what is left, filled up; and a place for a target.
  EXPECT_EQ(made->tokens,
            "^12345|^x|^long-long^ab|^cde||"
            "|");
  EXPECT_EQ(made->targets,
            ".12345|.x|.long-long.ab|.cde|."
            ".");
  EXPECT_EQ(made->result.cut, 1);
  EXPECT_EQ(made->result.left_out, 1);
  EXPECT_EQ(made->result.documents, 6);
}

std::string Preference(const std::string& prompt, const std::string& chosen,
                       const std::string& rejected) {
  return absl::StrCat(R"({"prompt": ")", prompt, R"(", "chosen": ")", chosen, R"(", "rejected": ")",
                      rejected, "\"}\n");
}

TEST_F(TokenizeExamplesTest, PairsStayTogether) {
  const auto made = Run(Preference("p", "good", "bad") + Preference("", "x", "y") +
                            Preference("far too long a prompt", "x", "y") + Preference("q", "", ""),
                        {.sequence_length = 20});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->tokens,
            "^pgood|^pbad|^x|^y||"
            "^q|^q|||||||||||||||"
            "|");
  EXPECT_EQ(made->targets,
            "..good|..bad|.x|.y|."
            "..|..|.............."
            ".");
  EXPECT_TRUE(made->result.pairs);
  EXPECT_EQ(made->result.left_out, 1);
  EXPECT_EQ(made->result.documents, 4);
  // Without a prompt, chats that begin alike.
  const auto chat =
      Run(absl::StrCat(R"({"chosen": )", Messages({"user", "Q", "assistant", "yes"}),
                       R"(, "rejected": )", Messages({"user", "Q", "assistant", "no"}), "}"),
          {.sequence_length = 22});
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->tokens, "u:Q|a:yes|#u:Q|a:no|###");
  EXPECT_EQ(chat->targets, "......yes|.......no|...");
}

// Stands for the package: a file of lines of JSON, in batches of two rows.
constexpr char kPyarrow[] = R"py(
import json
class ArrowException(Exception): pass
class Batch:
    def __init__(self, rows): self.rows, self.num_rows = rows, len(rows)
    def slice(self, begin, count): return Batch(self.rows[begin:begin + count])
    def to_pylist(self): return self.rows
def batches(path):
    rows = []
    for line in open(path):
        if line == "bad\n": raise ArrowException("damaged")
        rows.append(json.loads(line))
    return [Batch(rows[i:i + 2]) for i in range(0, len(rows), 2)]
def memory_map(path): return path
class ipc:
    open_stream = staticmethod(batches)
)py";
constexpr char kParquet[] = R"py(
import pyarrow
class ParquetFile:
    def __init__(self, path):
        self.batches = pyarrow.batches(path)
        self.metadata = type("Metadata", (), {"num_rows": sum(b.num_rows for b in self.batches)})
    def iter_batches(self, batch_size): return iter(self.batches)
)py";

TEST_F(TokenizeExamplesTest, RowsAreAsLines) {
  fs::create_directory(folder_ / "pyarrow");
  Write("pyarrow/__init__.py", kPyarrow);
  Write("pyarrow/parquet.py", kParquet);
  setenv("PYTHONPATH", folder_.c_str(), 1);
  const auto run = [&](const std::string& input) -> absl::StatusOr<std::string> {
    const TokenizeJob job = {.inputs = {(folder_ / input).string()},
                             .output = (folder_ / "out.npy").string()};
    const auto result = TokenizeHuggingFace(job, (folder_ / "tokenizer.json").string());
    if (!result.ok()) return result.status();
    return Values(job.output);
  };
  // A column that a row does not have is null.
  const std::string rows = R"({"text": null, "prompt": "ab", "completion": "cd"})"
                           "\n"
                           R"({"prompt": "", "completion": "e"})"
                           "\n"
                           R"({"prompt": "", "completion": "f"})"
                           "\n";
  Write("a.parquet", rows);
  EXPECT_EQ(*run("a.parquet"), "^abcd|^e|^f|");
  fs::create_directories(folder_ / "set/train");
  Write("set/train/data-0.arrow", rows);
  Write("set/train/state.json", R"({"_data_files": [{"filename": "data-0.arrow"}]})");
  EXPECT_EQ(*run("set/train"), "^abcd|^e|^f|");
  EXPECT_THAT(run("set").status().message(), HasSubstr("name one of its parts: train"));
  Write("set/train/state.json", R"({"_data_files": [{"filename": "../data-0.arrow"}]})");
  EXPECT_THAT(run("set/train").status().message(), HasSubstr("files outside the folder"));
  Write("set/train/state.json", R"({"_data_files": 5})");
  EXPECT_THAT(run("set/train").status().message(), HasSubstr("does not list the files"));
  Write("b.parquet", rows + "bad\n");
  EXPECT_THAT(run("b.parquet").status().message(), HasSubstr("b.parquet: cannot be read: damaged"));
  Write("c.parquet", R"({"prompt": "a"})"
                     "\n");
  EXPECT_THAT(run("c.parquet").status().message(), HasSubstr("c.parquet: row 1: has no text"));
  unsetenv("PYTHONPATH");
}

TEST_F(TokenizeExamplesTest, WhatIsNoPairIsTold) {
  EXPECT_THAT(Problem(Preference("p", "a", "b")), HasSubstr("jsonl:1: a sample holds whole pairs"));
  EXPECT_THAT(Problem(R"({"chosen": "a", "rejected": "b"})"), HasSubstr("need a 'prompt'"));
  EXPECT_THAT(Problem(R"({"prompt": "p", "chosen": "a", "rejected": []})"),
              HasSubstr("must all be texts"));
  EXPECT_THAT(Problem(Preference("p", "a", "b") + Completion("a", "b"), {.sequence_length = 20}),
              HasSubstr("jsonl:2: the inputs have pairs and examples"));
}

TEST_F(TokenizeExamplesTest, MoreSamplesThanStayOpenAreStillWhole) {
  std::string lines;
  for (int i = 0; i < 600; ++i) lines += Completion("", "123456");
  const auto made = Run(lines, {.sequence_length = 10});
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_EQ(made->tokens.size(), 6001u);
  for (size_t i = 0; i < 600; ++i) EXPECT_EQ(made->tokens.substr(10 * i, 10), "^123456|||");
}

TEST_F(TokenizeExamplesTest, ValidationHasItsOwnMask) {
  std::string lines;
  for (int i = 0; i < 8; ++i) lines += Completion("", "1");
  const auto made = Run(lines, {.validation_output = (folder_ / "v.npy").string(),
                                .validation_fraction = 0.25,
                                .sequence_length = 3});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->tokens, "^1|^1|^1|^1|^1|^1||");
  EXPECT_EQ(Values((folder_ / "v.npy").string()), "^1|^1||");
  EXPECT_EQ(Values((folder_ / "v.mask.npy").string()), std::string({0, 1, 1, 0, 1, 1, 0}));
}

TEST_F(TokenizeExamplesTest, WhatIsNoExampleIsToldWithItsLine) {
  const std::string good = Chat({"user", "Q", "assistant", "yes"});
  EXPECT_THAT(Problem(good + R"({"messages": []})"),
              HasSubstr("examples.jsonl:2: 'messages' must be a list"));
  EXPECT_THAT(Problem(R"({"messages": ["x"]})"), HasSubstr("with 'role' and 'content'"));
  EXPECT_THAT(
      Problem(Chat({"none", "x"})),
      HasSubstr("examples.jsonl:1: the tokenizer's chat template cannot render this: unkn"));
  EXPECT_THAT(Problem(R"({"prompt": "a", "completion": 1})"), HasSubstr("must all be texts"));
  EXPECT_THAT(Problem(R"({"prompt": "a"})"), HasSubstr("has no text 'text' but prompt"));
  EXPECT_THAT(Problem(Completion("a|b", "c")), HasSubstr("has the token '|' within"));
  EXPECT_THAT(Problem(Completion("a", "\\ud83d")), HasSubstr("not Unicode"));
  EXPECT_THAT(Problem(good + R"({"text": "x"})"), HasSubstr("make a file of each"));
  EXPECT_THAT(Problem(Chat({"user", "Q"})), HasSubstr("no example has a target"));
  EXPECT_THAT(Problem(good, {.separator = "none"}), HasSubstr("has no token 'none'"));
  EXPECT_THAT(Problem(R"({"text": "x"})", {.sequence_length = 8}),
              HasSubstr("--sequence-length is for examples"));
  Write("chats.json", good);
  setenv("PYTHONPATH", folder_.c_str(), 1);
  const auto unnamed = TokenizeHuggingFace(
      {.inputs = {(folder_ / "chats.json").string()}, .output = (folder_ / "out.npy").string()},
      folder_.string());
  unsetenv("PYTHONPATH");
  EXPECT_THAT(unnamed.status().message(), HasSubstr("name it .jsonl"));
  Write("transformers.py", "raise ImportError()");
  EXPECT_THAT(Problem(good), HasSubstr("a chat template needs the Python package `transformers`"));
  for (const auto& entry : fs::directory_iterator(folder_)) {
    EXPECT_THAT(entry.path().string(), Not(HasSubstr(".npy")));
  }
}

}  // namespace
}  // namespace milepost::client
