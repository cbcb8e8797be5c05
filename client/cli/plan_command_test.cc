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

TEST_F(PlanCommandTest, SearchesTheFastestSettings) {
  const char* command = "examples/llama3-8b.yaml --search --ranks 64 --device h100 --hosts 8";
  const auto found = PlanJson(command);
  EXPECT_EQ(found["ranks"], 64);
  EXPECT_EQ(found["ranks_per_host"], 8);
  ASSERT_EQ(found["best"].size(), 5u);
  const auto& best = found["best"][0];
  EXPECT_EQ(best["data"].get<int>() * best.value("pipeline", 1) * best["tensor"].get<int>(), 64);
  EXPECT_EQ(best["data"].get<int>() * best["micro"].get<int>() * best["accumulation"].get<int>(),
            128);
  EXPECT_LE(best["bytes"].get<double>(), 80 * 1073741824.0);
  EXPECT_NEAR(best["tokens_per_second"].get<double>() * best["seconds"].get<double>(), 128 * 8192,
              1);
  EXPECT_NEAR(best["tokens_per_second_per_rank"].get<double>() * 64,
              best["tokens_per_second"].get<double>(), 1);
  EXPECT_GE(found["rests_on"].size(), 12u);
  // The plan of the choice is what the search says of it.
  const auto plan = PlanJson(absl::StrCat(
      "examples/llama3-8b.yaml --device h100 --set resources.ranks=64 --set resources.mesh.tensor=",
      best["tensor"].get<int>(), " --set train.batch.micro=", best["micro"].get<int>(),
      " --set train.zero.stage=", best["stage"].get<int>(), " --set train.zero.group=",
      best["group"].get<int>(), " --set train.recompute=", best["recompute"].get<std::string>()));
  EXPECT_EQ(plan["required_bytes"], best["bytes"]);
  EXPECT_DOUBLE_EQ(plan["expected"]["seconds"].get<double>(), best["seconds"].get<double>());
  const Outcome table = RunCli(absl::StrCat("plan ", command));
  EXPECT_THAT(table.out, AllOf(HasSubstr("64 ranks, 8 to a host"), HasSubstr("data x"),
                               HasSubstr("the choice rests on h100"), HasSubstr("host_bandwidth")));
  EXPECT_THAT(table.err,
              HasSubstr("milepost run examples/llama3-8b.yaml --set resources.ranks=64"));
}

