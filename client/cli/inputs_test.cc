// What `run`, `plan` and `job submit` see of the files that a spec names, before anything starts.
#include "client/cli/inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/cli/job_arguments.h"
#include "client/cli/run_cli.h"
#include "common/exit_codes.h"
#include "engine/data/npy.h"

namespace milepost::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class InputsTest : public ::testing::Test {
 protected:
  InputsTest() : folder_(absl::StrCat(::testing::TempDir(), "inputs-", getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~InputsTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  void WriteTokens(const std::string& name, const std::vector<uint32_t>& tokens) const {
    auto writer = data::NpyWriter::Create(Path(name), data::TokenType::kUint16);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append(tokens).ok());
    ASSERT_TRUE((*writer)->Finish().ok());
  }
  // Trains on train.npy. `rest`: further lines.
  std::string WriteSpec(const std::string& rest = "") const {
    const std::string path = Path("spec.yaml");
    std::ofstream(path)
        << "name: a\n"
           "model: {gpt2: {layers: 1, heads: 1, width: 32, vocabulary: 64, context: 8}}\n"
           "data: {train: train.npy, validation: validation.npy, sequence_length: 8}\n"
        << "train:\n  steps: 2\n  batch: {global: 2, micro: 2}\n"
        << rest;
    return path;
  }
  v1::JobSpec Spec(const std::string& rest = "") const {
    const auto spec = LoadSpec({.path = WriteSpec(rest), .base = std::nullopt});
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec.value_or(v1::JobSpec());
  }

  const std::string folder_;
};

TEST_F(InputsTest, FurtherValidationSetsAreLookedAtAsTheMainOne) {
  WriteTokens("train.npy", std::vector<uint32_t>(40, 3));
  WriteTokens("validation.npy", std::vector<uint32_t>(40, 3));
  WriteTokens("large.npy", std::vector<uint32_t>(40, 64));
  const auto with = [&](const std::string& name) {
    v1::JobSpec spec = Spec();
    v1::ValidationSetSpec& set = *spec.mutable_data()->add_validation_sets();
    set.set_name("code");
    set.set_path(Path(name));
    return spec;
  };
  EXPECT_EQ(CheckReads(with("train.npy")), absl::OkStatus());
  EXPECT_THAT(CheckReads(with("large.npy")).message(),
              AllOf(HasSubstr("data.validation_sets, code: "), HasSubstr("64")));
  EXPECT_THAT(CheckReads(with("absent.npy")).message(),
              AllOf(HasSubstr("data.validation_sets, code: "), HasSubstr("absent.npy")));
  std::vector<std::string> elsewhere;
  EXPECT_EQ(CheckReadsHere(with("absent.npy"), &elsewhere), absl::OkStatus());
  EXPECT_THAT(elsewhere,
              ElementsAre(absl::StrCat("data.validation_sets.path ", Path("absent.npy"))));
}

TEST_F(InputsTest, WhatIsNotHereIsRefusedByRunAndToldByTheOthers) {
  WriteTokens("train.npy", std::vector<uint32_t>(40, 3));
  const v1::JobSpec spec = Spec();
  EXPECT_THAT(CheckReads(spec).message(),
              AllOf(HasSubstr("data.validation: "), HasSubstr("validation.npy")));
  std::vector<std::string> elsewhere;
  EXPECT_EQ(CheckReadsHere(spec, &elsewhere), absl::OkStatus());
  EXPECT_THAT(elsewhere, ElementsAre(absl::StrCat("data.validation ", Path("validation.npy"))));
  WriteTokens("validation.npy", std::vector<uint32_t>(40, 3));
  elsewhere.clear();
  EXPECT_EQ(CheckReadsHere(spec, &elsewhere), absl::OkStatus());
  EXPECT_THAT(elsewhere, IsEmpty());
  EXPECT_EQ(CheckReads(spec), absl::OkStatus());
}

TEST_F(InputsTest, WhatIsHereIsLookedAt) {
  WriteTokens("train.npy", {1, 2, 3});
  std::vector<std::string> elsewhere;
  const absl::Status few = CheckReadsHere(Spec(), &elsewhere);
  EXPECT_TRUE(absl::IsInvalidArgument(few));
  EXPECT_THAT(few.message(), AllOf(HasSubstr("data.train: "), HasSubstr("train.npy")));
  std::vector<uint32_t> foreign(40, 3);
  foreign[30] = 64;
  WriteTokens("train.npy", foreign);
  EXPECT_THAT(CheckReadsHere(Spec(), &elsewhere).message(), HasSubstr("token 30 has id 64"));
  WriteTokens("train.npy", std::vector<uint32_t>(40, 3));
  std::filesystem::create_directories(Path("weights"));
  const absl::Status none = CheckReadsHere(Spec("  init_from: weights\n"), &elsewhere);
  EXPECT_THAT(none.message(), HasSubstr("train.init_from: "));
}

TEST_F(InputsTest, PlanSaysWhatItSees) {
  WriteTokens("train.npy", std::vector<uint32_t>(40, 3));
  const Outcome some = RunCli("plan " + WriteSpec());
  EXPECT_EQ(some.exit_code, kExitOk) << some.err;
  EXPECT_THAT(some.err,
              AllOf(HasSubstr("not looked at: data.validation"), Not(HasSubstr("train.npy"))));
  WriteTokens("train.npy", {1});
  const Outcome bad = RunCli("plan " + WriteSpec());
  EXPECT_EQ(bad.exit_code, kExitUsage);
  EXPECT_THAT(bad.err, HasSubstr("data.train: "));
}

TEST_F(InputsTest, SubmitLooksBeforeItConnectsAndCanBeToldNotTo) {
  WriteTokens("train.npy", {1});
  const std::string line = absl::StrCat("job submit ", WriteSpec(), " --coordinator 127.0.0.1:1");
  EXPECT_THAT(RunCli(line).err, AllOf(HasSubstr("data.train: "), HasSubstr("--skip-files")));
  EXPECT_THAT(RunCli(line + " --array train.seed=1,2").err, HasSubstr("data.train: "));
  EXPECT_THAT(RunCli(line + " --skip-files").err, Not(HasSubstr("data.train: ")));
}

TEST_F(InputsTest, AFolderThatCannotBeWrittenIsRefused) {
  EXPECT_EQ(CheckWrites(Spec("report: {tensorboard: runs/a}\n")), absl::OkStatus());
  EXPECT_TRUE(std::filesystem::is_directory(Path("runs/a")));
  std::ofstream(Path("file")) << "text";
  EXPECT_THAT(CheckWrites(Spec("report: {tensorboard: file/a}\n")).message(),
              AllOf(HasSubstr("report.tensorboard: "), HasSubstr("file/a cannot be written")));
  EXPECT_THAT(CheckWrites(Spec("report: {tensorboard: file}\n")).message(),
              HasSubstr("cannot be written"));
}

TEST_F(InputsTest, DataWithoutATargetAreRefused) {
  std::vector<std::string> elsewhere;
  WriteTokens("train.npy", std::vector<uint32_t>(40, 3));
  const auto check = [&](const std::string& data) {
    std::ofstream file(WriteSpec(), std::ios::app);
    file.close();
    const auto spec = LoadSpec({.path = Path("spec.yaml"), .base = {}, .overrides = {data}});
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec.ok() ? CheckReadsHere(*spec, &elsewhere) : spec.status();
  };
  EXPECT_EQ(check("data.document_separator=7"), absl::OkStatus());
  EXPECT_THAT(check("data.document_separator=3").message(),
              AllOf(HasSubstr("data.train: "), HasSubstr("train.npy: no token can be predicted"),
                    HasSubstr("data.document_separator")));
  std::vector<uint32_t> tokens(40, 3);
  tokens[38] = tokens[39] = 5;
  WriteTokens("train.npy", tokens);
  EXPECT_EQ(check("data.document_separator=3"), absl::OkStatus()) << "5 after 5 is one";
}

TEST_F(InputsTest, LabelsThatAreAllNoneAreRefused) {
  WriteTokens("train.npy", std::vector<uint32_t>(41, 3));
  WriteTokens("validation.npy", std::vector<uint32_t>(41, 3));
  const auto write = [&](const std::string& name, int8_t last) {
    std::string header = "{'descr': '|i1', 'fortran_order': False, 'shape': (41,), }";
    header.append(63 - (10 + header.size()) % 64, ' ');
    std::ofstream file(Path(name), std::ios::binary);
    file << "\x93NUMPY" << '\x01' << '\0' << static_cast<char>(header.size() + 1) << '\0' << header
         << "\n";
    for (int i = 0; i < 41; ++i) file.put(static_cast<char>(i == 39 ? last : -1));
  };
  write("train-labels.npy", 1);
  write("validation-labels.npy", -1);
  const std::string path = Path("spec.yaml");
  std::ofstream(path)
      << "name: a\n"
         "model:\n"
         "  gpt2: {layers: 1, heads: 1, width: 32, vocabulary: 64, context: 8}\n"
         "  heads: [{name: tag, classes: 4}]\n"
         "data:\n"
         "  train: train.npy\n"
         "  validation: validation.npy\n"
         "  labels: [{head: tag, train: train-labels.npy, validation: validation-labels.npy}]\n"
         "  sequence_length: 8\n"
         "train: {steps: 2, batch: {global: 2, micro: 2}}\n";
  const auto spec = LoadSpec({.path = path, .base = std::nullopt});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(CheckReads(*spec).message(),
              AllOf(HasSubstr("data.validation: "),
                    HasSubstr("validation-labels.npy: every label of the head 'tag' is -1"),
                    HasSubstr("labels from 0 to 3")));
  write("validation-labels.npy", 0);
  EXPECT_EQ(CheckReads(*spec), absl::OkStatus());
}

TEST_F(InputsTest, TypedPathsAreRelativeToWhereTheyAreTyped) {
  const auto spec = LoadSpec(
      {.path = WriteSpec(), .base = std::nullopt, .overrides = {"data.train=here/../b.npy"}});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->data().train(), std::filesystem::current_path() / "b.npy");
  EXPECT_EQ(spec->data().validation(), Path("validation.npy"));
}

}  // namespace
}  // namespace milepost::client
