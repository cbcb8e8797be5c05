#include "common/spec/parse.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/spec/spec_fixture.h"
#include "common/spec/to_yaml.h"
#include "common/spec/validate.h"
#include "milepost/v1/job_spec.pb.h"
#include "milepost/v1/worker.pb.h"

namespace milepost {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// The message of the failure; "OK" when there is none.
std::string Failure(absl::string_view yaml) {
  const auto spec = ParseJobSpecYaml(yaml, "f.yaml");
  EXPECT_TRUE(spec.ok() || absl::IsInvalidArgument(spec.status()));
  return spec.ok() ? "OK" : std::string(spec.status().message());
}

class TempDir {
 public:
  TempDir() {
    std::string name = (fs::temp_directory_path() / "milepost_spec_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempDir() { fs::remove_all(path_); }
  std::string Write(const std::string& name, absl::string_view text) const {
    const fs::path path = path_ / name;
    std::ofstream(path) << text;
    return path.string();
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST(ParseTest, ReadsEveryKindOfValue) {
  const auto spec = ParseJobSpecYaml(R"(
# a comment
name: "quoted name"
model: {gpt2: {layers: 2, dropout: 0.25}}
train:
  seed: 18446744073709551615
  precision: fp32
  optimizer: {type: adamw, lr: 6e-4}
  schedule: {type: linear}
  on_nonfinite: fail
resources: {ranks: 3}
)",
                                     "f.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name(), "quoted name");
  EXPECT_EQ(spec->model().gpt2().layers(), 2);
  EXPECT_EQ(spec->model().gpt2().dropout(), 0.25);
  EXPECT_EQ(spec->train().seed(), 18446744073709551615u);
  EXPECT_EQ(spec->train().precision(), v1::PRECISION_FP32);
  EXPECT_EQ(spec->train().optimizer().type(), v1::OptimizerSpec::TYPE_ADAMW);
  EXPECT_EQ(spec->train().optimizer().lr(), 6e-4);
  EXPECT_EQ(spec->train().schedule().type(), v1::ScheduleSpec::TYPE_LINEAR);
  EXPECT_EQ(spec->train().on_nonfinite(), v1::ON_NONFINITE_FAIL);
  EXPECT_EQ(spec->resources().ranks(), 3);
  EXPECT_FALSE(spec->train().optimizer().has_beta1());
}

TEST(ParseTest, RecordsTheLineOfEachField) {
  FieldLines lines;
  ASSERT_TRUE(ParseJobSpecYaml(kSpecYaml, "f.yaml", &lines).ok());
  EXPECT_EQ(lines["name"], 1);
  EXPECT_EQ(lines["model.gpt2.layers"], 4);
  EXPECT_EQ(lines["train.batch"], 14);
  EXPECT_EQ(lines["train.batch.micro"], 16);
}

TEST(ParseTest, SaysWhatIsWrongAndWhere) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"model:\n  gpt2:\n    layer: 2",
       "f.yaml:3: model.gpt2.layer: unknown field; did you mean 'layers'?"},
      {"modle: {}", "f.yaml:1: modle: unknown field; did you mean 'model'?"},
      {"train: {zzz: 1}",
       "f.yaml:1: train.zzz: unknown field; expected one of steps, seed, precision, batch, zero, "
       "optimizer, schedule, clip_norm, on_nonfinite, validation, recompute, recompute_budget, "
       "init_from, loss_scale, grad_reduce, offload, max_skipped_steps, determinism, "
       "grad_dtype, memory, dpo, ema, powersgd, sync"},
      {"train: {steps: many}", "f.yaml:1: train.steps: expected a whole number, got 'many'"},
      {"train: {steps: \"10\"}",
       "f.yaml:1: train.steps: expected a whole number, got the text \"10\""},
      {"train: {steps: 1.5}", "f.yaml:1: train.steps: expected a whole number, got '1.5'"},
      {"train: {steps: 1e6}",
       "f.yaml:1: train.steps: expected a whole number in digits only, got '1e6'"},
      {"train: {steps: [1]}", "f.yaml:1: train.steps: expected a whole number, got a list"},
      {"train: {steps: }", "f.yaml:1: train.steps: expected a whole number, got nothing"},
      {"train: {seed: -1}",
       "f.yaml:1: train.seed: expected a whole number from 0 to 18446744073709551615, got '-1'"},
      {"resources: {ranks: 3000000000}",
       "f.yaml:1: resources.ranks: expected a whole number from -2147483648 to 2147483647, got "
       "'3000000000'"},
      {"train: {steps: 99999999999999999999}",
       "f.yaml:1: train.steps: expected a whole number from -9223372036854775808 to "
       "9223372036854775807, got '99999999999999999999'"},
      {"train: {clip_norm: .inf}", "f.yaml:1: train.clip_norm: expected a number, got '.inf'"},
      {"train: {clip_norm: inf}", "f.yaml:1: train.clip_norm: expected a number, got 'inf'"},
      {"train: {clip_norm: nan}", "f.yaml:1: train.clip_norm: expected a number, got 'nan'"},
      {"train: {clip_norm: big}", "f.yaml:1: train.clip_norm: expected a number, got 'big'"},
      {"train: {precision: bf61}",
       "f.yaml:1: train.precision: expected one of fp32, bf16, fp16, fp8, got 'bf61'; did you mean "
       "'bf16'?"},
      {"train: {precision: PRECISION_BF16}",
       "f.yaml:1: train.precision: expected one of fp32, bf16, fp16, fp8, got 'PRECISION_BF16'"},
      {"train: {precision: unspecified}",
       "f.yaml:1: train.precision: expected one of fp32, bf16, fp16, fp8, got 'unspecified'"},
      {"resources: {device: gpu}",
       "f.yaml:1: resources.device: expected one of cpu, cuda, got 'gpu'; did you mean 'cuda'?"},
      {"name: {a: 1}", "f.yaml:1: name: expected text, got a mapping"},
      // A value that is missing is missing where its key is, wherever the next token is.
      {"train:\n  steps:\n  seed: 1\n",
       "f.yaml:2: train.steps: expected a whole number, got nothing"},
      {"train:\n  steps:\n\n\n", "f.yaml:2: train.steps: expected a whole number, got nothing"},
      {"train: 3", "f.yaml:1: train: expected a mapping of fields, got '3'"},
      {"train:", "f.yaml:1: train: expected a mapping of fields, got nothing"},
      {"- a\n- b", "f.yaml:1: the document: expected a mapping of fields, got a list"},
      {"", "f.yaml:1: the document: expected a mapping of fields, got nothing"},
      {"name: a\n\nname: b", "f.yaml:3: name: given twice: keep one"},
      {"? [a]\n: b", "f.yaml:1: expected a field name, got a list"},
      {"name: &x a", "f.yaml:1: anchors (&name) are not supported: write the value out"},
      {"name: a\ndata: *x", "f.yaml:2: not valid YAML: the referenced anchor is not defined"},
      {"name: !!python/object a",
       "f.yaml:1: the tag tag:yaml.org,2002:python/object is not supported: remove it"},
      {"name: a\n---\nname: b", "f.yaml:1: several YAML documents in one file: keep one"},
      {"name: a\n bad: [", "f.yaml:2: not valid YAML: illegal map value"},
      {"data:\n\ttrain: a",
       "f.yaml:2: not valid YAML: illegal map value (line 2 is indented with a tab: use spaces)"},
      {"name: 'a\x01\nb'\ntrain: {steps: 'a\x02'}",
       "f.yaml:3: train.steps: expected a whole number, got the text \"a?\""},
  };
  for (const auto& [yaml, message] : cases) EXPECT_EQ(Failure(yaml), message) << yaml;
}

TEST(ParseTest, RefusesTwoMembersOfAOneof) {
  v1::WorkerMessage message;
  const absl::Status status =
      ParseYamlMessage("heartbeat: {}\nleaving: {reason: x}", "f", &message);
  EXPECT_EQ(status.message(),
            "f:2: leaving: only one of message can be given, and heartbeat is: keep one");
}

TEST(ParseTest, ListsSeveralProblemsButNotAll) {
  std::string yaml;
  for (int i = 0; i < 14; ++i) absl::StrAppend(&yaml, "unknown_", i, ": 1\n");
  const std::vector<std::string> lines = absl::StrSplit(Failure(yaml), '\n');
  ASSERT_EQ(lines.size(), 11u);
  EXPECT_THAT(lines[0], HasSubstr("f.yaml:1: unknown_0: unknown field"));
  EXPECT_THAT(lines[9], HasSubstr("f.yaml:10: unknown_9: unknown field"));
  EXPECT_EQ(lines[10], "f.yaml: and 4 more");
}

TEST(ParseTest, RefusesHostileText) {
  EXPECT_THAT(Failure(std::string(kMaxSpecBytes + 1, '#')),
              HasSubstr("a spec has at most 1048576"));
  EXPECT_THAT(Failure(std::string("name: a\0b", 9)), HasSubstr("zero byte"));
  // Cut off, too long for what it says, half of a surrogate pair, beyond the last character.
  for (const char* bytes : {"\xe2\x82", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
                            "\xf4\x90\x80\x80", "\xff", "\x80", "\xc3("}) {
    EXPECT_THAT(Failure(absl::StrCat("# a\nname: ", bytes)), HasSubstr(":2: not UTF-8 text"));
  }
  EXPECT_EQ(ParseJobSpecYaml("name: \xc3\xa9\xe2\x82\xac\xf0\x9f\x9a\x80", "f.yaml")->name(),
            "\xc3\xa9\xe2\x82\xac\xf0\x9f\x9a\x80");
  EXPECT_THAT(Failure(std::string(300'000, '[')), HasSubstr("nested deeper than 32 levels"));
  EXPECT_THAT(Failure(std::string(300'000, '{')), HasSubstr("nested deeper than 32 levels"));
  std::string nested;
  for (int i = 0; i < 200; ++i) absl::StrAppend(&nested, std::string(i, ' '), "a:\n");
  EXPECT_THAT(Failure(nested), HasSubstr("f.yaml:32: nested deeper than 32 levels"));
  std::string many = "name: [";
  for (int i = 0; i < 20'000; ++i) many += "1,";
  EXPECT_THAT(Failure(many + "1]"), HasSubstr("more than 10000 values"));
  std::string bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n";
  for (char c = 'b'; c < 'j'; ++c) {
    const std::string previous(1, c - 1);
    absl::StrAppend(&bomb, std::string(1, c), ": &", std::string(1, c), " [*", previous, ",*",
                    previous, ",*", previous, "]\n");
  }
  EXPECT_THAT(Failure(bomb), HasSubstr("anchors"));
}

// Damaged text never crashes and is never accepted with a wrong meaning that printing would hide.
TEST(ParseTest, SurvivesRandomDamage) {
  std::mt19937 random(20240607);
  const std::string alphabet = "{}[]:,-#&*!|>'\"%@`~?\n \t\\0a9.e\x01\xff\xc3";
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string yaml = kSpecYaml;
    for (int edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % yaml.size();
      switch (random() % 4) {
        case 0:
          yaml[at] = alphabet[random() % alphabet.size()];
          break;
        case 1:
          yaml.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        case 2:
          yaml.erase(at, 1 + random() % 8);
          break;
        default:
          yaml.insert(at, yaml.substr(random() % yaml.size(), random() % 40));
      }
      if (yaml.empty()) yaml = "x";
    }
    auto spec = ParseJobSpecYaml(yaml, "f.yaml");
    if (!spec.ok()) {
      ASSERT_TRUE(absl::StartsWith(spec.status().message(), "f.yaml:")) << spec.status();
      continue;
    }
    ++accepted;
    NormalizeJobSpec(&*spec);
    CheckJobSpec(*spec);
  }
  EXPECT_GT(accepted, 100);
}

TEST(ParseTest, PrintedSpecsReadBackTheSame) {
  std::mt19937_64 random(7);
  const std::vector<std::string> names = {
      "a",        "on",       "null", "1e3", "a: b", "#x",   "",     " padded ", "line\nbreak",
      "quote\"s", "\xc3\xa9", "-",    "'",   "~",    "0x10", "a\\b", "true",     ".5"};
  for (int round = 0; round < 500; ++round) {
    v1::JobSpec spec;
    ASSERT_TRUE(ParseJobSpecYaml(kSpecYaml, "f.yaml").ok());
    spec.set_name(names[random() % names.size()]);
    spec.mutable_data()->set_train(names[random() % names.size()]);
    spec.mutable_train()->set_seed(random());
    spec.mutable_train()->mutable_optimizer()->set_lr(std::ldexp(random(), -(random() % 120)));
    spec.mutable_train()->set_steps(static_cast<int64_t>(random()));
    spec.mutable_train()->set_precision(random() % 2 ? v1::PRECISION_BF16 : v1::PRECISION_FP32);
    spec.mutable_model()->mutable_gpt2();
    const std::string yaml = MessageToYaml(spec);
    const auto again = ParseJobSpecYaml(yaml, "f.yaml");
    ASSERT_TRUE(again.ok()) << again.status() << "\n" << yaml;
    ASSERT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*again, spec)) << yaml;
  }
}

TEST(ParseTest, TruthIsTrueOrFalse) {
  const auto spec = ParseJobSpecYaml("model: {llama: {tied: true, qkv_bias: false}}", "f.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->model().llama().tied());
  EXPECT_TRUE(spec->model().llama().has_qkv_bias());
  EXPECT_FALSE(spec->model().llama().qkv_bias());
  for (const char* other : {"yes", "'true'", "1", "True", "[]"}) {
    const auto bad =
        ParseJobSpecYaml(absl::StrCat("model: {llama: {tied: ", other, "}}"), "f.yaml");
    EXPECT_THAT(bad.status().message(), ::testing::HasSubstr("expected true or false")) << other;
  }
}

TEST(ParseTest, ReadsAndWritesListsOfNumbers) {
  const auto spec = ParseJobSpecYaml("data: {masking: {special_tokens: [101, 102]}}", "f.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_EQ(spec->data().masking().special_tokens_size(), 2);
  EXPECT_EQ(spec->data().masking().special_tokens(1), 102);
  const auto again = ParseJobSpecYaml(MessageToYaml(*spec), "f.yaml");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->data().masking().special_tokens(0), 101);
  EXPECT_EQ(
      ParseJobSpecYaml("data: {masking: {special_tokens: [1, x]}}", "f.yaml").status().message(),
      "f.yaml:1: data.masking.special_tokens[1]: expected a whole number, got 'x'");
}

TEST(ParseTest, ListsOfMappings) {
  FieldLines lines;
  const auto spec = ParseJobSpecYaml(
      "data:\n  mixture:\n    - {path: a.npy, weight: 2}\n    - path: b.bin\n", "f.yaml", &lines);
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_EQ(spec->data().mixture_size(), 2);
  EXPECT_EQ(spec->data().mixture(0).weight(), 2);
  EXPECT_EQ(spec->data().mixture(1).path(), "b.bin");
  EXPECT_FALSE(spec->data().mixture(1).has_weight());
  EXPECT_EQ(lines["data.mixture[1].path"], 4);
  const std::pair<const char*, const char*> cases[] = {
      {"data: {mixture: a.npy}", "f.yaml:1: data.mixture: expected a list, got 'a.npy'"},
      {"data: {mixture: [a.npy]}",
       "f.yaml:1: data.mixture[0]: expected a mapping of fields, got 'a.npy'"},
      {"data: {mixture: [{path: a, wight: 1}]}",
       "f.yaml:1: data.mixture[0].wight: unknown field; did you mean 'weight'?"},
      {"data: {train: [a]}", "f.yaml:1: data.train: expected text, got a list"},
  };
  for (const auto& [yaml, message] : cases) {
    EXPECT_EQ(ParseJobSpecYaml(yaml, "f.yaml").status().message(), message);
  }
}

TEST(ReadJobSpecFileTest, FillsInNameAndAbsolutePaths) {
  const TempDir dir;
  const std::string path =
      dir.Write("my spec.yaml",
                "data: {train: ../d/a.npy, validation: b.npy, mixture: [{path: m.bin}],\n"
                "       labels: [{head: h, train: l.npy}]}\n"
                "train: {init_from: ../hf/}\n");
  const auto spec = ReadJobSpecFile(path);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name(), "my-spec");
  EXPECT_EQ(spec->data().train(), (dir.path().parent_path() / "d/a.npy").string());
  EXPECT_EQ(spec->data().validation(), (dir.path() / "b.npy").string());
  EXPECT_EQ(spec->data().mixture(0).path(), (dir.path() / "m.bin").string());
  EXPECT_EQ(spec->data().labels(0).train(), (dir.path() / "l.npy").string());
  EXPECT_EQ(spec->data().labels(0).validation(), "");
  EXPECT_EQ(spec->train().init_from(), (dir.path().parent_path() / "hf/").string());
}

TEST(ReadJobSpecFileTest, TakesStandardInput) {
  const TempDir dir;
  const std::string path = dir.Write("input", "data: {train: a.npy}\n");
  ASSERT_NE(std::freopen(path.c_str(), "r", stdin), nullptr);
  const auto spec = ReadJobSpecFile("-");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name(), "stdin");
  EXPECT_EQ(spec->data().train(), (std::filesystem::current_path() / "a.npy").string());
  const std::string large = dir.Write("large", std::string((1 << 20) + 1, '#'));
  ASSERT_NE(std::freopen(large.c_str(), "r", stdin), nullptr);
  EXPECT_THAT(ReadJobSpecFile("-").status().message(), HasSubstr("bytes on standard input"));
}

TEST(ReadJobSpecFileTest, ExplainsWhatCannotBeRead) {
  const TempDir dir;
  const auto missing = ReadJobSpecFile((dir.path() / "no.yaml").string());
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(missing.status().message(), HasSubstr("no.yaml cannot be read: No such file"));
  const auto folder = ReadJobSpecFile(dir.path().string());
  EXPECT_EQ(folder.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(LoadJobSpecTest, NormalisesAndPointsAtBrokenRules) {
  const TempDir dir;
  const auto good = LoadJobSpec(dir.Write("good.yaml", kSpecYaml));
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(good->train().batch().accumulation(), 2);

  const std::string path =
      dir.Write("bad.yaml",
                absl::StrReplaceAll(kSpecYaml, {{"heads: 4", "heads: 5"}, {"    micro: 4\n", ""}}));
  const auto bad = LoadJobSpec(path);
  EXPECT_EQ(
      bad.status().message(),
      absl::StrCat(path, ":6: model.gpt2.heads: must divide the width: 64 is not a multiple of 5\n",
                   path,
                   ":14: train.batch: give two of global, micro and accumulation; the third "
                   "is derived"));
}

}  // namespace
}  // namespace milepost