// Those that docs/use/parallelism.md shows. Where they are to change, copy them from the file that
// is named.
TEST_F(PlanCommandTest, DrawsThePicturesOfTheDocs) {
  for (const char* schedule : {"1f1b", "zero_bubble", "interleaved"}) {
    const std::string drawn = absl::StrCat(folder_, "/", schedule, ".svg");
    const Outcome outcome = RunCli(absl::StrCat(
        "plan examples/llama3-8b.yaml --device h200 --set resources.ranks=4 "
        "--set resources.mesh.pipeline=4 --set resources.mesh.schedule=",
        schedule,
        " --set train.batch.global=8 --set train.batch.micro=1 --set train.zero.stage=1 "
        "--set train.recompute=none --draw ",
        drawn));
    ASSERT_EQ(outcome.exit_code, kExitOk) << outcome.err;
    const auto text = [](const std::string& path) {
      std::ifstream file(path);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    const std::string shown = absl::StrCat("docs/images/pipeline_", schedule, ".svg");
    if (text(drawn) == text(shown)) continue;
    const std::string kept = absl::StrCat(::testing::TempDir(), "/pipeline_", schedule, ".svg");
    std::filesystem::copy_file(drawn, kept, std::filesystem::copy_options::overwrite_existing);
    ADD_FAILURE() << shown << " is not what the planner draws: " << kept;
  }
}

TEST_F(PlanCommandTest, SearchesPipelines) {
  const char* place = "examples/llama3-8b.yaml --ranks 64 --device h100 --hosts 64 --network 10";
  const auto found = PlanJson(absl::StrCat(place, " --search"));
  const auto& best = found["best"][0];
  EXPECT_GT(best["pipeline"].get<int>(), 1);
  EXPECT_GT(best["bubble_seconds"].get<double>(), 0);
  EXPECT_EQ(best["data"].get<int>() * best["pipeline"].get<int>() * best["tensor"].get<int>(), 64);
  // What is planned with all micro-batches is within a percent of it, and its bytes are the same.
  const auto plan =
      PlanJson(absl::StrCat(place, " --set resources.mesh.pipeline=", best["pipeline"].get<int>(),
                            " --set resources.mesh.schedule=", best["schedule"].get<std::string>(),
                            " --set resources.mesh.tensor=", best["tensor"].get<int>(),
                            " --set train.batch.micro=", best["micro"].get<int>(),
                            " --set train.zero.stage=", best["stage"].get<int>(),
                            " --set train.zero.group=", best["group"].get<int>(),
                            " --set train.recompute=", best["recompute"].get<std::string>()));
  EXPECT_EQ(plan["required_bytes"], best["bytes"]);
  EXPECT_NEAR(plan["expected"]["seconds"].get<double>() / best["seconds"].get<double>(), 1, 0.01);
}

TEST_F(PlanCommandTest, SearchIsNotForGradientsAsFactors) {
  EXPECT_THAT(RunCli("plan examples/gpt2-124m.yaml --search --set train.powersgd.rank=4 "
                     "--set train.zero.stage=0")
                  .err,
              HasSubstr("train.powersgd is not for --search"));
}

// What the spec has of expert ranks is replaced.
TEST_F(PlanCommandTest, SearchesExpertRanks) {
  const char* place =
      "examples/mixture-tiny.yaml --ranks 4 --device h100 --set resources.mesh.expert=2";
  const auto found = PlanJson(absl::StrCat(place, " --search"));
  const Outcome table = RunCli(absl::StrCat("plan ", place, " --search"));
  const int expert = found["best"][0].value("expert", 1);
  ASSERT_THAT(table.err, HasSubstr(absl::StrCat("--set resources.mesh.expert=", expert, " ")));
  const std::string flags = table.err.substr(table.err.find(" --set"));
  const auto plan = PlanJson(
      absl::StrCat("examples/mixture-tiny.yaml --device h100", flags.substr(0, flags.find('\n'))));
  EXPECT_EQ(plan["required_bytes"], found["best"][0]["bytes"]);
}

// Four sequences of 128k tokens for 64 ranks, and two of a million.
TEST_F(PlanCommandTest, SearchesContextRanks) {
  struct Long {
    int64_t tokens;
    int sequences;
  };
  for (const Long& batch : {Long{131072, 4}, Long{1048576, 2}}) {
    SCOPED_TRACE(batch.tokens);
    const std::string of = absl::StrCat(
        "examples/llama3-8b.yaml --ranks 64 --device h100 --hosts 8 --set data.sequence_length=",
        batch.tokens, " --set model.llama.context=", batch.tokens,
        " --set train.batch.global=", batch.sequences);
    // What the spec has of context ranks is replaced.
    const auto found = PlanJson(absl::StrCat(of, " --search --set resources.mesh.context=4"));
    const auto& best = found["best"][0];
    const int context = best.value("context", 1);
    EXPECT_GT(context, 1);
    EXPECT_EQ(
        best["data"].get<int>() * context * best.value("pipeline", 1) * best["tensor"].get<int>(),
        64);
    EXPECT_LE(best["bytes"].get<double>(), 80 * 1073741824.0);
    const Outcome table =
        RunCli(absl::StrCat("plan ", of, " --search --set resources.mesh.context=4"));
    EXPECT_THAT(table.out, HasSubstr(absl::StrCat(context, " context x ")));
    const std::string last = absl::StrCat("--set resources.mesh.context=", context);
    ASSERT_THAT(table.err, HasSubstr(last));
    // The command is of what was chosen.
    const std::string flags = table.err.substr(table.err.find(" --set"));
    const auto plan = PlanJson(absl::StrCat("examples/llama3-8b.yaml --device h100 --hosts 8",
                                            flags.substr(0, flags.find('\n'))));
    EXPECT_EQ(plan["required_bytes"], best["bytes"]);
    EXPECT_NEAR(plan["expected"]["seconds"].get<double>() / best["seconds"].get<double>(), 1, 0.01);
  }
}

TEST_F(PlanCommandTest, ANetworkIsAHosts) {
  const char* command = "examples/llama3-8b.yaml --ranks 64 --device h100 --set train.zero.stage=3";
  const auto seconds = [&](const char* network) {
    return PlanJson(absl::StrCat(command, network))["expected"]["communication_seconds"]
        .get<double>();
  };
  EXPECT_DOUBLE_EQ(seconds(""), seconds(" --network 3200"));
  EXPECT_GT(seconds(" --network 100"), 4 * seconds(" --network 400") * 0.9);
  EXPECT_LT(seconds(" --hosts 1"), seconds(""));
  EXPECT_THAT(RunCli(absl::StrCat("plan ", command, " --hosts 7")).err,
              HasSubstr("--hosts: 7 do not share out 64 ranks evenly"));
}

TEST_F(PlanCommandTest, ASearchThatFindsNothingSaysWhy) {
  EXPECT_THAT(RunCli("plan examples/llama3-70b.yaml --search --ranks 1").err,
              AllOf(HasSubstr("nothing fits: a rank needs"), HasSubstr("use more ranks")));
  EXPECT_THAT(RunCli("plan examples/llama3-8b.yaml --search --device h100 --ranks 16384 "
                     "--set train.batch.global=8")
                  .err,
              HasSubstr("train.batch.global (8) cannot be shared out among 16384 ranks"));
  EXPECT_THAT(
      RunCli("plan examples/llama3-8b.yaml --search --device h100 --set train.memory=low").err,
      HasSubstr("train.memory: low is not for --search"));
}

TEST_F(PlanCommandTest, TensorRanksThatAreAutoAreChosen) {
  const auto plan = PlanJson("examples/llama3-70b.yaml");
  EXPECT_EQ(plan["fits"], true);
  ASSERT_EQ(plan["chosen"].size(), 4u);
  EXPECT_EQ(plan["chosen"][0]["field"], "resources.mesh.tensor");
  EXPECT_EQ(plan["parameters"], 70553706496);
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
