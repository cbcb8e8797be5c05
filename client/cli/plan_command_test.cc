// milepost plan, from the spec's text to what it prints. Run in the source folder.
#include "client/cli/run_cli.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/exit_codes.h"
#include "engine/plan/estimates/device_profile.h"

namespace milepost::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PlanCommandTest : public ::testing::Test {
 protected:
  PlanCommandTest() : folder_(absl::StrCat(::testing::TempDir(), "/plan-", getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~PlanCommandTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

  const std::string folder_;
};

nlohmann::json PlanJson(const std::string& arguments) {
  const Outcome outcome = RunCli(absl::StrCat("plan -o json ", arguments));
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  return nlohmann::json::parse(outcome.out, nullptr, false);
}

TEST_F(PlanCommandTest, ExpectsTimesOfADeviceThatIsNotHere) {
  const auto h200 = PlanJson("examples/gpt2-124m.yaml --device h200");
  EXPECT_EQ(h200["fits"], true);
  EXPECT_EQ(h200["expected"]["device"], "h200");
  const auto a100 = PlanJson("examples/gpt2-124m.yaml --device a100");
  EXPECT_LT(h200["expected"]["seconds"], a100["expected"]["seconds"]);
  const double parts = h200["expected"]["flop_seconds"].get<double>() +
                       h200["expected"]["memory_seconds"].get<double>() +
                       h200["expected"]["start_seconds"].get<double>() +
                       h200["expected"]["exposed_seconds"].get<double>();
  EXPECT_NEAR(parts, h200["expected"]["seconds"].get<double>(), 1e-9);
  EXPECT_EQ(PlanJson("examples/gpt2-124m.yaml")["expected"]["device"], "cpu");
}

TEST_F(PlanCommandTest, ReadsAMeasuredProfile) {
  plan::DeviceProfile profile = *plan::BuiltInProfile("cpu");
  profile.name = "box";
  profile.threads = 4;
  const std::string file = Write("box.json", plan::ProfileJson(profile));
  const auto plan = PlanJson(absl::StrCat("examples/gpt2-124m.yaml --device ", file));
  EXPECT_EQ(plan["expected"]["device"], "box");
  const Outcome table = RunCli(absl::StrCat("plan examples/gpt2-124m.yaml --device ", file));
  EXPECT_THAT(table.out, AllOf(HasSubstr("expected on box"), HasSubstr("bound by compute")));
}

TEST_F(PlanCommandTest, SaysWhichPrecisionIsFaster) {
  const char* command = "plan examples/gpt2-124m.yaml --device a100 --set train.precision=";
  EXPECT_THAT(RunCli(absl::StrCat(command, "fp32")).err,
              AllOf(HasSubstr("train.precision: bf16 would be about"), HasSubstr("on a100")));
  EXPECT_THAT(RunCli(absl::StrCat(command, "bf16")).err, Not(HasSubstr("times as fast")));
}

TEST_F(PlanCommandTest, ABadDeviceIsExplained) {
  const Outcome name = RunCli("plan examples/gpt2-124m.yaml --device h20");
  EXPECT_EQ(name.exit_code, kExitUsage);
  EXPECT_THAT(name.err, HasSubstr("did you mean 'h200'"));
  const std::string bad = Write("bad.json", "{\"name\": 3}");
  const Outcome file = RunCli(absl::StrCat("plan examples/gpt2-124m.yaml --device ", bad));
  EXPECT_EQ(file.exit_code, kExitUsage);
  EXPECT_THAT(file.err, HasSubstr("bad.json: name: expected text"));
  const Outcome none = RunCli("plan examples/gpt2-124m.yaml --device /no/such.json");
  EXPECT_EQ(none.exit_code, kExitUsage);
  EXPECT_THAT(none.err, HasSubstr("--device: /no/such.json cannot be read"));
}

constexpr char kAutoSpec[] = R"(
model:
  gpt2: {layers: 6, width: 128, heads: 4, context: 128, vocabulary: 256}
data:
  train: train.npy
train:
  steps: 10
  batch: {global: 48, micro: auto}
  zero: {stage: auto}
  recompute: auto
resources:
  ranks: 4
)";

TEST_F(PlanCommandTest, ChoosesWhatIsAutoAndSaysWhy) {
  const std::string roomy = Write("roomy.yaml", kAutoSpec);
  const auto plan = PlanJson(roomy);
  ASSERT_EQ(plan["chosen"].size(), 3u);
  EXPECT_EQ(plan["chosen"][0]["field"], "train.batch.micro");
  EXPECT_EQ(plan["chosen"][0]["value"], std::to_string(plan["micro_batch"].get<int64_t>()));
  EXPECT_EQ(plan["micro_batch"].get<int64_t>() * plan["accumulation"].get<int64_t>(), 12);
  EXPECT_EQ(plan["recompute"], "none");
  const std::string tight = Write("tight.yaml", absl::StrCat(kAutoSpec, "  memory: 24MiB\n"));
  const auto less = PlanJson(tight);
  EXPECT_EQ(less["fits"], true);
  EXPECT_LE(less["required_bytes"].get<int64_t>(), 24 << 20);
  EXPECT_THAT(RunCli(absl::StrCat("plan ", tight)).out,
              AllOf(HasSubstr("chosen         train.zero.stage: "), HasSubstr("does not fit"),
                    HasSubstr("as resources.memory says")));
  const std::string none = Write("none.yaml", absl::StrCat(kAutoSpec, "  memory: 10KiB\n"));
  const Outcome refused = RunCli(absl::StrCat("plan ", none));
  EXPECT_EQ(refused.exit_code, kExitUsage);
  EXPECT_THAT(refused.err, HasSubstr("does not fit whatever is chosen"));
}

// Nothing is asked of a device, and the network is not asked either: only the spec counts.
TEST_F(PlanCommandTest, ImagesAreNoTokens) {
  const Outcome images = RunCli("plan examples/resnet-tiny.yaml --device cpu");
  EXPECT_THAT(images.out, AllOf(HasSubstr("micro-batch 32 images,"), HasSubstr("images   "),
                                Not(HasSubstr("tokens"))));
  EXPECT_THAT(RunCli("plan examples/llama-tiny.yaml --device cpu").out,
              HasSubstr("micro-batch 8 x 128 tokens,"));
}

TEST_F(PlanCommandTest, WhatDoesNotFitExitsAsABadSpecDoes) {
  const Outcome outcome = RunCli("plan examples/llama3-8b.yaml --device rtx4090");
  EXPECT_EQ(outcome.exit_code, kExitUsage);
  EXPECT_THAT(outcome.out, HasSubstr("DOES NOT FIT"));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("does not fit"), HasSubstr("one rtx4090 has")));
}

}  // namespace
}  // namespace milepost::client
