#include "client/cli/fine_tuning.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/job_arguments.h"
#include "client/cli/tokenizer_stand_ins.h"
#include "common/spec/parse.h"
#include "common/spec/validate.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::client {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A spec as it is submitted, of a folder whose model it has been given.
v1::JobSpec SpecFrom(const TuningFacts& facts) {
  // Paths as they are in the folder "/".
  const std::string text = absl::StrReplaceAll(
      TuningSpec(facts), {{" train.", " /train."}, {" validation.", " /validation."}});
  auto spec = ParseJobSpecYaml(text, "spec.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status() << TuningSpec(facts);
  if (!spec.ok()) return {};
  v1::LlamaSpec& llama = *spec->mutable_model()->mutable_llama();
  llama.set_layers(2);
  llama.set_width(32);
  llama.set_heads(4);
  llama.set_kv_heads(4);
  llama.set_hidden(64);
  llama.set_context(4096);
  if (llama.vocabulary() == 0) llama.set_vocabulary(facts.vocabulary);
  spec->mutable_train()->set_init_from(spec->model().hugging_face());
  spec->mutable_model()->clear_hugging_face();
  NormalizeJobSpec(&*spec);
  EXPECT_THAT(CheckJobSpec(*spec), IsEmpty()) << TuningSpec(facts);
  return *std::move(spec);
}

TuningFacts Facts() {
  return {.name = "tiny-chats",
          .model = "/models/a \"b\"",
          .family = "llama",
          .vocabulary = 300,
          .sequence_length = 128,
          .tokens = {.train_tokens = 128 * 1000 + 1,
                     .validation_tokens = 128 * 50 + 1,
                     .vocabulary = 300,
                     .separator_id = 5,
                     .masks = true}};
}

TEST(TuningSpec, HasThreeEpochsAtUsualRates) {
  TuningFacts facts = Facts();
  v1::JobSpec spec = SpecFrom(facts);
  EXPECT_EQ(spec.train().init_from(), "/models/a \"b\"");
  EXPECT_EQ(spec.train().batch().global(), 32);
  EXPECT_EQ(spec.train().steps(), 94);  // 3000 samples
  EXPECT_EQ(spec.train().optimizer().lr(), 2e-5);
  EXPECT_EQ(spec.train().precision(), v1::PRECISION_FP32);
  EXPECT_EQ(spec.data().loss_mask().validation(), "/validation.mask.npy");
  EXPECT_EQ(spec.data().document_separator(), 5);
  EXPECT_EQ(spec.train().validation().every(), 9);
  EXPECT_TRUE(spec.checkpoint().keep_best());
  EXPECT_FALSE(spec.model().has_lora());
  facts.lora = true;
  facts.gpus = 3;
  spec = SpecFrom(facts);
  EXPECT_EQ(spec.train().optimizer().lr(), 2e-4);
  EXPECT_EQ(spec.model().lora().rank(), 16);
  EXPECT_EQ(spec.train().precision(), v1::PRECISION_BF16);
  EXPECT_EQ(spec.resources().ranks(), 3);
  EXPECT_EQ(spec.train().batch().global(), 30);
  EXPECT_FALSE(spec.model().lora().dora());
  facts.dora = true;
  EXPECT_TRUE(SpecFrom(facts).model().lora().dora());
}

TEST(TuningSpec, FollowsTheData) {
  TuningFacts facts = Facts();
  facts.tokens.vocabulary = 320;  // of the tokenizer
  EXPECT_EQ(SpecFrom(facts).model().llama().vocabulary(), 320);
  facts.tokens.pairs = facts.lora = true;
  EXPECT_EQ(SpecFrom(facts).train().steps(), 32);
  EXPECT_TRUE(SpecFrom(facts).train().has_dpo());
  // Texts, and hardly any.
  facts = Facts();
  facts.tokens = {.train_tokens = 129, .vocabulary = 10};
  const v1::JobSpec least = SpecFrom(facts);
  EXPECT_EQ(least.train().steps(), 3);
  EXPECT_EQ(least.train().batch().global(), 1);
  EXPECT_TRUE(least.data().validation().empty());
  EXPECT_FALSE(least.checkpoint().keep_best());
  EXPECT_FALSE(least.data().has_loss_mask());
}

class FineTuningTest : public ::testing::Test {
 protected:
  FineTuningTest() {
    std::string name = (fs::temp_directory_path() / "milepost_tuning_XXXXXX").string();
    folder_ = mkdtemp(name.data());
    fs::create_directory(folder_ / "tiny");
    Write("tokenizers.py", kTokenizersStandIn);
    Write("transformers.py", kTransformersStandIn);
    Write("tiny/tokenizer.json", "{}");
    Write("tiny/tokenizer_config.json", R"({"eos_token": {"content": "|"}})");
    Write("tiny/model.safetensors", "");
    Write("tiny/config.json", R"({"model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
      "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 64,
      "rms_norm_eps": 1e-5, "vocab_size": 300})");
    std::string chats;
    for (int i = 0; i < 200; ++i) {
      absl::StrAppend(&chats, R"({"messages": [{"role": "user", "content": "what"}, )",
                      R"({"role": "assistant", "content": "answer )", i, "\"}]}\n");
    }
    Write("chats.jsonl", chats);
    setenv("PYTHONPATH", folder_.c_str(), 1);
  }
  ~FineTuningTest() override {
    unsetenv("PYTHONPATH");
    fs::remove_all(folder_);
  }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  FineTuning Tuning() const {
    return {.model = Path("tiny"), .data = {Path("chats.jsonl")}, .folder = Path("out")};
  }

  fs::path folder_;
};

