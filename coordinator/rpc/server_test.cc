// The coordinator through its API, over loopback.
#include "coordinator/rpc/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <xxhash.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/desks/coordinator.h"
#include "coordinator/rpc/server_fixture.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/store.h"
#include "milepost/v1/checkpoint.grpc.pb.h"
#include "milepost/v1/job.grpc.pb.h"
#include "milepost/v1/queue.grpc.pb.h"

namespace milepost::coordinator {
namespace {

using ::testing::HasSubstr;

TEST_F(ServerTest, RunsAJob) {
  FakeWorker worker(server_->address(), "a", 2);
  EXPECT_EQ(worker.Receive().welcome().lease_seconds(), 5);
  const std::string job = Submit(2);
  EXPECT_EQ(job, "jobs/1");
  const v1::StartRank first = worker.Receive().start_rank();
  const v1::StartRank second = worker.Receive().start_rank();
  EXPECT_EQ(first.world(), 2);
  EXPECT_EQ(second.rank(), 1);
  worker.Report(first, v1::RANK_STATE_RUNNING);
  worker.Report(second, v1::RANK_STATE_RUNNING);
  WaitFor(job, v1::JOB_STATE_RUNNING);
  worker.Report(first, v1::RANK_STATE_SUCCEEDED);
  EXPECT_EQ(worker.Receive().forget_rank().rank(), 0);
  worker.Report(second, v1::RANK_STATE_SUCCEEDED);
  WaitFor(job, v1::JOB_STATE_SUCCEEDED);
}

TEST_F(ServerTest, InvalidSpecIsRefusedAndNothingStored) {
  v1::SubmitJobRequest request = Request();
  request.mutable_spec()->mutable_model()->mutable_gpt2()->set_heads(3);
  v1::Job job;
  {
    grpc::ClientContext context;
    grpc::Status status = jobs_->SubmitJob(&context, request, &job);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("heads"));
    EXPECT_FALSE(status.error_details().empty());
  }
  request = Request();
  request.set_validate_only(true);
  {
    grpc::ClientContext context;
    ASSERT_TRUE(jobs_->SubmitJob(&context, request, &job).ok());
    EXPECT_EQ(job.name(), "");
    EXPECT_EQ(job.spec().restart().max_failures(), 3);  // normalised
  }
  grpc::ClientContext context;
  v1::ListJobsResponse list;
  ASSERT_TRUE(jobs_->ListJobs(&context, {}, &list).ok());
  EXPECT_EQ(list.jobs_size(), 0);
}

TEST_F(ServerTest, SameRequestIdIsTheSameJobAlsoAfterARestart) {
  v1::SubmitJobRequest request = Request();
  request.set_request_id("0c1d");
  for (int i = 0; i < 3; ++i) {
    grpc::ClientContext context;
    v1::Job job;
    ASSERT_TRUE(jobs_->SubmitJob(&context, request, &job).ok());
    EXPECT_EQ(job.name(), "jobs/1");
    if (i == 1) Start();
  }
}

TEST_F(ServerTest, JobsThatAreSubmittedAtOnceAreAllThereAfterARestart) {
  constexpr int kCallers = 8;
  constexpr int kEach = 20;
  std::vector<std::set<std::string>> submitted(kCallers);
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([&, i] {
      for (int k = 0; k < kEach; ++k) submitted[i].insert(Submit());
    });
  }
  for (std::thread& caller : callers) caller.join();
  std::set<std::string> all;
  for (const std::set<std::string>& names : submitted) all.insert(names.begin(), names.end());
  EXPECT_EQ(all.size(), static_cast<size_t>(kCallers * kEach));
  Start();
  for (const std::string& name : all) EXPECT_EQ(GetJob(name).name(), name);
}

