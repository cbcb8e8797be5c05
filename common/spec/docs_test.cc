// docs/use/job-spec.md and the examples against the proto. Runs in the source folder.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/spec/parse.h"
#include "common/spec/to_yaml.h"
#include "common/spec/validate.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// "train.batch.micro" of every field, and its descriptor.
void Collect(const google::protobuf::Descriptor& type, const std::string& prefix,
             std::map<std::string, const google::protobuf::FieldDescriptor*>* fields) {
  for (int i = 0; i < type.field_count(); ++i) {
    const std::string path = prefix + type.field(i)->name();
    (*fields)[path] = type.field(i);
    // A map's names are the user's.
    if (type.field(i)->message_type() != nullptr && !type.field(i)->is_map()) {
      Collect(*type.field(i)->message_type(), path + ".", fields);
    }
  }
}

TEST(JobSpecDocTest, HasARowForEveryFieldAndNoOther) {
  std::map<std::string, const google::protobuf::FieldDescriptor*> fields;
  Collect(*v1::JobSpec::descriptor(), "", &fields);
  ASSERT_GT(fields.size(), 40u);
  const std::string text = ReadText("docs/use/job-spec.md");
  std::map<std::string, std::string> rows;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, "| `")) continue;
    const std::vector<absl::string_view> parts = absl::StrSplit(line, '`');
    EXPECT_TRUE(rows.emplace(std::string(parts[1]), std::string(line)).second) << line;
  }
  for (const auto& [path, field] : fields) {
    ASSERT_EQ(rows.count(path), 1u) << "docs/use/job-spec.md has no row for " << path;
    if (field->enum_type() == nullptr) continue;
    for (int i = 1; i < field->enum_type()->value_count(); ++i) {
      const std::string value = EnumYamlName(*field->enum_type()->value(i));
      EXPECT_THAT(rows[path], ::testing::HasSubstr("`" + value + "`"));
    }
  }
  for (const auto& [path, row] : rows) EXPECT_EQ(fields.count(path), 1u) << row;
}

// As in a file that lies in "/".
void AnchorPaths(v1::DataSpec* data) {
  data->set_validation("/v.npy");
  if (!data->train().empty()) data->set_train("/" + data->train());
  for (v1::TokenSource& source : *data->mutable_mixture()) {
    source.set_path("/" + source.path());
    if (!source.loss_mask().empty()) source.set_loss_mask("/" + source.loss_mask());
  }
  if (data->has_loss_mask()) {
    data->mutable_loss_mask()->set_train("/" + data->loss_mask().train());
    data->mutable_loss_mask()->set_validation("/" + data->loss_mask().validation());
  }
  for (v1::LabelSource& labels : *data->mutable_labels()) {
    labels.set_train("/" + labels.train());
    labels.set_validation("/" + labels.validation());
  }
  for (v1::ValidationSetSpec& set : *data->mutable_validation_sets()) {
    set.set_path("/" + set.path());
    if (!set.loss_mask().empty()) set.set_loss_mask("/" + set.loss_mask());
    for (v1::SetLabels& labels : *set.mutable_labels()) labels.set_path("/" + labels.path());
  }
}

// One example per model family, and a script; together they have every field.
TEST(JobSpecDocTest, ExamplesHaveEveryFieldAndAreValid) {
  std::string text = ReadText("docs/use/job-spec.md");
  text.erase(0, text.find("## Every field in one example"));
  const std::vector<std::string> parts = absl::StrSplit(text, "```");
  FieldLines lines;
  int examples = 0;
  for (const std::string& yaml : parts) {
    if (!absl::StartsWith(yaml, "yaml\n")) continue;
    FieldLines of_one;
    auto spec = ParseJobSpecYaml(yaml.substr(5), "docs/use/job-spec.md", &of_one);
    ASSERT_TRUE(spec.ok()) << spec.status();
    spec->set_name("example");
    if (spec->has_data()) AnchorPaths(spec->mutable_data());
    // Its model is in the folder: a stand-in.
    if (!spec->model().hugging_face().empty()) {
      spec->mutable_model()->clear_hugging_face();
      spec->mutable_model()->mutable_llama()->MergeFrom(
          LoadJobSpec("examples/llama-tiny.yaml")->model().llama());
    }
    // Whoever reads the file sends them.
    if (spec->has_script()) spec->mutable_script()->clear_files();
    if (!spec->train().init_from().empty()) spec->mutable_train()->set_init_from("/model");
    if (!spec->train().offload().path().empty()) {
      spec->mutable_train()->mutable_offload()->set_path("/nvme");
    }
    if (spec->has_report()) spec->mutable_report()->set_tensorboard("/runs");
    NormalizeJobSpec(&*spec);
    EXPECT_EQ(ValidateJobSpec(*spec), absl::OkStatus());
    for (const auto& [path, line] : of_one) {  // "data.mixture[0].path" is data.mixture.path
      lines.emplace(std::regex_replace(path, std::regex(R"(\[\d+\])"), ""), line);
    }
    ++examples;
  }
  EXPECT_GE(examples, 3);
  std::map<std::string, const google::protobuf::FieldDescriptor*> fields;
  Collect(*v1::JobSpec::descriptor(), "", &fields);
  for (const auto& [path, field] : fields) EXPECT_EQ(lines.count(path), 1u) << path;
}

TEST(ExamplesTest, AreValid) {
  int examples = 0;
  for (const auto& entry : std::filesystem::directory_iterator("examples")) {
    if (entry.path().extension() != ".yaml") continue;
    const auto spec = LoadJobSpec(entry.path().string());
    EXPECT_TRUE(spec.ok()) << spec.status();
    ++examples;
  }
  EXPECT_GE(examples, 3);
}

}  // namespace
}  // namespace milepost