TEST_F(FineTuningTest, MakesAFolderThatRuns) {
  const auto path = PrepareFineTuning(Tuning());
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(*path, Path("out/spec.yaml"));
  const auto spec = LoadSpec({.path = *path});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->data().sequence_length(), 64);  // the model's context
  EXPECT_EQ(spec->data().train(), Path("out/train.npy"));
  EXPECT_EQ(spec->train().init_from(), Path("tiny"));
  EXPECT_EQ(spec->name(), "tiny-chats");
  for (const char* file :
       {"train.npy", "train.mask.npy", "validation.npy", "validation.mask.npy"}) {
    EXPECT_TRUE(fs::exists(folder_ / "out" / file)) << file;
  }
}

// What a user has changed in the spec stays.
TEST_F(FineTuningTest, IsMadeOnce) {
  ASSERT_TRUE(PrepareFineTuning(Tuning()).ok());
  Write("out/spec.yaml", "name: mine");
  ASSERT_TRUE(PrepareFineTuning(Tuning()).ok());
  std::ifstream file(Path("out/spec.yaml"));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "name: mine");
  FineTuning other = Tuning();
  fs::create_directory_symlink(folder_ / "tiny", folder_ / "by-another-name");
  other.model = Path("by-another-name");
  EXPECT_TRUE(PrepareFineTuning(other).ok());
  other.lora = true;
  EXPECT_EQ(PrepareFineTuning(other).status().code(), absl::StatusCode::kAlreadyExists);
  Write("tiny/tokenizer.json", "{ }");
  EXPECT_EQ(PrepareFineTuning(Tuning()).status().code(), absl::StatusCode::kAlreadyExists);
  Write("chats.jsonl", R"({"messages": []})");
  EXPECT_THAT(std::string(PrepareFineTuning(Tuning()).status().message()),
              HasSubstr("was made of another model, other data or other options"));
  fs::create_directories(Path("mine"));
  Write("mine/a", "a");
  other.folder = Path("mine");
  EXPECT_THAT(std::string(PrepareFineTuning(other).status().message()),
              HasSubstr("was not made by this command: name another folder with --out"));
}

TEST_F(FineTuningTest, TextsHaveNoMasks) {
  FineTuning tuning = Tuning();
  Write("book.txt", std::string(70, 'a'));
  tuning.data = {Path("book.txt")};
  const auto path = PrepareFineTuning(tuning);
  ASSERT_TRUE(path.ok()) << path.status();
  const auto spec = LoadSpec({.path = *path});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(spec->data().has_loss_mask());
  // A long line has no validation part of its own.
  Write("book.txt", std::string(9000, 'a'));
  tuning.folder = Path("line");
  EXPECT_TRUE(PrepareFineTuning(tuning).ok());
  EXPECT_FALSE(fs::exists(Path("line/validation.npy")));
  Write("book.txt", std::string(50, 'a'));
  tuning.folder = Path("longer");
  EXPECT_THAT(std::string(PrepareFineTuning(tuning).status().message()),
              HasSubstr("50 tokens are less than a sample, which has 64"));
  EXPECT_FALSE(fs::exists(Path("longer")));
}

TEST_F(FineTuningTest, LittleDataHaveNoValidation) {
  std::string chat = R"({"messages": [{"role": "user", "content": "what"}, )";
  absl::StrAppend(&chat, R"({"role": "assistant", "content": ")", std::string(50, 'a'), "\"}]}\n");
  Write("chats.jsonl", chat);
  const auto path = PrepareFineTuning(Tuning());
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_FALSE(fs::exists(Path("out/validation.npy")));
  const auto spec = LoadSpec({.path = *path});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->data().validation().empty());
}

TEST_F(FineTuningTest, SaysWhatIsMissing) {
  FineTuning tuning = Tuning();
  tuning.data = {Path("none.jsonl")};
  EXPECT_THAT(std::string(PrepareFineTuning(tuning).status().message()), HasSubstr("--data: "));
  tuning = Tuning();
  tuning.sequence_length = 65;
  EXPECT_THAT(std::string(PrepareFineTuning(tuning).status().message()),
              HasSubstr("--sequence-length: 65 is more than the model's context, 64"));
  fs::remove(Path("tiny/model.safetensors"));
  EXPECT_THAT(std::string(PrepareFineTuning(Tuning()).status().message()),
              HasSubstr("has no weights"));
  fs::remove(Path("tiny/tokenizer.json"));
  EXPECT_THAT(std::string(PrepareFineTuning(Tuning()).status().message()),
              HasSubstr("has no tokenizer"));
  fs::remove(Path("tiny/config.json"));
  EXPECT_THAT(std::string(PrepareFineTuning(Tuning()).status().message()),
              HasSubstr("config.json"));
  EXPECT_FALSE(fs::exists(Path("out")));
}

TEST_F(FineTuningTest, ExpertsAreTrainedWholeAndOnCpus) {
  Write("tiny/config.json", R"({"model_type": "mixtral", "hidden_size": 32, "intermediate_size": 64,
      "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
      "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 64,
      "rms_norm_eps": 1e-5, "vocab_size": 300})");
  FineTuning tuning = Tuning();
  tuning.lora = true;
  EXPECT_THAT(std::string(PrepareFineTuning(tuning).status().message()),
              HasSubstr("--lora: adapters are not for a model with experts"));
  const auto path = PrepareFineTuning(Tuning());
  ASSERT_TRUE(path.ok()) << path.status();
  const auto spec = LoadSpec({.path = *path});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->resources().device(), v1::DEVICE_KIND_CPU);
}

}  // namespace
}  // namespace milepost::client
