#include "client/cli/script_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/cli/job_arguments.h"

namespace milepost::client {
namespace {

using testing::HasSubstr;

class ScriptFilesTest : public testing::Test {
 protected:
  ScriptFilesTest() {
    std::string path = testing::TempDir() + "script_files_XXXXXX";
    folder_ = mkdtemp(path.data());
    std::ofstream(folder_ + "/train.py") << "print(1)\n";
  }
  ~ScriptFilesTest() override { std::filesystem::remove_all(folder_); }

  std::string WriteSpec(const std::string& fields) const {
    const std::string path = folder_ + "/job.yaml";
    std::ofstream(path) << "name: s\nscript:\n  command: [python3, train.py]\n" << fields;
    return path;
  }
  static SpecSource From(const std::string& path, std::vector<std::string> overrides = {}) {
    return {.path = path, .base = std::nullopt, .overrides = std::move(overrides)};
  }

  std::string folder_;
};

TEST_F(ScriptFilesTest, ASpecThatIsReadHasTheDigestOfItsFolder) {
  ScriptFiles files;
  const auto spec = LoadSpec(From(WriteSpec("  files: .\n")), &files);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto packed = PackFolder(folder_);
  ASSERT_TRUE(packed.ok());
  EXPECT_EQ(spec->script().sent_files().sha256(), packed->sha256);
  EXPECT_EQ(spec->script().sent_files().bytes(), packed->bytes);
  EXPECT_EQ(spec->script().files(), "");
  const auto set = LoadSpec(From(WriteSpec(""), {"script.files=" + folder_}), &files);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->script().sent_files().sha256(), PackFolder(folder_)->sha256);
  EXPECT_FALSE(LoadSpec(From(WriteSpec("")))->script().has_sent_files());
}

TEST_F(ScriptFilesTest, WhatIsWrongNamesTheLine) {
  const std::string path = WriteSpec("  files: none\n");
  EXPECT_EQ(
      LoadSpec(From(path)).status().message(),
      absl::StrCat(path, ":4: script.files: ", folder_, "/none is not there, or is no folder"));
  WriteSpec("  files: .\n  folder: /work\n");
  EXPECT_THAT(LoadSpec(From(path)).status().message(),
              HasSubstr(":4: script.files: the job runs in files that are sent along, or in "
                        "script.folder on its hosts: remove script.folder or script.files"));
}

TEST_F(ScriptFilesTest, AForkMayHaveOtherFiles) {
  ScriptFiles files;
  auto overrides = ParseOverrides({"train.steps=7", "script.files=" + folder_});
  ASSERT_TRUE(overrides.ok() && files.PackOverrides(&*overrides).ok());
  v1::JobSpec spec;
  spec.mutable_script()->set_folder("/shared");
  overrides->erase(overrides->begin());
  ASSERT_TRUE(ApplyOverrides(*overrides, "overrides", &spec).ok());
  EXPECT_EQ(spec.script().folder(), "");
  EXPECT_EQ(spec.script().sent_files().sha256(), PackFolder(folder_)->sha256);
  EXPECT_EQ(spec.script().sent_files().bytes(), PackFolder(folder_)->bytes);
  overrides = ParseOverrides({"script.files='" + folder_ + "'"});
  ASSERT_TRUE(overrides.ok() && files.PackOverrides(&*overrides).ok());
  EXPECT_EQ(overrides->at(1).value(), PackFolder(folder_)->sha256);
  // None: those that were sent are left out.
  overrides = ParseOverrides({"script.files=null", "script.folder=/shared"});
  ASSERT_TRUE(overrides.ok() && files.PackOverrides(&*overrides).ok());
  ASSERT_TRUE(ApplyOverrides(*overrides, "overrides", &spec).ok());
  EXPECT_FALSE(spec.script().has_sent_files());
  EXPECT_EQ(spec.script().folder(), "/shared");
  overrides = ParseOverrides({"script.files=[a]"});
  EXPECT_THAT(files.PackOverrides(&*overrides).message(), HasSubstr("--set: script.files: "));
  overrides = ParseOverrides({"script.files=/none/such"});
  EXPECT_THAT(files.PackOverrides(&*overrides).message(),
              HasSubstr("--set script.files: /none/such is not there"));
}

}  // namespace
}  // namespace milepost::client
