#include "worker/metrics/worker_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/atomic_file.h"
#include "common/open_metrics.h"
#include "common/proto_time.h"
#include "common/steady_time.h"
#include "worker/metrics/worker_series.h"

namespace milepost::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

AgentStanding Standing() {
  AgentStanding standing{.registered = true, .last_turn = SteadyNow()};
  v1::Hello& hello = standing.hello;
  hello.set_worker_id("gpu-01");
  hello.set_host("host \"one\"\n");
  (*hello.mutable_labels())["pool"] = "a100";
  for (int i = 0; i < 2; ++i) {
    v1::Slot* slot = hello.add_slots();
    slot->set_index(i);
    slot->set_device(v1::DEVICE_KIND_CUDA);
    slot->set_model("NVIDIA A100");
    slot->set_uuid(absl::StrCat("GPU-", i));
    v1::DeviceFacts* gpu = hello.add_devices();
    gpu->set_slot(i);
    gpu->set_utilization_percent(50);
    if (i == 1) gpu->set_problem("lost");
  }
  v1::RankReport* rank = hello.add_ranks();
  rank->set_job("jobs/7");
  rank->set_generation(3);
  rank->set_rank(5);
  rank->set_slot(0);
  rank->set_state(v1::RANK_STATE_RUNNING);
  rank->mutable_progress()->set_step(120);
  rank->mutable_progress()->set_forward_seconds(0.25);
  return standing;
}

std::string Text() {
  return WorkerMetricsText({.standing = Standing(),
                            .start = absl::FromUnixSeconds(1000),
                            .certificate_end = absl::FromUnixSeconds(2000)});
}

TEST(WorkerSeriesTest, TellsOfWorkerRanksAndGpus) {
  const std::string text = Text();
  for (const char* line :
       {"milepost_worker_registered 1\n", "milepost_worker_start_time_seconds 1000\n",
        "milepost_worker_certificate_expiry_timestamp_seconds 2000\n",
        "milepost_worker_slots{device=\"cuda\",device_model=\"NVIDIA A100\"} 2\n",
        "milepost_worker_slots_out{device=\"cuda\",device_model=\"NVIDIA A100\"} 1\n",
        "milepost_worker_ranks{state=\"running\"} 1\n",
        "milepost_worker_rank_info{job_id=\"7\",rank=\"5\",generation=\"3\",slot=\"0\","
        "uuid=\"GPU-0\"} 1\n",
        "milepost_worker_rank_step{job_id=\"7\",rank=\"5\"} 120\n",
        "milepost_worker_rank_step_part_seconds{job_id=\"7\",rank=\"5\",part=\"forward\"} 0.25\n",
        "milepost_worker_gpu_utilization_ratio{uuid=\"GPU-1\"} 0.5\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, HasSubstr("host=\"host \\\"one\\\"\\n\"")) << "escaped";
  EXPECT_THAT(text, Not(HasSubstr("power_watts"))) << "what a GPU does not tell is absent";
}

TEST(WorkerSeriesTest, EachNameHasOneHeadAndAPlaceInTheTable) {
  std::set<std::string> heads;
  std::istringstream lines(Text());
  for (std::string line; std::getline(lines, line);) {
    if (!absl::StartsWith(line, "# TYPE ")) continue;
    EXPECT_TRUE(heads.insert(line).second) << line;
  }
  EXPECT_GT(heads.size(), 12u);
  for (const WorkerMetricInfo& info : AllWorkerMetrics()) {
    EXPECT_TRUE(absl::StartsWith(info.name, "milepost_worker_")) << info.name;
    EXPECT_TRUE(absl::EndsWith(info.help, ".")) << info.name;
  }
}

// Tests run in the source folder.
TEST(WorkerSeriesTest, TheDocsHaveThisTable) {
  std::ifstream file("docs/operate/metrics.md");
  std::stringstream docs;
  docs << file.rdbuf();
  EXPECT_TRUE(absl::StrContains(docs.str(), WorkerMetricsAsMarkdown()))
      << "docs/operate/metrics.md must have this table:\n"
      << WorkerMetricsAsMarkdown();
}

