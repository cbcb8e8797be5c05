// What users do with many jobs, and with jobs that there are: labels, filters, bounds, forks,
// arrays.
#include "coordinator/rpc/server_fixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/spec/validate.h"
#include "coordinator/webhooks/receiver.h"

namespace milepost::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class OperationsTest : public ServerTest {
 protected:
  template <typename Request, typename Response>
  grpc::Status Call(grpc::Status (v1::JobService::Stub::*method)(grpc::ClientContext*,
                                                                 const Request&, Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    response->Clear();
    return (jobs_.get()->*method)(&context, request, response);
  }
  std::string SubmitNamed(const std::string& name, const std::string& team) {
    v1::SubmitJobRequest request = Request();
    request.mutable_spec()->set_name(name);
    if (!team.empty()) (*request.mutable_labels())["team"] = team;
    v1::Job job;
    const grpc::Status status = Call(&v1::JobService::Stub::SubmitJob, request, &job);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return job.name();
  }
  // All pages, of two jobs each.
  std::vector<std::string> List(v1::ListJobsRequest request) {
    std::vector<std::string> names;
    request.set_page_size(2);
    do {
      v1::ListJobsResponse page;
      const grpc::Status status = Call(&v1::JobService::Stub::ListJobs, request, &page);
      EXPECT_TRUE(status.ok()) << status.error_message();
      EXPECT_LE(page.jobs_size(), 2);
      for (const v1::Job& job : page.jobs()) names.push_back(job.name());
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    return names;
  }
  static void Require(const std::string& key, v1::LabelRequirement::Operator op,
                      const std::string& value, v1::ListJobsRequest* request) {
    v1::LabelRequirement* one = request->add_label_requirements();
    one->set_key(key);
    one->set_operator_(op);
    one->set_value(value);
  }
  template <typename Request>
  static void Set(const std::string& path, const std::string& value, Request* request) {
    v1::SpecOverride* one = request->add_overrides();
    one->set_path(path);
    one->set_value(value);
  }

  // A job of 10 steps that has run to step 5 and saved that; "checkpoints/1".
  void TrainToStepFive() {
    worker_ = std::make_unique<FakeWorker>(server_->address(), "a", 1);
    worker_->Receive();
    ASSERT_EQ(SubmitNamed("base", "vision"), "jobs/1");
    start_ = worker_->Receive().start_rank();
    worker_->Report(start_, v1::RANK_STATE_RUNNING);
    v1::TrainerState state;
    state.set_step(5);
    state.set_spec_digest(StateDigest(start_.spec()));
    std::string name;
    const grpc::Status status = Save(start_, 5, 4, &name, state);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(name, "checkpoints/1");
  }
  grpc::Status Fork(const v1::ForkJobRequest& request, v1::Job* job) {
    return Call(&v1::JobService::Stub::ForkJob, request, job);
  }

  std::unique_ptr<FakeWorker> worker_;
  v1::StartRank start_;
};

TEST_F(OperationsTest, JobsAreFoundByTheirLabelsNamesAndStates) {
  for (const char* team : {"vision", "speech", "", "vision", "vision"}) {
    SubmitNamed(absl::StrCat("job-", team), team);
  }
  v1::ListJobsRequest request;
  Require("team", v1::LabelRequirement::OPERATOR_EQUALS, "vision", &request);
  EXPECT_THAT(List(request), ElementsAre("jobs/5", "jobs/4", "jobs/1"));
  request.Clear();
  Require("team", v1::LabelRequirement::OPERATOR_ABSENT, "", &request);
  EXPECT_THAT(List(request), ElementsAre("jobs/3"));
  request.Clear();
  request.set_name_prefix("job-s");
  EXPECT_THAT(List(request), ElementsAre("jobs/2"));
  request.Clear();
  request.add_states(v1::JOB_STATE_CANCELLED);
  EXPECT_THAT(List(request), IsEmpty());
  v1::CancelJobRequest cancel;
  cancel.set_name("jobs/4");
  v1::Job job;
  ASSERT_TRUE(Call(&v1::JobService::Stub::CancelJob, cancel, &job).ok());
  EXPECT_THAT(List(request), ElementsAre("jobs/4"));
  request.set_queue("research");
  EXPECT_THAT(List(request), IsEmpty());
  // Also after a restart.
  Start();
  request.Clear();
  Require("team", v1::LabelRequirement::OPERATOR_EQUALS, "speech", &request);
  EXPECT_THAT(List(request), ElementsAre("jobs/2"));
}

TEST_F(OperationsTest, APageTokenIsGoodForItsFilterAlone) {
  for (int i = 0; i < 3; ++i) SubmitNamed("job", "vision");
  v1::ListJobsRequest request;
  request.set_page_size(1);
  request.set_name_prefix("j");
  v1::ListJobsResponse page;
  ASSERT_TRUE(Call(&v1::JobService::Stub::ListJobs, request, &page).ok());
  request.set_page_token(page.next_page_token());
  request.set_page_size(2);
  ASSERT_TRUE(Call(&v1::JobService::Stub::ListJobs, request, &page).ok());
  EXPECT_EQ(page.jobs_size(), 2);
  request.set_name_prefix("jo");
  grpc::Status status = Call(&v1::JobService::Stub::ListJobs, request, &page);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("page_token: belongs to a call with other fields"));
  request.Clear();
  Require("te am", v1::LabelRequirement::OPERATOR_EXISTS, "", &request);
  status = Call(&v1::JobService::Stub::ListJobs, request, &page);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(OperationsTest, LabelsHaveAForm) {
  v1::SubmitJobRequest request = Request();
  (*request.mutable_labels())["te am"] = "x";
  v1::Job job;
  EXPECT_EQ(Call(&v1::JobService::Stub::SubmitJob, request, &job).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  v1::UpdateJobRequest update;
  update.mutable_job()->set_name(Submit());
  (*update.mutable_job()->mutable_labels())["a"] = std::string(64, 'x');
  update.mutable_update_mask()->add_paths("labels");
  EXPECT_EQ(Call(&v1::JobService::Stub::UpdateJob, update, &job).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  (*update.mutable_job()->mutable_labels())["a"] = "x";
  ASSERT_TRUE(Call(&v1::JobService::Stub::UpdateJob, update, &job).ok());
  EXPECT_EQ(job.labels().at("a"), "x");
}

TEST_F(OperationsTest, AFixedJobIsMadeElastic) {
  FakeWorker worker(server_->address(), "a", 2);
  worker.Receive();
  const std::string name = Submit(4);  // of a batch of 4
  v1::UpdateJobRequest update;
  update.mutable_job()->set_name(name);
  update.mutable_job()->mutable_spec()->mutable_resources()->set_min_ranks(3);
  update.mutable_update_mask()->add_paths("spec.resources.min_ranks");
  v1::Job job;
  grpc::Status status = Call(&v1::JobService::Stub::UpdateJob, update, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << "3 do not divide 4";
  EXPECT_THAT(status.error_message(), HasSubstr("resources.min_ranks"));
  update.mutable_job()->mutable_spec()->mutable_resources()->set_min_ranks(2);
  update.set_validate_only(true);
  ASSERT_TRUE(Call(&v1::JobService::Stub::UpdateJob, update, &job).ok());
  EXPECT_EQ(job.spec().resources().min_ranks(), 2);
  EXPECT_FALSE(GetJob(name).spec().resources().has_min_ranks());
  update.set_validate_only(false);
  status = Call(&v1::JobService::Stub::UpdateJob, update, &job);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(worker.Receive().start_rank().world(), 2);
  // Named in the mask and not given: it is fixed again.
  update.mutable_job()->clear_spec();
  status = Call(&v1::JobService::Stub::UpdateJob, update, &job);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_FALSE(job.spec().resources().has_min_ranks());
}

TEST_F(OperationsTest, AForkBeginsWithACheckpoint) {
  TrainToStepFive();
  v1::ForkJobRequest request;
  request.set_source("jobs/1");
  request.set_request_id("f");
  Set("train.optimizer.lr", "1e-3", &request);
  Set("name", "braver", &request);
  (*request.mutable_labels())["try"] = "2";
  v1::Job job;
  request.set_validate_only(true);
  grpc::Status status = Fork(request, &job);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(job.name(), "");
  request.set_validate_only(false);
  for (int i = 0; i < 2; ++i) {
    status = Fork(request, &job);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(job.name(), "jobs/2") << "the same request is the same job";
  }
  EXPECT_EQ(job.spec().name(), "braver");
  EXPECT_EQ(job.spec().train().optimizer().lr(), 1e-3);
  EXPECT_EQ(job.spec().train().steps(), 10);
  EXPECT_EQ(job.labels().at("team"), "vision");
  EXPECT_EQ(job.labels().at("try"), "2");
  EXPECT_EQ(job.forked_from().job(), "jobs/1");
  EXPECT_EQ(job.forked_from().checkpoint(), "checkpoints/1");
  EXPECT_EQ(job.forked_from().step(), 5);
  EXPECT_EQ(job.forked_from().overrides_size(), 2);
  worker_->Report(start_, v1::RANK_STATE_SUCCEEDED);
  EXPECT_TRUE(worker_->Receive().has_forget_rank());
  const v1::StartRank start = worker_->Receive().start_rank();
  EXPECT_EQ(start.job(), "jobs/2");
  EXPECT_EQ(start.checkpoint(), "checkpoints/1");
}

// A folder that only preferences need is not given to a fork without them.
TEST_F(OperationsTest, AForkLeavesBehindWhatTheSourceAloneNeeds) {
  TrainToStepFive();
  v1::ForkJobRequest request;
  request.set_source("jobs/1");
  Set("train.dpo", "{}", &request);
  Set("data.document_separator", "1", &request);
  Set("train.init_from", "/models/tuned", &request);
  v1::Job job;
  grpc::Status status = Fork(request, &job);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(job.spec().train().init_from(), "/models/tuned");
  worker_->Report(start_, v1::RANK_STATE_SUCCEEDED);
  EXPECT_TRUE(worker_->Receive().has_forget_rank());
  start_ = worker_->Receive().start_rank();
  ASSERT_EQ(start_.job(), job.name());
  worker_->Report(start_, v1::RANK_STATE_RUNNING);
  v1::TrainerState state;
  state.set_step(7);
  std::string name;
  status = Save(start_, 7, 4, &name, state);
  ASSERT_TRUE(status.ok()) << status.error_message();
  for (const bool preferences : {true, false}) {
    v1::ForkJobRequest next;
    next.set_source(name);
    if (!preferences) Set("train.dpo", "null", &next);
    status = Fork(next, &job);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(job.spec().train().init_from(), preferences ? "/models/tuned" : "");
  }
}

TEST_F(OperationsTest, AForkOfAScriptHasAnotherCommand) {
  worker_ = std::make_unique<FakeWorker>(server_->address(), "a", 1);
  worker_->Receive();
  v1::SubmitJobRequest submit;
  submit.mutable_spec()->set_name("script");
  for (const char* part : {"python3", "train.py"}) {
    submit.mutable_spec()->mutable_script()->add_command(part);
  }
  v1::Job job;
  grpc::Status status = Call(&v1::JobService::Stub::SubmitJob, submit, &job);
  ASSERT_TRUE(status.ok()) << status.error_message();
  start_ = worker_->Receive().start_rank();
  worker_->Report(start_, v1::RANK_STATE_RUNNING);
  v1::TrainerState state;
  state.set_step(5);
  std::string name;
  status = Save(start_, 5, 4, &name, state);
  ASSERT_TRUE(status.ok()) << status.error_message();
  v1::ForkJobRequest request;
  request.set_source("jobs/1");
  Set("script.command", "[python3, train.py, --lr, '2']", &request);
  status = Fork(request, &job);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(job.spec().script().command(3), "2");
  EXPECT_EQ(job.spec().checkpoint().resume_from(), "checkpoints/1");
  EXPECT_FALSE(job.spec().has_train());
}

TEST_F(OperationsTest, AForkKeepsTheModel) {
  TrainToStepFive();
  const auto refusal = [&](const std::string& path, const std::string& value) {
    v1::ForkJobRequest request;
    request.set_source("checkpoints/1");
    Set(path, value, &request);
    v1::Job job;
    const grpc::Status status = Fork(request, &job);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << path;
    return status.error_message();
  };
  EXPECT_THAT(refusal("model.gpt2.layers", "2"),
              HasSubstr("model: checkpoints/1 does not have the tensors for it"));
  EXPECT_THAT(refusal("train.optimizer.type", "sgd"), HasSubstr("train.optimizer.type: "));
  EXPECT_THAT(refusal("data.sequence_length", "4"), HasSubstr("data.sequence_length: "));
  EXPECT_THAT(refusal("train.seed", "7"), HasSubstr("train.seed: checkpoints/1 has the seed 0"));
  EXPECT_THAT(refusal("train.steps", "5"), HasSubstr("has made 5 steps already"));
  EXPECT_THAT(refusal("checkpoint.resume_from", "checkpoints/1"), HasSubstr("name that instead"));
  EXPECT_THAT(refusal("train.stepz", "5"), HasSubstr("overrides: train.stepz: unknown field"));
  EXPECT_THAT(refusal("train.batch.micro", "3"), HasSubstr("train.batch"));
}

TEST_F(OperationsTest, ForkingNeedsACheckpoint) {
  const std::string name = Submit();
  v1::ForkJobRequest request;
  v1::Job job;
  const auto code = [&](const std::string& source) {
    request.set_source(source);
    return Fork(request, &job).error_code();
  };
  EXPECT_EQ(code(name), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(code("jobs/9"), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code("checkpoints/9"), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code("queues/default"), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code(""), grpc::StatusCode::NOT_FOUND);
}

TEST_F(OperationsTest, WhatAJobWaitsToBeginWithIsKept) {
  TrainToStepFive();  // keep_last: 1
  v1::ForkJobRequest request;
  request.set_source("checkpoints/1");
  v1::Job fork;
  ASSERT_TRUE(Fork(request, &fork).ok());
  std::string second;
  ASSERT_TRUE(Save(start_, 6, 4, &second).ok());
  const auto list = [&] {
    grpc::ClientContext context;
    v1::ListCheckpointsResponse response;
    EXPECT_TRUE(checkpoints_->ListCheckpoints(&context, {}, &response).ok());
    std::vector<std::string> names;
    for (const v1::Checkpoint& one : response.checkpoints()) names.push_back(one.name());
    return names;
  };
  EXPECT_THAT(list(), ElementsAre("checkpoints/2", "checkpoints/1"));
  const auto remove = [&] {
    grpc::ClientContext context;
    v1::DeleteCheckpointRequest request;
    request.set_name("checkpoints/1");
    v1::DeleteCheckpointResponse response;
    return checkpoints_->DeleteCheckpoint(&context, request, &response).error_code();
  };
  EXPECT_EQ(remove(), grpc::StatusCode::FAILED_PRECONDITION);
  v1::CancelJobRequest cancel;
  cancel.set_name(fork.name());
  v1::Job job;
  ASSERT_TRUE(Call(&v1::JobService::Stub::CancelJob, cancel, &job).ok());
  EXPECT_THAT(list(), ElementsAre("checkpoints/2"));
}

TEST_F(OperationsTest, AnArrayIsSubmittedListedAndCancelled) {
  Submit();
  v1::SubmitJobArrayRequest request;
  *request.mutable_spec() = Request().spec();
  request.set_request_id("a");
  request.set_max_parallel(2);
  (*request.mutable_labels())["sweep"] = "lr";
  for (int i = 0; i < 5; ++i) {
    v1::ArrayElement* element = request.add_elements();
    Set("train.optimizer.lr", absl::StrCat("1e-", i + 1), element);
    Set("train.seed", absl::StrCat(i), element);
  }
  v1::SubmitJobArrayResponse array;
  request.set_validate_only(true);
  ASSERT_TRUE(Call(&v1::JobService::Stub::SubmitJobArray, request, &array).ok());
  EXPECT_EQ(array.array(), "");
  request.set_validate_only(false);
  for (int i = 0; i < 2; ++i) {
    const grpc::Status status = Call(&v1::JobService::Stub::SubmitJobArray, request, &array);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(array.array(), "arrays/2");
    EXPECT_THAT(array.jobs(), ElementsAre("jobs/2", "jobs/3", "jobs/4", "jobs/5", "jobs/6"));
    Start();  // it is the same after a restart
  }
  const v1::Job job = GetJob("jobs/4");
  EXPECT_EQ(job.spec().train().optimizer().lr(), 1e-3);
  EXPECT_EQ(job.spec().train().seed(), 2u);
  EXPECT_EQ(job.array().index(), 2);
  EXPECT_EQ(job.array().overrides(0).path(), "train.optimizer.lr");
  EXPECT_EQ(job.labels().at("sweep"), "lr");
  v1::ListJobsRequest list;
  list.set_array("arrays/2");
  EXPECT_THAT(List(list), ElementsAre("jobs/6", "jobs/5", "jobs/4", "jobs/3", "jobs/2"));
  v1::CancelJobArrayRequest cancel;
  cancel.set_array("arrays/2");
  v1::CancelJobArrayResponse cancelled;
  ASSERT_TRUE(Call(&v1::JobService::Stub::CancelJobArray, cancel, &cancelled).ok());
  EXPECT_EQ(cancelled.jobs(), 5);
  EXPECT_EQ(cancelled.cancelled(), 5);
  ASSERT_TRUE(Call(&v1::JobService::Stub::CancelJobArray, cancel, &cancelled).ok());
  EXPECT_EQ(cancelled.cancelled(), 0);
  EXPECT_EQ(GetJob("jobs/1").state(), v1::JOB_STATE_QUEUED);
  for (const char* none : {"arrays/1", "arrays/3", "arrays/99", "x", ""}) {
    cancel.set_array(none);
    EXPECT_EQ(Call(&v1::JobService::Stub::CancelJobArray, cancel, &cancelled).error_code(),
              grpc::StatusCode::NOT_FOUND)
        << none;
  }
}

TEST_F(OperationsTest, WebhooksAreToldOfEndsAlsoAfterARestart) {
  absl::Mutex mutex;
  std::vector<Received> received;
  bool refuse = true;
  Receiver receiver([&](const Received& one) {
    absl::MutexLock lock(&mutex);
    received.push_back(one);
    return refuse ? 503 : 200;
  });
  options_.webhooks = {{"w", receiver.Url(), "0123456789abcdef", {}, {"cancelled"}}};
  Start();
  const auto cancel = [&](const std::string& name) {
    v1::CancelJobRequest request;
    request.set_name(name);
    v1::Job job;
    EXPECT_TRUE(Call(&v1::JobService::Stub::CancelJob, request, &job).ok());
  };
  const auto await = [&](size_t count) {
    const auto enough = [&] { return received.size() >= count; };
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(30)));
    return received;
  };
  const std::string job = Submit();
  cancel(job);
  cancel(job);  // it has ended already
  const Received first = await(1)[0];
  EXPECT_THAT(first.body, HasSubstr("\"name\":\"jobs/1\""));
  {
    absl::MutexLock lock(&mutex);
    received.clear();
    refuse = false;
  }
  Start();
  EXPECT_EQ(await(1)[0].delivery, first.delivery);
  EXPECT_EQ(await(1)[0].body, first.body);
  cancel(Submit());
  const Received second = await(2)[1];
  EXPECT_THAT(second.body, HasSubstr("\"name\":\"jobs/2\""));
  EXPECT_NE(second.delivery, first.delivery);
  // What was delivered is forgotten.
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  Store& store = server_->coordinator().store();
  while (!store.LoadDeliveries()->empty() && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_THAT(*store.LoadDeliveries(), IsEmpty());
  EXPECT_EQ(await(2).size(), 2u);
}

TEST_F(OperationsTest, AHostThatGoesAwayIsDrained) {
  worker_ = std::make_unique<FakeWorker>(server_->address(), "a", 1);
  worker_->Receive();
  const std::string name = Submit();
  start_ = worker_->Receive().start_rank();
  worker_->Report(start_, v1::RANK_STATE_RUNNING);
  v1::WorkerMessage message;
  message.mutable_spot_notice()->set_reason("SIGUSR2");
  worker_->Send(message);
  EXPECT_TRUE(worker_->Receive().stop_rank().graceful());
  grpc::ClientContext context;
  v1::GetWorkerRequest request;
  request.set_name("workers/a");
  v1::Worker worker;
  ASSERT_TRUE(workers_->GetWorker(&context, request, &worker).ok());
  EXPECT_EQ(worker.state(), v1::WORKER_STATE_DRAINING);
  EXPECT_EQ(worker.drain().reason(), "its host goes away: SIGUSR2");
  EXPECT_THAT(GetJob(name).reason_detail(), HasSubstr("its host goes away: SIGUSR2"));
}

// Also over a restart.
TEST_F(OperationsTest, AHostThatFailsIsExcludedUntilItPassesAHealthCheck) {
  options_.coordinator.config.exclude_after = 1;
  Start();
  worker_ = std::make_unique<FakeWorker>(server_->address(), "a", 1);
  worker_->Receive();
  const std::string name = Submit();
  start_ = worker_->Receive().start_rank();
  v1::WorkerMessage failed;
  *failed.mutable_rank_report() = FakeWorker::MakeReport(start_, v1::RANK_STATE_FAILED);
  failed.mutable_rank_report()->set_failure_class(v1::FAILURE_CLASS_DEVICE);
  worker_->Send(failed);
  while (!worker_->Receive().has_check_health()) continue;
  worker_.reset();
  Start();
  worker_ = std::make_unique<FakeWorker>(server_->address(), "a", 1);
  worker_->Receive();
  const auto host = [&] {
    grpc::ClientContext context;
    v1::GetWorkerRequest request;
    request.set_name("workers/a");
    v1::Worker worker;
    EXPECT_TRUE(workers_->GetWorker(&context, request, &worker).ok());
    return worker;
  };
  ASSERT_TRUE(host().has_exclusion());
  v1::WorkerMessage message;
  *message.mutable_health_report()->mutable_exclusion_time() = host().exclusion().time();
  worker_->Send(message);
  v1::CoordinatorMessage told;
  while (!told.has_start_rank()) told = worker_->Receive();  // and asked for a check once more
  EXPECT_EQ(told.start_rank().job(), name);
  EXPECT_FALSE(host().has_exclusion());
}

TEST_F(OperationsTest, WhatWasDroppedOfALogIsSaidOnce) {
  options_.store.logs.lines_per_job = 20;
  Start();
  worker_ = std::make_unique<FakeWorker>(server_->address(), "a", 1);
  worker_->Receive();
  const std::string name = Submit();
  start_ = worker_->Receive().start_rank();
  for (int i = 0; i < 30; ++i) {
    v1::LogLine line;
    line.set_job(name);
    line.set_generation(start_.generation());
    line.set_text(absl::StrCat("line ", i));
    line.mutable_time()->set_seconds(1000 + i);
    worker_->Log(line);
  }
  worker_->Report(start_, v1::RANK_STATE_SUCCEEDED);
  WaitFor(name, v1::JOB_STATE_SUCCEEDED);
  const auto read = [&](const v1::StreamLogsRequest& request) {
    grpc::ClientContext context;
    auto stream = jobs_->StreamLogs(&context, request);
    std::vector<v1::LogLine> lines;
    v1::LogLine line;
    while (stream->Read(&line)) lines.push_back(line);
    return lines;
  };
  v1::StreamLogsRequest request;
  request.set_name(name);
  std::vector<v1::LogLine> lines;
  // Lines are stored behind the report's back.
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  do {
    lines = read(request);
  } while ((lines.empty() || lines.back().text() != "line 29") && absl::Now() < deadline);
  const int64_t dropped = lines[0].dropped_lines();
  EXPECT_GE(dropped, 9);
  EXPECT_LE(dropped, 10);
  EXPECT_EQ(lines[0].time().seconds(), 1000 + dropped - 1);
  EXPECT_THAT(lines[0].text(), HasSubstr(absl::StrCat("... ", dropped, " lines, the last one of")));
  ASSERT_EQ(lines.size(), static_cast<size_t>(1 + 30 - dropped));
  EXPECT_EQ(lines[1].text(), absl::StrCat("line ", dropped));
  for (size_t i = 1; i < lines.size(); ++i) EXPECT_EQ(lines[i].dropped_lines(), 0);
  request.mutable_since()->set_seconds(1000 + dropped);
  EXPECT_EQ(read(request)[0].dropped_lines(), 0) << "nothing that was asked for is missing";
  request.clear_since();
  request.set_tail(5);
  EXPECT_EQ(read(request).size(), 5u);
  request.set_tail(25);
  EXPECT_EQ(read(request)[0].dropped_lines(), dropped);
}

TEST_F(OperationsTest, AnArrayIsStoredAsAWholeOrNotAtAll) {
  v1::SubmitJobArrayRequest request;
  *request.mutable_spec() = Request().spec();
  v1::SubmitJobArrayResponse array;
  const auto refusal = [&] {
    const grpc::Status status = Call(&v1::JobService::Stub::SubmitJobArray, request, &array);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_THAT(refusal(), HasSubstr("elements: must be 1 to 1000, not 0"));
  request.add_elements();
  Set("train.steps", "0", request.add_elements());
  EXPECT_THAT(refusal(), HasSubstr("elements[1]: train.steps"));
  request.mutable_elements(1)->mutable_overrides(0)->set_value("7");
  Set("resources.device", "cuda", request.mutable_elements(1));
  EXPECT_THAT(refusal(), HasSubstr("elements[1]: resources.device: all jobs of an array"));
  request.mutable_elements()->RemoveLast();
  request.set_max_parallel(-1);
  EXPECT_THAT(refusal(), HasSubstr("max_parallel"));
  request.set_max_parallel(0);
  while (request.elements_size() < 1001) request.add_elements();
  EXPECT_THAT(refusal(), HasSubstr("not 1001"));
  EXPECT_THAT(List({}), IsEmpty());
  request.mutable_elements()->RemoveLast();
  ASSERT_TRUE(Call(&v1::JobService::Stub::SubmitJobArray, request, &array).ok());
  EXPECT_EQ(array.jobs_size(), 1000);
  // An id that a job was submitted with is none of an array's.
  v1::SubmitJobRequest single = Request();
  single.set_request_id("one");
  v1::Job job;
  ASSERT_TRUE(Call(&v1::JobService::Stub::SubmitJob, single, &job).ok());
  request.set_request_id("one");
  EXPECT_EQ(Call(&v1::JobService::Stub::SubmitJobArray, request, &array).error_code(),
            grpc::StatusCode::ALREADY_EXISTS);
}

}  // namespace
}  // namespace milepost::coordinator
