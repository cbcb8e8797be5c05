// What the docs show can be planned: every YAML job of them, and the examples. Runs in the source
// folder.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/spec/parse.h"
#include "common/spec/validate.h"
#include "engine/plan/fit/fit.h"
#include "engine/plan/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

std::vector<std::filesystem::path> FilesOf(const std::string& folder, const char* extension) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == extension) files.push_back(entry.path());
  }
  return files;
}

// The blocks of a page that are whole jobs.
std::vector<std::string> JobsOf(const std::filesystem::path& page) {
  std::ifstream file(page);
  std::stringstream text;
  text << file.rdbuf();
  std::vector<std::string> jobs;
  for (absl::string_view part : absl::StrSplit(text.str(), "```")) {
    if (!absl::StartsWith(part, "yaml\n")) continue;
    const std::string yaml(part.substr(5));
    const std::string lines = absl::StrCat("\n", yaml);
    const bool whole = absl::StrContains(lines, "\nmodel:") && absl::StrContains(lines, "\ntrain:");
    if (whole) jobs.push_back(yaml);
  }
  return jobs;
}

// On a rank of a large host, for what is left to be chosen.
absl::Status Planned(v1::JobSpec spec) {
  NormalizeJobSpec(&spec);
  RankPlace place = {.memory_bytes = int64_t{1} << 40, .memory_of = "a large host"};
  const auto profile = ProfileOf(spec, 1);
  if (!profile.ok()) return profile.status();
  place.profile = *profile;
  const auto resolved = ResolveAuto(spec, place);
  if (!resolved.ok()) return resolved.status();
  const auto options = OptionsFromSpec(resolved->spec, place.threads);
  if (!options.ok()) return options.status();
  return PlanTraining(resolved->spec, *options).status();
}

TEST(DocsPlan, EveryJobOfTheDocsIsPlanned) {
  std::vector<std::filesystem::path> pages = FilesOf("docs", ".md");
  pages.emplace_back("README.md");
  int jobs = 0;
  for (const auto& page : pages) {
    for (const std::string& yaml : JobsOf(page)) {
      SCOPED_TRACE(absl::StrCat(page.string(), ":\n", yaml));
      auto spec = ParseJobSpecYaml(yaml, page.string());
      ASSERT_TRUE(spec.ok()) << spec.status();
      if (!spec->model().hugging_face().empty()) {  // a stand-in: there is no such folder here
        spec->mutable_model()->clear_hugging_face();
        *spec->mutable_model()->mutable_llama() =
            LoadJobSpec("examples/llama-tiny.yaml")->model().llama();
        spec->mutable_model()->mutable_llama()->set_context(spec->data().sequence_length());
      }
      EXPECT_EQ(Planned(*spec), absl::OkStatus());
      ++jobs;
    }
  }
  EXPECT_GE(jobs, 6);
}

TEST(DocsPlan, EveryExampleIsPlanned) {
  const auto examples = FilesOf("examples", ".yaml");
  EXPECT_GE(examples.size(), 5u);
  for (const auto& example : examples) {
    SCOPED_TRACE(example.string());
    const auto spec = LoadJobSpec(example.string());
    ASSERT_TRUE(spec.ok()) << spec.status();
    if (spec->has_script()) continue;  // nothing is planned
    EXPECT_EQ(Planned(*spec), absl::OkStatus());
  }
}

}  // namespace
}  // namespace milepost::plan