TEST_F(ServerTest, AWorkerIsDrainedAndTakenBack) {
  FakeWorker worker(server_->address(), "a", 1);
  worker.Receive();
  v1::DrainWorkerRequest drain;
  drain.set_name("workers/a");
  v1::Worker state;
  // Welcome comes before the Hello has been dealt with.
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  grpc::Status known;
  do {
    grpc::ClientContext context;
    v1::GetWorkerRequest get;
    get.set_name("workers/a");
    known = workers_->GetWorker(&context, get, &state);
  } while (!known.ok() && absl::Now() < deadline);
  ASSERT_TRUE(known.ok()) << known.error_message();
  {
    grpc::ClientContext context;
    EXPECT_EQ(workers_->DrainWorker(&context, drain, &state).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);  // without a reason
  }
  drain.set_reason("new disk");
  {
    grpc::ClientContext context;
    EXPECT_TRUE(workers_->DrainWorker(&context, drain, &state).ok());
  }
  EXPECT_EQ(state.state(), v1::WORKER_STATE_DRAINED);
  EXPECT_EQ(state.drain().reason(), "new disk");
  const std::string job = Submit();
  v1::ResumeWorkerRequest resume;
  resume.set_name("workers/a");
  grpc::ClientContext context;
  EXPECT_TRUE(workers_->ResumeWorker(&context, resume, &state).ok());
  EXPECT_EQ(worker.Receive().start_rank().job(), job);
}

TEST_F(ServerTest, JobsAreUpdatedByMaskAndEtag) {
  const std::string name = Submit();
  v1::UpdateJobRequest update;
  update.mutable_job()->set_name(name);
  update.mutable_job()->mutable_spec()->mutable_scheduling()->set_priority(7);
  update.mutable_job()->mutable_spec()->mutable_scheduling()->set_queue("none");
  const auto call = [&] {
    grpc::ClientContext context;
    v1::Job job;
    const grpc::Status status = jobs_->UpdateJob(&context, update, &job);
    return std::make_pair(status.error_code(), job);
  };
  EXPECT_EQ(call().first, grpc::StatusCode::INVALID_ARGUMENT);  // no mask
  update.mutable_update_mask()->add_paths("spec.train.steps");
  EXPECT_EQ(call().first, grpc::StatusCode::INVALID_ARGUMENT);
  update.mutable_update_mask()->set_paths(0, "spec.scheduling.priority");
  update.set_validate_only(true);
  EXPECT_EQ(call().first, grpc::StatusCode::OK);
  EXPECT_EQ(GetJob(name).spec().scheduling().priority(), 0);
  update.set_validate_only(false);
  const auto [code, job] = call();
  EXPECT_EQ(code, grpc::StatusCode::OK);
  EXPECT_EQ(job.spec().scheduling().priority(), 7);
  EXPECT_EQ(job.spec().scheduling().queue(), "default") << "the mask does not name it";
  update.mutable_job()->set_etag("v0");
  EXPECT_EQ(call().first, grpc::StatusCode::ABORTED);
  update.mutable_job()->set_etag(job.etag());
  EXPECT_EQ(call().first, grpc::StatusCode::OK);
}

TEST_F(ServerTest, QueuesAreKept) {
  auto queues = v1::QueueService::NewStub(MakeChannel(server_->address()));
  v1::CreateQueueRequest create;
  create.set_queue_id("team");
  v1::SlotQuota* quota = create.mutable_queue()->add_quotas();
  quota->set_device(v1::DEVICE_KIND_CPU);
  quota->set_guaranteed(4);
  quota->set_limit(2);
  v1::Queue queue;
  {
    grpc::ClientContext context;
    EXPECT_EQ(queues->CreateQueue(&context, create, &queue).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);  // a limit below the guarantee
  }
  quota->set_limit(8);
  {
    grpc::ClientContext context;
    EXPECT_TRUE(queues->CreateQueue(&context, create, &queue).ok());
  }
  {
    grpc::ClientContext context;
    EXPECT_EQ(queues->CreateQueue(&context, create, &queue).error_code(),
              grpc::StatusCode::ALREADY_EXISTS);
  }
  v1::UpdateQueueRequest update;
  update.mutable_queue()->set_name("queues/team");
  update.mutable_queue()->set_weight(3);
  update.mutable_update_mask()->add_paths("weight");
  {
    grpc::ClientContext context;
    EXPECT_TRUE(queues->UpdateQueue(&context, update, &queue).ok());
  }
  EXPECT_EQ(queue.quotas(0).limit(), 8);
  Start();
  queues = v1::QueueService::NewStub(MakeChannel(server_->address()));
  v1::ListQueuesResponse list;
  grpc::ClientContext context;
  EXPECT_TRUE(queues->ListQueues(&context, {}, &list).ok());
  ASSERT_EQ(list.queues_size(), 2);
  EXPECT_EQ(list.queues(0).name(), "queues/default");
  EXPECT_EQ(list.queues(1).weight(), 3);
  EXPECT_EQ(list.queues(1).quotas(0).guaranteed(), 4);
}

