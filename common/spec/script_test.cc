#include "common/spec/script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "common/spec/overrides.h"
#include "common/spec/parse.h"
#include "common/spec/sizes.h"
#include "common/spec/to_yaml.h"
#include "common/spec/validate.h"

namespace milepost {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kSpec[] = R"(name: my-gpt
script:
  command: [python3, train.py, --lr, 3e-4]
  folder: /work
  environment: {WANDB_MODE: offline, STEPS: 100}
resources: {ranks: 8, min_ranks: 2, device: cuda}
)";

v1::JobSpec ParsedScript(absl::string_view text) {
  auto spec = ParseJobSpecYaml(text, "s.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.value_or(v1::JobSpec());
}

// The violations of a spec that was changed, one line each.
std::string Problems(absl::string_view text) {
  v1::JobSpec spec = ParsedScript(text);
  NormalizeJobSpec(&spec);
  return std::string(ValidateJobSpec(spec).message());
}

TEST(ScriptSpecTest, IsReadAsItIsWritten) {
  v1::JobSpec spec = ParsedScript(kSpec);
  EXPECT_THAT(spec.script().command(), ElementsAre("python3", "train.py", "--lr", "3e-4"));
  EXPECT_EQ(spec.script().environment().at("WANDB_MODE"), "offline");
  EXPECT_EQ(spec.script().environment().at("STEPS"), "100");
  EXPECT_EQ(MessageToYaml(ParsedScript(MessageToYaml(spec))), MessageToYaml(spec));
  EXPECT_THAT(MessageToYaml(spec),
              HasSubstr("  environment:\n    STEPS: \"100\"\n    WANDB_MODE: offline\n"));
  NormalizeJobSpec(&spec);
  EXPECT_THAT(CheckJobSpec(spec), IsEmpty());
  EXPECT_FALSE(spec.has_model() || spec.has_data() || spec.has_train());
  EXPECT_FALSE(spec.has_checkpoint()) << "coordinators of before would refuse it";
  EXPECT_EQ(spec.restart().max_failures(), 3);
  EXPECT_THAT(PossibleSizes(spec), ElementsAre(2, 3, 4, 5, 6, 7, 8));
  EXPECT_EQ(LineageDigest(spec), LineageDigest(spec));
  v1::JobSpec other = spec;
  other.mutable_script()->add_command("--warm");
  EXPECT_NE(LineageDigest(spec), LineageDigest(other));
}

TEST(ScriptSpecTest, MapsOfWrongFormNameTheLine) {
  for (const auto& [environment, problem] : std::map<std::string, std::string>{
           {"[A]",
            "s.yaml:2: script.environment: expected a mapping of names to texts, got a list"},
           {"{A: [1]}", "s.yaml:2: script.environment.A: expected text, got a list"},
           {"{A: 1, A: 2}", "s.yaml:2: script.environment.A: given twice: keep one"},
           {"{[A]: 1}", "s.yaml:2: script.environment: expected a name, got a list"}}) {
    const auto spec =
        ParseJobSpecYaml(absl::StrCat("script:\n  environment: ", environment, "\n"), "s.yaml");
    EXPECT_EQ(spec.status().message(), problem);
  }
}

TEST(ScriptSpecTest, WhatIsWrongIsSaid) {
  const std::string begin = "name: s\nscript:\n  command: [sh]\n";
  EXPECT_EQ(Problems(begin), "");
  EXPECT_EQ(Problems("name: s\nscript: {command: []}\n"),
            "script.command: required: the program and its arguments, such as [python3, train.py]");
  for (const char* own : {"RANK", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "MILEPOST_JOB",
                          "KUBEFLOW_TRAINER_SERVER_URL"}) {
    EXPECT_EQ(
        Problems(absl::StrCat(begin, "  environment: {", own, ": 1}\n")),
        absl::StrCat("script.environment.", own, ": is set by Milepost for each rank: remove it"));
  }
  EXPECT_THAT(Problems(begin + "  environment: {A-B: 1}\n"),
              HasSubstr("'A-B' is no variable's name"));
  EXPECT_THAT(Problems(begin + "  folder: work\n"), HasSubstr("expected an absolute path"));
  EXPECT_THAT(
      Problems(absl::StrCat("name: s\nscript:\n  command: [", std::string(40000, 'x'), "]\n")),
      HasSubstr("script.command: has 40001 bytes; at most 32768"));
  for (const char* part : {"model: {gpt2: {layers: 1}}", "train: {steps: 1}", "data: {train: /a}",
                           "checkpoint: {every: 1}", "report: {tensorboard: /t}",
                           "restart: {replace_stragglers: true}"}) {
    EXPECT_THAT(Problems(absl::StrCat(begin, part, "\n")),
                HasSubstr(": a job with `script` has none: the script sees to it"))
        << part;
  }
}

TEST(ScriptSpecTest, SavesMayHaveCopiesInMemory) {
  const std::string begin = "name: s\nscript:\n  command: [sh]\n";
  EXPECT_EQ(Problems(begin + "checkpoint: {redundancy: 1}\n"), "");
  EXPECT_THAT(Problems(begin + "checkpoint: {redundancy: 2}\n"),
              HasSubstr("checkpoint.redundancy: "));
}

TEST(ScriptSpecTest, RequirementsLieInTheFolder) {
  const std::string begin = "name: s\nscript:\n  command: [sh]\n";
  const std::string folder = begin + "  folder: /work\n";
  EXPECT_EQ(Problems(folder + "  requirements: a/requirements.txt\n  wheels: /wheels\n"), "");
  EXPECT_THAT(Problems(begin + "  requirements: r.txt\n"), HasSubstr("the job needs one of them"));
  EXPECT_THAT(Problems(folder + "  wheels: /wheels\n"),
              HasSubstr("script.wheels: is for script.requirements"));
  EXPECT_THAT(Problems(folder + "  requirements: r.txt\n  wheels: wheels\n"),
              HasSubstr("script.wheels: expected an absolute path"));
  for (const char* path : {"/etc/r.txt", "../r.txt", "a/../../r.txt"}) {
    EXPECT_THAT(Problems(absl::StrCat(folder, "  requirements: ", path, "\n")),
                HasSubstr("must be a path within the folder"))
        << path;
  }
}

TEST(ScriptSpecTest, FilesThatAreSentAlong) {
  const std::string begin = "name: s\nscript:\n  command: [sh]\n";
  const std::string digest(64, 'a');
  EXPECT_THAT(Problems(begin + "  files: /work\n"),
              HasSubstr("script.files: only a spec's file has it"));
  const std::string sent = absl::StrCat("  sent_files: {sha256: ", digest, ", bytes: 1024}\n");
  EXPECT_EQ(Problems(begin + sent), "");
  EXPECT_EQ(Problems(begin + sent + "  folder: /work\n"),
            "script.folder: the files that are sent along are where it runs: remove one");
  EXPECT_THAT(Problems(begin + "  sent_files: {sha256: ../../etc, bytes: 1}\n"),
              HasSubstr("script.sent_files.sha256: expected 64 hexadecimal digits"));
  EXPECT_THAT(
      Problems(absl::StrCat(begin, "  sent_files: {sha256: ", digest, ", bytes: 402653185}\n")),
      HasSubstr("script.sent_files.bytes: must be 1 to 402653184"));
  v1::JobSpec spec = ParsedScript(begin + sent);
  v1::JobSpec other = spec;
  other.mutable_script()->mutable_sent_files()->set_sha256(std::string(64, 'b'));
  EXPECT_NE(LineageDigest(spec), LineageDigest(other));
}

TEST(ScriptSpecTest, ItSaysWhichCheckpointsAreKept) {
  const std::string begin = "name: s\nscript:\n  command: [sh]\n";
  EXPECT_EQ(Problems(begin + "checkpoint: {keep_last: 2, keep_every: 100, "
                             "resume_from: checkpoints/7}\n"),
            "");
  EXPECT_THAT(Problems(begin + "checkpoint: {keep_last: 0}\n"),
              HasSubstr("checkpoint.keep_last: "));
  EXPECT_THAT(Problems(begin + "checkpoint: {resume_from: seven}\n"),
              HasSubstr("expected a checkpoint's name such as checkpoints/12"));
}

TEST(ScriptSpecTest, AnOverrideGivesAMappingAsAWhole) {
  v1::JobSpec spec = ParsedScript(kSpec);
  Overrides overrides;
  overrides.Add()->set_path("script.environment");
  overrides[0].set_value("{A: b}");
  ASSERT_TRUE(ApplyOverrides(overrides, "--set", &spec).ok());
  EXPECT_EQ(spec.script().environment().size(), 1U);
  EXPECT_EQ(spec.script().environment().at("A"), "b");
}

}  // namespace
}  // namespace milepost
