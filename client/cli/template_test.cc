// `milepost template` and `job submit --template`, against a coordinator that only takes notes.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "client/cli/run_cli.h"
#include "common/error_details.h"
#include "common/exit_codes.h"
#include "common/rpc/status.h"
#include "milepost/v1/job.grpc.pb.h"
#include "milepost/v1/template.grpc.pb.h"

namespace milepost::client {
namespace {

using ::testing::HasSubstr;

constexpr char kTemplate[] =
    "# of all of us\n"
    "model:\n  gpt2: {layers: 2, width: 64, heads: 4, context: 32, vocabulary: 256}\n"
    "data: {train: /data/train.npy}\n"
    "train:\n  steps: 100\n  batch: {global: 8, micro: 4}\n";

class FakeTemplates : public v1::TemplateService::Service {
 public:
  grpc::Status GetTemplate(grpc::ServerContext*, const v1::GetTemplateRequest* request,
                           v1::Template* found) override {
    if (!templates.contains(request->name())) {
      return ToGrpcStatus(
          Refusal(v1::ERROR_REASON_TEMPLATE_NOT_FOUND, request->name(), "there is no template"));
    }
    *found = templates[request->name()];
    return grpc::Status::OK;
  }
  grpc::Status ListTemplates(grpc::ServerContext*, const v1::ListTemplatesRequest*,
                             v1::ListTemplatesResponse* response) override {
    for (const auto& [name, one] : templates) *response->add_templates() = one;
    return grpc::Status::OK;
  }
  grpc::Status CreateTemplate(grpc::ServerContext*, const v1::CreateTemplateRequest* request,
                              v1::Template* made) override {
    *made = request->template_();
    made->set_etag("v1");
    made->set_name(
        absl::StrCat("projects/", request->project(), "/templates/", request->template_id()));
    templates[made->name()] = *made;
    return grpc::Status::OK;
  }
  grpc::Status UpdateTemplate(grpc::ServerContext*, const v1::UpdateTemplateRequest* request,
                              v1::Template* made) override {
    updates.push_back(*request);
    *made = request->template_();
    return grpc::Status::OK;
  }
  grpc::Status DeleteTemplate(grpc::ServerContext*, const v1::DeleteTemplateRequest* request,
                              v1::DeleteTemplateResponse*) override {
    templates.erase(request->name());
    return grpc::Status::OK;
  }

  std::map<std::string, v1::Template> templates;
  std::vector<v1::UpdateTemplateRequest> updates;
};

class FakeJobs : public v1::JobService::Service {
 public:
  grpc::Status SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest* request,
                         v1::Job* job) override {
    submitted.push_back(*request);
    job->set_name("jobs/1");
    return grpc::Status::OK;
  }
  grpc::Status SubmitJobArray(grpc::ServerContext*, const v1::SubmitJobArrayRequest* request,
                              v1::SubmitJobArrayResponse* response) override {
    arrays.push_back(*request);
    response->set_array("arrays/1");
    return grpc::Status::OK;
  }

  std::vector<v1::SubmitJobRequest> submitted;
  std::vector<v1::SubmitJobArrayRequest> arrays;
};

class TemplateCommandTest : public ::testing::Test {
 protected:
  TemplateCommandTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "milepost-cli-XXXXXX");
    dir_ = mkdtemp(pattern.data());
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&templates_);
    builder.RegisterService(&jobs_);
    server_ = builder.BuildAndStart();
    at_ = absl::StrCat(" --coordinator 127.0.0.1:", port);
  }
  ~TemplateCommandTest() override { std::filesystem::remove_all(dir_); }
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_ + "/" + name) << text;
    return dir_ + "/" + name;
  }
  Outcome Run(const std::string& line) { return RunCli(line + at_); }

  std::string dir_;
  FakeTemplates templates_;
  FakeJobs jobs_;
  std::unique_ptr<grpc::Server> server_;
  std::string at_;
};