// All of these are more than a message may have.
TEST_F(ServerTest, PagesOfLargeJobsFitIntoAMessage) {
  v1::SubmitJobRequest large = Request();
  v1::DataSpec* data = large.mutable_spec()->mutable_data();
  data->clear_train();
  for (int i = 0; i < 23; ++i) data->add_mixture()->set_path("/" + std::string(4000, 'x') + ".npy");
  const int jobs = 190;
  for (int i = 0; i < jobs; ++i) {
    grpc::ClientContext context;
    v1::Job job;
    const grpc::Status status = jobs_->SubmitJob(&context, large, &job);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  v1::ListJobsRequest request;
  request.set_page_size(500);
  int listed = 0, pages = 0;
  do {
    grpc::ClientContext context;
    v1::ListJobsResponse page;
    const grpc::Status status = jobs_->ListJobs(&context, request, &page);
    ASSERT_TRUE(status.ok()) << status.error_message();
    listed += page.jobs_size();
    ++pages;
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(listed, jobs);
  EXPECT_EQ(pages, 5);  // of 45 each, and ten
}

TEST_F(ServerTest, ListsInPages) {
  for (int i = 0; i < 5; ++i) Submit();
  std::vector<std::string> names;
  v1::ListJobsRequest request;
  request.set_page_size(2);
  do {
    grpc::ClientContext context;
    v1::ListJobsResponse page;
    ASSERT_TRUE(jobs_->ListJobs(&context, request, &page).ok());
    for (const v1::Job& job : page.jobs()) names.push_back(job.name());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_THAT(names, ::testing::ElementsAre("jobs/5", "jobs/4", "jobs/3", "jobs/2", "jobs/1"));
  for (auto [size, token] : {std::pair<int, std::string>{-1, ""}, {1, "nonsense"}}) {
    request.set_page_size(size);
    request.set_page_token(token);
    grpc::ClientContext context;
    v1::ListJobsResponse page;
    EXPECT_EQ(jobs_->ListJobs(&context, request, &page).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
}

TEST_F(ServerTest, RunningRanksAreAdoptedByTheNextCoordinator) {
  const std::string job = Submit();
  v1::StartRank start;
  {
    FakeWorker worker(server_->address(), "a", 1);
    worker.Receive();
    start = worker.Receive().start_rank();
    worker.Report(start, v1::RANK_STATE_RUNNING);
    WaitFor(job, v1::JOB_STATE_RUNNING);
    Start();
  }
  EXPECT_EQ(GetJob(job).state(), v1::JOB_STATE_RUNNING);
  FakeWorker worker(server_->address(), "a", 1, 1,
                    {FakeWorker::MakeReport(start, v1::RANK_STATE_RUNNING)});
  EXPECT_TRUE(worker.Receive().has_welcome());
  worker.Report(start, v1::RANK_STATE_SUCCEEDED);
  EXPECT_TRUE(worker.Receive().has_forget_rank());  // nothing between: no stop, no start
  EXPECT_EQ(WaitFor(job, v1::JOB_STATE_SUCCEEDED).generation(), 1);
}

TEST_F(ServerTest, RanksOfWorkersThatAreGoneAreNoFailureOfTheirJob) {
  const std::string job = Submit();
  {
    FakeWorker worker(server_->address(), "a", 1);
    worker.Receive();  // Welcome
    const v1::StartRank start = worker.Receive().start_rank();
    ASSERT_EQ(start.job(), job);
    worker.Report(start, v1::RANK_STATE_RUNNING);
    WaitFor(job, v1::JOB_STATE_RUNNING);
    server_->Stop();
  }
  options_.coordinator.workers_gone = true;
  Start();
  const v1::Job after = GetJob(job);
  EXPECT_EQ(after.state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(after.failures(), 0);
  EXPECT_EQ(after.attempts(), 1);
}

TEST_F(ServerTest, SilentWorkerLosesItsLease) {
  options_.coordinator.config.lease = absl::Milliseconds(300);
  Start();
  FakeWorker worker(server_->address(), "a", 1);
  worker.Receive();
  const std::string job = Submit();
  worker.Receive();
  const v1::Job lost = WaitFor(job, v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(lost.first_failure().class_(), v1::FAILURE_CLASS_HOST);
  grpc::Status status = worker.Finish();  // cut off, so that it comes again
  EXPECT_FALSE(status.ok());
}

// A watchdog that it feeds is not fed while that thread stands still.
TEST_F(ServerTest, TheThreadThatDecidesTellsOfItsTurns) {
  absl::Mutex mutex;
  std::thread::id decides, turns;
  Load seen;
  bool wanted = false;
  // Asked by the thread that decides.
  class Listener : public EndListener {
   public:
    explicit Listener(std::function<void()> asked) : asked_(std::move(asked)) {}
    std::vector<v1::WebhookDelivery> MessagesFor(const v1::Job&) override {
      asked_();
      return {};
    }
    void Send(uint64_t, const v1::WebhookDelivery&) override {}

   private:
    const std::function<void()> asked_;
  } listener([&] {
    absl::MutexLock lock(&mutex);
    decides = std::this_thread::get_id();
  });
  options_.coordinator.listener = &listener;
  options_.coordinator.on_turn = [&](const Load& load) {
    absl::MutexLock lock(&mutex);
    turns = std::this_thread::get_id();
    seen = load;
    wanted = load.running == 1 && load.waiting == 1 && load.workers == 1;
  };
  Start();
  FakeWorker worker(server_->address(), "a", 1);
  EXPECT_TRUE(worker.Receive().has_welcome());
  Submit();
  Submit();
  {
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&wanted), absl::Seconds(20)))
        << seen.running << " run, " << seen.waiting << " wait, " << seen.workers << " workers";
  }
  grpc::ClientContext context;
  v1::CancelJobRequest request;
  request.set_name("jobs/2");
  v1::Job job;
  EXPECT_TRUE(jobs_->CancelJob(&context, request, &job).ok());
  server_.reset();  // nothing calls either any more
  EXPECT_NE(decides, std::thread::id());
  EXPECT_EQ(turns, decides);
}

TEST_F(ServerTest, BadHellosAreRefused) {
  FakeWorker newer(server_->address(), "a", 1, 5);
  EXPECT_TRUE(newer.Receive().has_welcome());
  FakeWorker older(server_->address(), "a", 1, 4);
  EXPECT_EQ(older.Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  FakeWorker slashed(server_->address(), "a/b", 1);
  EXPECT_EQ(slashed.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  FakeWorker empty(server_->address(), "b", 0);
  EXPECT_EQ(empty.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  Submit();
  EXPECT_TRUE(newer.Receive().has_start_rank());  // the first still has its stream
}

// It would keep its thread for ever.
TEST_F(ServerTest, AnIdleStreamOfChunksEndsWithItsAttempt) {
  FakeWorker worker(server_->address(), "a", 1);
  ASSERT_TRUE(worker.Receive().has_welcome());
  const std::string job = Submit();
  const v1::StartRank start = worker.Receive().start_rank();
  v1::WriteChunksRequest message;
  const grpc::Status first = Write(start, 1, 4, message.mutable_checkpoint());
  ASSERT_TRUE(first.ok()) << first.error_message();
  message.set_generation(start.generation());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  v1::WriteChunksResponse response;
  auto writer = checkpoints_->WriteChunks(&context, &response);
  ASSERT_TRUE(writer->Write(message));
  worker.Report(start, v1::RANK_STATE_SUCCEEDED);
  WaitFor(job, v1::JOB_STATE_SUCCEEDED);
  EXPECT_NE(writer->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(ServerTest, HellosThatWouldBreakPlacementOrListsAreRefused) {
  const auto say = [&](const std::function<void(v1::Hello*)>& change) {
    v1::WorkerMessage message;
    v1::Hello* hello = message.mutable_hello();
    hello->set_worker_id("a");
    hello->set_incarnation(1);
    for (int i = 0; i < 2; ++i) {
      hello->add_slots()->set_index(i);
      hello->mutable_slots(i)->set_device(v1::DEVICE_KIND_CPU);
    }
    change(hello);
    grpc::ClientContext context;
    auto stream = workers_->Session(&context);
    stream->Write(message);
    v1::CoordinatorMessage answer;
    while (stream->Read(&answer)) {
    }
    return stream->Finish();
  };
  for (int i = 0; i < 2; ++i) Submit();
  const grpc::Status twice = say([](v1::Hello* hello) { hello->mutable_slots(1)->set_index(0); });
  EXPECT_EQ(twice.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(twice.error_message(),
            "slots: two have the index 0: give each slot an index of its own");
  const std::string text(256, 'x');
  EXPECT_EQ(say([&](v1::Hello* hello) { hello->set_host(text); }).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(say([&](v1::Hello* hello) { hello->set_version(text); }).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  for (const int index : {-5, 1024}) {
    const grpc::Status odd =
        say([&](v1::Hello* hello) { hello->mutable_slots(1)->set_index(index); });
    EXPECT_EQ(odd.error_message(), absl::StrCat("slots: indices must be 0 to 1023, not ", index));
  }
  const grpc::Status device = say([](v1::Hello* hello) {
    hello->mutable_slots(1)->set_device(static_cast<v1::DeviceKind>(77));
  });
  EXPECT_EQ(device.error_message(),
            "slots: slot 1 is a device of kind 77, which this coordinator does not know");
  FakeWorker good(server_->address(), "a", 2);
  EXPECT_TRUE(good.Receive().has_welcome());
  EXPECT_TRUE(good.Receive().has_start_rank());
}

TEST_F(ServerTest, KeysMeetWithinAGeneration) {
  FakeWorker worker(server_->address(), "a", 1);
  worker.Receive();
  const std::string job = Submit();
  const v1::StartRank start = worker.Receive().start_rank();
  v1::GetKeyRequest get;
  get.set_job(job);
  get.set_generation(1);
  get.set_key("rank0");
  std::thread waiter([&] {
    grpc::ClientContext context;
    v1::GetKeyResponse response;
    EXPECT_TRUE(rendezvous_->GetKey(&context, get, &response).ok());
    EXPECT_EQ(response.value(), "address");
  });
  v1::PutKeyRequest put;
  put.set_job(job);
  put.set_generation(1);
  put.set_key("rank0");
  put.set_value("address");
  v1::PutKeyResponse ignored;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(rendezvous_->PutKey(&context, put, &ignored).ok());
  }
  waiter.join();
  Start();  // keys outlive the coordinator
  {
    grpc::ClientContext context;
    v1::GetKeyResponse response;
    EXPECT_TRUE(rendezvous_->GetKey(&context, get, &response).ok());
  }
  auto get_code = [&](const std::string& key, int64_t generation) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
    v1::GetKeyResponse response;
    get.set_key(key);
    get.set_generation(generation);
    return rendezvous_->GetKey(&context, get, &response).error_code();
  };
  EXPECT_EQ(get_code("other", 1), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(get_code("rank0", 2), grpc::StatusCode::ABORTED);
  put.set_generation(0);
  grpc::ClientContext context;
  EXPECT_EQ(rendezvous_->PutKey(&context, put, &ignored).error_code(), grpc::StatusCode::ABORTED);
}

TEST_F(ServerTest, WhatAnAttemptHasChosenIsForLaterOnesToo) {
  FakeWorker worker(server_->address(), "a", 1);
  worker.Receive();
  const std::string job = Submit();
  worker.Receive();
  const auto put = [&](int64_t generation, const std::string& choices) {
    grpc::ClientContext context;
    v1::PutChoicesRequest request;
    request.set_job(job);
    request.set_generation(generation);
    request.set_choices(choices);
    v1::PutChoicesResponse ignored;
    return rendezvous_->PutChoices(&context, request, &ignored).error_code();
  };
  const auto get = [&](int64_t generation) -> std::string {
    grpc::ClientContext context;
    v1::GetChoicesRequest request;
    request.set_job(job);
    request.set_generation(generation);
    v1::GetChoicesResponse response;
    const grpc::Status status = rendezvous_->GetChoices(&context, request, &response);
    return status.ok() ? response.choices() : absl::StrCat("error ", status.error_code());
  };
  EXPECT_EQ(get(1), "");
  EXPECT_EQ(put(1, "first"), grpc::StatusCode::OK);
  EXPECT_EQ(put(1, "second"), grpc::StatusCode::OK);
  EXPECT_EQ(put(2, "of another generation"), grpc::StatusCode::ABORTED);
  EXPECT_EQ(put(1, std::string((64 << 10) + 1, 'x')), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(get(1), "second");
  EXPECT_EQ(get(2), absl::StrCat("error ", grpc::StatusCode::ABORTED));
  Start();
  EXPECT_EQ(get(1), "second");
}

TEST_F(ServerTest, LogsAreFollowedToTheEnd) {
  FakeWorker worker(server_->address(), "a", 2);
  worker.Receive();
  const std::string job = Submit(2);
  const v1::StartRank start = worker.Receive().start_rank();
  const v1::StartRank second = worker.Receive().start_rank();
  auto log = [&](int count) {
    v1::WorkerMessage message;
    for (int i = 0; i < count; ++i) {
      v1::LogLine* line = message.mutable_logs()->add_lines();
      line->set_job(job);
      line->set_generation(start.generation());
      line->set_rank(i % 2);
      line->set_text("line " + std::to_string(i));
    }
    worker.Send(message);
  };
  log(10);
  v1::StreamLogsRequest request;
  request.set_name(job);
  request.set_follow(true);
  grpc::ClientContext context;
  auto stream = jobs_->StreamLogs(&context, request);
  v1::LogLine line;
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(stream->Read(&line));
    EXPECT_EQ(line.sequence(), static_cast<uint64_t>(i + 1));
  }
  log(4);
  worker.Report(start, v1::RANK_STATE_SUCCEEDED);
  worker.Report(second, v1::RANK_STATE_SUCCEEDED);
  int rest = 0;
  while (stream->Read(&line)) ++rest;
  EXPECT_EQ(rest, 4);
  EXPECT_TRUE(stream->Finish().ok());

  request.set_follow(false);
  request.set_tail(3);
  request.set_rank(1);
  grpc::ClientContext tail_context;
  auto tail = jobs_->StreamLogs(&tail_context, request);
  std::vector<std::string> texts;
  while (tail->Read(&line)) texts.push_back(line.text());
  EXPECT_THAT(texts, ::testing::ElementsAre("line 9", "line 1", "line 3"));
}

TEST_F(ServerTest, CheckpointsAreSavedRetainedAndResumedFrom) {
  FakeWorker worker(server_->address(), "a", 1);
  worker.Receive();
  const std::string job = Submit();
  const v1::StartRank start = worker.Receive().start_rank();
  const int64_t count = (3 << 20) + 17;  // several chunks
  std::string first;
  std::string second;
  ASSERT_TRUE(Save(start, 1, count, &first).ok());
  EXPECT_EQ(GetJob(job).latest_checkpoint(), first);
  ASSERT_TRUE(Save(start, 2, count, &second).ok());
  EXPECT_EQ(GetJob(job).latest_checkpoint(), second);

  grpc::ClientContext list_context;
  v1::ListCheckpointsResponse list;
  ASSERT_TRUE(checkpoints_->ListCheckpoints(&list_context, {}, &list).ok());
  ASSERT_EQ(list.checkpoints_size(), 1);  // keep_last is 1
  EXPECT_EQ(list.checkpoints(0).name(), second);

  v1::ReadChunksRequest read;
  read.set_name(second);
  grpc::ClientContext read_context;
  auto reader = checkpoints_->ReadChunks(&read_context, read);
  v1::Chunk chunk;
  int64_t next = 0;
  while (reader->Read(&chunk)) {
    EXPECT_EQ(chunk.begin(), next);
    EXPECT_EQ(chunk.data(), std::string((chunk.end() - chunk.begin()) * 4, 'c'));
    next = chunk.end();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(next, count);

  worker.Report(start, v1::RANK_STATE_FAILED);
  EXPECT_TRUE(worker.Receive().has_forget_rank());
  const v1::StartRank again = worker.Receive().start_rank();
  EXPECT_EQ(again.generation(), 2);
  EXPECT_EQ(again.checkpoint(), second);
  // The old generation is fenced, the new one is not.
  std::string third;
  EXPECT_EQ(Save(start, 3, 10, &third).error_code(), grpc::StatusCode::ABORTED);
  EXPECT_TRUE(Save(again, 3, 10, &third).ok());
  std::string twin;
  grpc::Status twice = Save(again, 3, 10, &twin);
  EXPECT_EQ(twice.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_THAT(twice.error_message(), HasSubstr(third));
}

// The disk is full, say, from right after the checkpoint has become visible.
TEST_F(ServerTest, ACheckpointThatCouldNotBeNotedIsResumedFromAllTheSame) {
  std::atomic<CheckpointStore*> store = nullptr;
  options_.coordinator.may_act = [&] {
    CheckpointStore* its = store;
    const bool fails = its != nullptr && !its->List("").empty();
    return fails ? absl::UnavailableError("not now") : absl::OkStatus();
  };
  Start();
  FakeWorker worker(server_->address(), "a", 1);
  worker.Receive();
  const std::string job = Submit();
  const v1::StartRank start = worker.Receive().start_rank();
  v1::CommitCheckpointRequest request;
  ASSERT_TRUE(Write(start, 1, 10, request.mutable_checkpoint()).ok());
  request.set_job(job);
  request.set_generation(start.generation());
  store = &server_->coordinator().store().checkpoints();
  EXPECT_TRUE(server_->coordinator()
                  .checkpoints()
                  .Commit(request, {.deadline = absl::InfiniteFuture(),
                                    .gone = [] { return false; },
                                    .holds = [] { return absl::OkStatus(); }})
                  .ok());
  store = nullptr;
  worker.Report(start, v1::RANK_STATE_FAILED);
  EXPECT_TRUE(worker.Receive().has_forget_rank());
  EXPECT_EQ(worker.Receive().start_rank().checkpoint(), request.checkpoint());
  EXPECT_EQ(GetJob(job).latest_checkpoint(), request.checkpoint());
  server_.reset();  // before what it asks
}

// A worker hands it to its trainers in one message.
TEST_F(ServerTest, AnOverlongSpecIsRefused) {
  v1::SubmitJobRequest request = Request();
  for (int i = 0; i < 200; ++i) {
    request.mutable_spec()->mutable_data()->add_mixture()->set_path(
        absl::StrCat("/", std::string(1000, 'd'), i));
  }
  grpc::ClientContext context;
  v1::Job job;
  const grpc::Status status = jobs_->SubmitJob(&context, request, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("bytes in all; at most 98304: name fewer"));
}

TEST_F(ServerTest, NewestCheckpointOfARunningJobCannotBeDeleted) {
  FakeWorker worker(server_->address(), "a", 1);
  worker.Receive();
  const std::string job = Submit();
  const v1::StartRank start = worker.Receive().start_rank();
  std::string name;
  ASSERT_TRUE(Save(start, 1, 10, &name).ok());
  v1::DeleteCheckpointRequest request;
  request.set_name(name);
  auto remove = [&] {
    grpc::ClientContext context;
    v1::DeleteCheckpointResponse response;
    return checkpoints_->DeleteCheckpoint(&context, request, &response).error_code();
  };
  EXPECT_EQ(remove(), grpc::StatusCode::FAILED_PRECONDITION);
  worker.Report(start, v1::RANK_STATE_SUCCEEDED);
  WaitFor(job, v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(remove(), grpc::StatusCode::OK);
  EXPECT_EQ(remove(), grpc::StatusCode::OK) << "it is in the bin already";
  request.set_purge(true);
  EXPECT_EQ(remove(), grpc::StatusCode::OK);
  EXPECT_EQ(remove(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServerTest, StopsAtOnceWithClientsConnected) {
  FakeWorker worker(server_->address(), "a", 1);
  worker.Receive();
  const std::string job = Submit();
  grpc::ClientContext watch_context;
  v1::GetJobRequest watch;
  watch.set_name(job);
  auto watching = jobs_->WatchJob(&watch_context, watch);
  v1::Job seen;
  ASSERT_TRUE(watching->Read(&seen));
  grpc::ClientContext log_context;
  v1::StreamLogsRequest logs;
  logs.set_name(job);
  logs.set_follow(true);
  auto following = jobs_->StreamLogs(&log_context, logs);
  const absl::Time start = absl::Now();
  server_->Stop();
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
  while (watching->Read(&seen)) {
  }
  EXPECT_EQ(watching->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ServerTest, AddressesThatCannotBeServedAreNamed) {
  ServerOptions other = options_;
  other.store.dir = dir_ + "/other";
  other.listen = server_->address();
  absl::Status status = CoordinatorServer::Start(other).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(server_->address()));
  for (const char* listen : {"0.0.0.0:0", "[::]:0", "nonsense", "127.0.0.1:99999", ":0"}) {
    other.listen = listen;
    EXPECT_EQ(CoordinatorServer::Start(other).status().code(), absl::StatusCode::kInvalidArgument)
        << listen;
  }
}

}  // namespace
}  // namespace milepost::coordinator
