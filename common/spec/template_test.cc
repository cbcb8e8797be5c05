// Specs over templates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "common/spec/parse.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kTemplate[] = R"(model:
  gpt2: {layers: 2, width: 64, heads: 4, context: 32, vocabulary: 256, dropout: 0.1}
data:
  train: /data/train.npy
train:
  steps: 100
  batch: {global: 8, micro: 4}
  optimizer:
    lr: 3e-4
    beta2: 0.95
checkpoint:
  keep_last: 4
)";

class TemplateTest : public ::testing::Test {
 protected:
  TemplateTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "milepost-template-XXXXXX");
    dir_ = mkdtemp(pattern.data());
  }
  ~TemplateTest() override { std::filesystem::remove_all(dir_); }
  std::string Write(const std::string& text) {
    std::ofstream(dir_ + "/mine.yaml") << text;
    return dir_ + "/mine.yaml";
  }
  absl::StatusOr<v1::JobSpec> Load(const std::string& text, const std::string& base = kTemplate) {
    return LoadJobSpecOver({"gpt2", base}, Write(text));
  }
  std::string Problem(const std::string& text, const std::string& base = kTemplate) {
    const auto spec = Load(text, base);
    EXPECT_FALSE(spec.ok());
    return std::string(spec.status().message());
  }

  std::string dir_;
};

TEST_F(TemplateTest, TheFileCountsFieldByField) {
  const auto spec = Load(
      "train:\n  steps: 500\n  optimizer: {lr: 1e-3}\ndata: {validation: val.npy}\n"
      "model: {gpt2: {dropout: 0}}\n");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name(), "mine");
  EXPECT_EQ(spec->train().steps(), 500);
  EXPECT_EQ(spec->train().batch().global(), 8);
  EXPECT_EQ(spec->train().optimizer().lr(), 1e-3);
  EXPECT_EQ(spec->model().gpt2().dropout(), 0);  // what is not there in a message counts too
  EXPECT_EQ(spec->model().gpt2().width(), 64);
  EXPECT_EQ(spec->data().train(), "/data/train.npy");
  EXPECT_EQ(spec->data().validation(), dir_ + "/val.npy");
  EXPECT_EQ(spec->checkpoint().keep_last(), 4);
}

TEST_F(TemplateTest, ListsAreReplacedAsAWhole) {
  const auto spec = ReadJobSpecOver(
      {"mix", "data:\n  mixture:\n  - {path: /a.npy, weight: 1}\n  - {path: /b.npy, weight: 2}\n"},
      Write("data:\n  mixture:\n  - {path: /c.npy, weight: 1}\n"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_EQ(spec->data().mixture_size(), 1);
  EXPECT_EQ(spec->data().mixture(0).path(), "/c.npy");
}

TEST_F(TemplateTest, MayStandAlone) {
  const auto spec = LoadJobSpecOver({"gpt2", kTemplate}, "");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name(), "gpt2");
  EXPECT_EQ(spec->train().steps(), 100);
}

TEST_F(TemplateTest, SaysWhichOfTheTwoIsWrong) {
  EXPECT_THAT(Problem("train:\n  stepz: 1\n"), HasSubstr("mine.yaml:2: train.stepz: unknown"));
  EXPECT_THAT(Problem("train: {steps: 1}\n", "train:\n  steps: many\n"),
              HasSubstr("template gpt2:2: train.steps"));
  // A rule that is broken: of the text that gives the field, however deep the other goes.
  EXPECT_THAT(Problem("train:\n  steps: -1\n"), HasSubstr("mine.yaml:2: train.steps"));
  std::string base = kTemplate;
  base.replace(base.find("keep_last: 4"), 12, "keep_last: 0");
  EXPECT_THAT(Problem("checkpoint: {every: 5}\n", base),
              HasSubstr("template gpt2:12: checkpoint.keep_last"));
  EXPECT_THAT(Problem("model:\n  llama: {layers: 1}\n"),
              AllOf(HasSubstr("mine.yaml over template gpt2:2: model.llama"), HasSubstr("gpt2")));
}

TEST_F(TemplateTest, IsCheckedByItself) {
  EXPECT_TRUE(CheckSpecTemplate(kTemplate, "t").ok());
  EXPECT_TRUE(CheckSpecTemplate("train: {steps: 5}\n", "t").ok());
  const auto problem = [](const std::string& text) {
    const absl::Status status = CheckSpecTemplate(text, "t.yaml");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    return std::string(status.message());
  };
  EXPECT_THAT(problem(""), HasSubstr("expected a mapping"));
  EXPECT_THAT(problem("train:\n  step: 5\n"), HasSubstr("t.yaml:2: train.step: unknown field"));
  EXPECT_THAT(problem("data:\n  train: a.npy\n"), HasSubstr("t.yaml:2: data.train: must begin"));
  EXPECT_THAT(problem("train:\n  init_from: w/\n"), HasSubstr("t.yaml:2: train.init_from"));
  EXPECT_THAT(problem("#" + std::string(kMaxTemplateBytes, 'x')), HasSubstr("at most 65536"));
}

}  // namespace
}  // namespace milepost