TEST_F(TemplateCommandTest, AreStoredShownListedAndDeleted) {
  const std::string file = Write("gpt2.yaml", kTemplate);
  const Outcome made = Run("template create gpt2 " + file + " --project vision");
  EXPECT_EQ(made.exit_code, kExitOk) << made.err;
  EXPECT_EQ(made.out, "projects/vision/templates/gpt2\n");
  EXPECT_EQ(Run("template describe gpt2 --project vision").out, kTemplate);
  EXPECT_THAT(Run("template list").out, HasSubstr("projects/vision/templates/gpt2  v1"));
  EXPECT_EQ(Run("template create gpt2 " + file + " --replace --etag v1").exit_code, kExitOk);
  ASSERT_EQ(templates_.updates.size(), 1u);
  EXPECT_EQ(templates_.updates[0].template_().name(), "projects/default/templates/gpt2");
  EXPECT_EQ(templates_.updates[0].template_().etag(), "v1");
  EXPECT_FALSE(templates_.updates[0].allow_missing());
  EXPECT_EQ(Run("template delete projects/vision/templates/gpt2").exit_code, kExitOk);
  EXPECT_TRUE(templates_.templates.empty());
}

TEST_F(TemplateCommandTest, WhatIsWrongIsToldBeforeItIsSent) {
  const std::string file = Write("bad.yaml", "data:\n  train: mine.npy\n");
  const Outcome outcome = RunCli("template create bad " + file);
  EXPECT_EQ(outcome.exit_code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("bad.yaml:2: data.train: must begin with '/'"));
  EXPECT_THAT(RunCli("job submit").err, HasSubstr("spec is required, or --template"));
  EXPECT_EQ(Run("job submit --template none").exit_code, kExitNotFound);
}

TEST_F(TemplateCommandTest, AreWhatJobsAreLaidOver) {
  ASSERT_EQ(Run("template create gpt2 " + Write("t.yaml", kTemplate)).exit_code, kExitOk);
  const std::string mine = Write("mine.yaml", "train: {steps: 7}\n");
  const Outcome outcome =
      Run("job submit --template gpt2 " + mine + " --set train.optimizer.lr=0.5 --validate-only");
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  EXPECT_EQ(Run("job submit --template gpt2").exit_code, kExitOk);
  ASSERT_EQ(jobs_.submitted.size(), 2u);
  const v1::JobSpec& spec = jobs_.submitted[0].spec();
  EXPECT_TRUE(jobs_.submitted[0].validate_only());
  EXPECT_EQ(spec.name(), "mine");
  EXPECT_EQ(spec.train().steps(), 7);
  EXPECT_EQ(spec.train().optimizer().lr(), 0.5);
  EXPECT_EQ(spec.train().batch().global(), 8);
  EXPECT_EQ(jobs_.submitted[1].spec().name(), "gpt2");
  EXPECT_EQ(jobs_.submitted[1].spec().train().steps(), 100);
  const Outcome wrong = Run("job submit --template gpt2 " + Write("w.yaml", "train: {steps: 0}\n"));
  EXPECT_EQ(wrong.exit_code, kExitUsage);
  EXPECT_THAT(wrong.err, HasSubstr("w.yaml:1: train.steps"));
}

TEST_F(TemplateCommandTest, AreWhatArraysAreLaidOver) {
  ASSERT_EQ(Run("template create gpt2 " + Write("t.yaml", kTemplate)).exit_code, kExitOk);
  const Outcome outcome = Run("job submit --template gpt2 --array train.seed=1,2");
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  ASSERT_EQ(jobs_.arrays.size(), 1u);
  EXPECT_EQ(jobs_.arrays[0].elements_size(), 2);
  EXPECT_EQ(jobs_.arrays[0].spec().train().steps(), 100);
  // As it is written: what follows from it is derived for each.
  EXPECT_FALSE(jobs_.arrays[0].spec().train().batch().has_accumulation());
}

}  // namespace
}  // namespace milepost::client
