#include "client/cli/hugging_face_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/cli/job_arguments.h"

namespace milepost::client {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr char kConfig[] = R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
  "max_position_embeddings": 256, "num_attention_heads": 4, "num_hidden_layers": 2,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "vocab_size": 300})";

class HuggingFaceModelTest : public ::testing::Test {
 protected:
  HuggingFaceModelTest() {
    std::string name = (fs::temp_directory_path() / "milepost_hf_XXXXXX").string();
    folder_ = mkdtemp(name.data());
    fs::create_directories(folder_ / "tiny");
    Write("tiny/config.json", kConfig);
  }
  ~HuggingFaceModelTest() override { fs::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }

  // Of a spec with this model.
  absl::StatusOr<v1::JobSpec> Load(const std::string& model,
                                   const std::vector<std::string>& overrides = {},
                                   const std::string& more = "") const {
    Write("job.yaml", absl::StrCat("model: ", model, R"(
data: {train: train.npy, sequence_length: 32}
train: {steps: 1, batch: {global: 1, micro: 1}, precision: fp32)",
                                   more, "}\n"));
    return LoadSpec(
        {.path = (folder_ / "job.yaml").string(), .base = std::nullopt, .overrides = overrides});
  }
  std::string Problem(const std::string& model) const {
    return std::string(Load(model).status().message());
  }

  fs::path folder_;
};

TEST_F(HuggingFaceModelTest, TheFoldersModelIsTheSpecs) {
  const auto spec = Load("{hugging_face: tiny}");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->model().hugging_face(), "");
  EXPECT_EQ(spec->model().llama().width(), 64);
  EXPECT_EQ(spec->model().llama().kv_heads(), 2);
  EXPECT_EQ(spec->model().llama().context(), 256);
  EXPECT_EQ(spec->model().llama().head_dim(), 16);
  // No weights are there: it begins with random ones.
  EXPECT_EQ(spec->train().init_from(), "");
}

TEST_F(HuggingFaceModelTest, AdaptersAreNoModel) {
  fs::create_directories(folder_ / "adapters");
  Write("adapters/adapter_config.json", "{}");
  EXPECT_THAT(Problem("{hugging_face: adapters}"),
              HasSubstr("adapters holds adapters (adapter_config.json), not a model: name the "
                        "folder of the model that they adapt"));
  // As PEFT's users save both into one folder.
  Write("tiny/adapter_config.json", "{}");
  EXPECT_TRUE(Load("{hugging_face: tiny}").ok());
}

TEST_F(HuggingFaceModelTest, ItsWeightsAreTheFirst) {
  Write("tiny/model.safetensors", "");
  EXPECT_EQ(Load("{hugging_face: tiny}")->train().init_from(), folder_ / "tiny");
  EXPECT_EQ(Load("{hugging_face: tiny}", {}, ", init_from: other")->train().init_from(),
            folder_ / "other");
  EXPECT_EQ(Load("{llama: {layers: 1, width: 64, heads: 4, hidden: 64, context: 64, "
                 "vocabulary: 300}}")
                ->train()
                .init_from(),
            "");
}

TEST_F(HuggingFaceModelTest, WhatTheSpecGivesCounts) {
  auto spec = Load("{hugging_face: tiny, llama: {context: 64, tied: true}}");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->model().llama().context(), 64);
  EXPECT_TRUE(spec->model().llama().tied());
  EXPECT_EQ(spec->model().llama().width(), 64);
  // Also by --set, of the model and of one of its fields.
  spec =
      Load("{gpt2: {layers: 1}}", {"model.gpt2=null", "model.llama.layers=3",
                                   absl::StrCat("model.hugging_face=", folder_.string(), "/tiny")});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->model().llama().layers(), 3);
  EXPECT_EQ(spec->model().llama().width(), 64);
}

TEST_F(HuggingFaceModelTest, WhatCannotBeIsToldWithItsLine) {
  const std::string place = (folder_ / "job.yaml").string() + ":1: model.hugging_face: ";
  EXPECT_THAT(Problem("{hugging_face: none}"), HasSubstr(place));
  EXPECT_THAT(Problem("{hugging_face: none}"), HasSubstr("none/config.json"));
  EXPECT_THAT(
      Problem("{hugging_face: tiny, gpt2: {layers: 2}}"),
      HasSubstr(place + "the folder's model is model.llama, and the spec gives model.gpt2"));
  Write("tiny/pytorch_model.bin", "");
  EXPECT_THAT(Problem("{hugging_face: tiny}"), HasSubstr("pytorch_model.bin is not read"));
  Write("tiny/config.json", R"({"model_type": "mamba"})");
  EXPECT_THAT(Problem("{hugging_face: tiny}"),
              HasSubstr("tiny/config.json: model_type is \"mamba\", which is not supported"));
}

TEST_F(HuggingFaceModelTest, AnArrayHasItToo) {
  Write("job.yaml", "model: {hugging_face: tiny}\ntrain: {steps: 1}\n");
  const auto spec =
      ReadSpec({.path = (folder_ / "job.yaml").string(), .base = std::nullopt, .overrides = {}});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->model().llama().layers(), 2);
}

}  // namespace
}  // namespace milepost::client