class WorkerPagesTest : public ::testing::Test {
 protected:
  WorkerPagesTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "milepost-pages-XXXXXX");
    dir_ = mkdtemp(pattern.data());
    options_ = {.listen = "127.0.0.1:0", .standing = [this] { return standing_; }};
  }
  ~WorkerPagesTest() override { std::filesystem::remove_all(dir_); }
  int StatusOf(const std::string& path, const std::string& authorization = "") {
    auto pages = WorkerPages::Start(options_);
    EXPECT_TRUE(pages.ok()) << pages.status();
    return (*pages)->Answer({.method = "GET", .path = path, .authorization = authorization}).status;
  }

  std::string dir_;
  AgentStanding standing_ = Standing();
  WorkerPagesOptions options_;
};

TEST_F(WorkerPagesTest, ProbesTellAStandstillAndAWorkerThatNobodyHas) {
  EXPECT_EQ(StatusOf("/healthz"), 200);
  EXPECT_EQ(StatusOf("/readyz"), 200);
  standing_.registered = false;
  EXPECT_EQ(StatusOf("/healthz"), 200) << "a new start would help nobody";
  EXPECT_EQ(StatusOf("/readyz"), 503);
  standing_.last_turn = SteadyNow() - absl::Minutes(1);
  EXPECT_EQ(StatusOf("/healthz"), 503);
  EXPECT_EQ(StatusOf("/other"), 404);
}

TEST_F(WorkerPagesTest, MetricsAreForTheToken) {
  EXPECT_EQ(StatusOf("/metrics"), 200);
  options_.token_file = dir_ + "/token";
  ASSERT_TRUE(WriteFileAtOnce(options_.token_file, "0123456789abcdef\n", kSecretMode).ok());
  EXPECT_EQ(StatusOf("/metrics"), 401);
  EXPECT_EQ(StatusOf("/metrics", "Bearer 0123456789abcdee"), 401);
  EXPECT_EQ(StatusOf("/metrics", "0123456789abcdef"), 401);
  EXPECT_EQ(StatusOf("/metrics", "Bearer 0123456789abcdef"), 200);
  EXPECT_EQ(StatusOf("/healthz"), 200);
}

TEST_F(WorkerPagesTest, SpeaksOpenMetricsToWhoAsksForIt) {
  auto pages = WorkerPages::Start(options_);
  ASSERT_TRUE(pages.ok()) << pages.status();
  const HttpResponse plain = (*pages)->Answer({.method = "GET", .path = "/metrics"});
  EXPECT_EQ(plain.content_type, kPrometheusTextType);
  const HttpResponse open = (*pages)->Answer(
      {.method = "GET", .path = "/metrics", .accept = "application/openmetrics-text"});
  EXPECT_EQ(open.content_type, kOpenMetricsType);
  EXPECT_EQ(open.body, ToOpenMetrics(plain.body));
}

TEST_F(WorkerPagesTest, WhatIsNotSafeIsRefused) {
  const auto refusal = [&] {
    auto pages = WorkerPages::Start(options_);
    EXPECT_TRUE(absl::IsInvalidArgument(pages.status())) << pages.status();
    return std::string(pages.status().message());
  };
  options_.listen = "0.0.0.0:0";
  EXPECT_THAT(refusal(), HasSubstr("--http-token-file"));
  options_.tls_dir = dir_;
  EXPECT_THAT(refusal(), HasSubstr("--http-token-file"));
  options_ = {.listen = "nonsense", .standing = options_.standing};
  EXPECT_THAT(refusal(), HasSubstr("HOST:PORT"));
  options_ = {
      .listen = "127.0.0.1:0", .token_file = dir_ + "/short", .standing = options_.standing};
  ASSERT_TRUE(WriteFileAtOnce(options_.token_file, "short", kSecretMode).ok());
  EXPECT_THAT(refusal(), HasSubstr("16 characters"));
}

}  // namespace
}  // namespace milepost::worker
