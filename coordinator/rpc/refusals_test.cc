// Refusals that need something to be there first: checkpoints that jobs are to begin with, request
// ids that are taken, limits. Their reasons are told (docs/use/api.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/error_details.h"
#include "common/spec/validate.h"
#include "coordinator/rpc/server_fixture.h"
#include "milepost/v1/queue.grpc.pb.h"

namespace milepost::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RefusalsTest : public ServerTest {
 protected:
  RefusalsTest() {
    options_.coordinator.config.lease = absl::Minutes(10);  // its workers send no heartbeats
    Start();
  }
  template <typename Stub, typename Request, typename Response>
  static absl::Status Call(Stub* stub,
                           grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                        Response*),
                           const Request& request, Response* response = nullptr) {
    grpc::ClientContext context;
    Response ignored;
    return FromGrpcStatus(
        (stub->*method)(&context, request, response == nullptr ? &ignored : response));
  }
  // "jobs/1", which runs, and keeps `keep_last` checkpoints.
  void Run(int keep_last) {
    worker_ = std::make_unique<FakeWorker>(server_->address(), "a", 1);
    worker_->Receive();
    v1::SubmitJobRequest request = Request();
    request.mutable_spec()->mutable_train()->set_steps(10'000);
    request.mutable_spec()->mutable_checkpoint()->set_keep_last(keep_last);
    ASSERT_TRUE(Call(jobs_.get(), &v1::JobService::Stub::SubmitJob, request).ok());
    start_ = worker_->Receive().start_rank();
    worker_->Report(start_, v1::RANK_STATE_RUNNING);
  }
  std::string Saved(const v1::StartRank& rank, int64_t step) {
    v1::TrainerState state;
    state.set_step(step);
    state.set_spec_digest(StateDigest(start_.spec()));
    std::string name;
    const grpc::Status status = Save(rank, step, 4, &name, state);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return name;
  }
  absl::Status Fork(const std::string& source, v1::Job* job, const std::string& request_id = "") {
    v1::ForkJobRequest request;
    request.set_source(source);
    request.set_request_id(request_id);
    return Call(jobs_.get(), &v1::JobService::Stub::ForkJob, request, job);
  }
  absl::Status Delete(const std::string& checkpoint) {
    v1::DeleteCheckpointRequest request;
    request.set_name(checkpoint);
    return Call(checkpoints_.get(), &v1::CheckpointService::Stub::DeleteCheckpoint, request);
  }
  absl::Status Cancel(const std::string& job) {
    v1::CancelJobRequest request;
    request.set_name(job);
    return Call(jobs_.get(), &v1::JobService::Stub::CancelJob, request);
  }
  absl::Status Resume(const std::string& job) {
    v1::ResumeJobRequest request;
    request.set_name(job);
    return Call(jobs_.get(), &v1::JobService::Stub::ResumeJob, request);
  }
  std::vector<std::string> Checkpoints() {
    v1::ListCheckpointsResponse response;
    EXPECT_TRUE(Call(checkpoints_.get(), &v1::CheckpointService::Stub::ListCheckpoints,
                     v1::ListCheckpointsRequest(), &response)
                    .ok());
    std::vector<std::string> names;
    for (const v1::Checkpoint& one : response.checkpoints()) names.push_back(one.name());
    return names;
  }

  std::unique_ptr<FakeWorker> worker_;
  v1::StartRank start_;
};

TEST_F(RefusalsTest, NoCheckpointGoesThatAForkWasJustMadeOf) {
  Run(/*keep_last=*/1000);
  std::string newest = Saved(start_, 1);
  int forked = 0;
  for (int i = 2; i <= 30; ++i) {
    const std::string older = std::exchange(newest, Saved(start_, i));
    v1::Job job;
    absl::Status fork;
    std::thread forker([&] { fork = Fork(older, &job); });
    const absl::Status removed = Delete(older);
    forker.join();
    ASSERT_NE(fork.ok(), removed.ok()) << fork << removed;
    forked += fork.ok() ? 1 : 0;
    if (!fork.ok()) continue;
    EXPECT_TRUE(Cancel(job.name()).ok());
  }
  RecordProperty("forked", forked);
}

TEST_F(RefusalsTest, WhatAForkHasBegunWithIsRetainedLikeOthers) {
  Run(/*keep_last=*/1);
  ASSERT_EQ(Saved(start_, 5), "checkpoints/1");
  v1::Job fork;
  ASSERT_TRUE(Fork("checkpoints/1", &fork).ok());
  ASSERT_EQ(Saved(start_, 6), "checkpoints/2");
  EXPECT_EQ(ReasonOf(Delete("checkpoints/1")), v1::ERROR_REASON_CHECKPOINT_AWAITED);
  EXPECT_EQ(ReasonOf(Delete("checkpoints/2")), v1::ERROR_REASON_CHECKPOINT_NEWEST);
  worker_->Report(start_, v1::RANK_STATE_SUCCEEDED);
  v1::CoordinatorMessage message;
  for (int i = 0; i < 10 && !message.has_start_rank(); ++i) message = worker_->Receive();
  const v1::StartRank start = message.start_rank();
  ASSERT_EQ(start.job(), fork.name());
  ASSERT_EQ(start.checkpoint(), "checkpoints/1");
  worker_->Report(start, v1::RANK_STATE_RUNNING);
  EXPECT_THAT(Checkpoints(), ElementsAre("checkpoints/2", "checkpoints/1"));
  // Nothing of the source is saved any more.
  ASSERT_EQ(Saved(start, 7), "checkpoints/3");
  EXPECT_THAT(Checkpoints(), ElementsAre("checkpoints/3", "checkpoints/2"));
}

TEST_F(RefusalsTest, AJobIsNotResumedFromWhatIsGone) {
  Run(/*keep_last=*/1);
  Saved(start_, 5);
  v1::Job fork;
  ASSERT_TRUE(Fork("checkpoints/1", &fork).ok());
  EXPECT_EQ(ReasonOf(Resume(fork.name())), v1::ERROR_REASON_JOB_NOT_RESUMABLE);
  ASSERT_TRUE(Cancel(fork.name()).ok());
  ASSERT_TRUE(Resume(fork.name()).ok());  // it is there still
  ASSERT_TRUE(Cancel(fork.name()).ok());
  Saved(start_, 6);
  EXPECT_THAT(Checkpoints(), ElementsAre("checkpoints/2"));
  const absl::Status refused = Resume(fork.name());
  EXPECT_EQ(ReasonOf(refused), v1::ERROR_REASON_START_CHECKPOINT_GONE);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("checkpoints/1, which it would begin"));
  EXPECT_EQ(GetJob(fork.name()).state(), v1::JOB_STATE_CANCELLED);
}

// Who names no etag is not refused because somebody else changed the job at the same time.
TEST_F(RefusalsTest, UpdatesWithoutAnEtagAllCount) {
  v1::Job job;
  ASSERT_TRUE(Call(jobs_.get(), &v1::JobService::Stub::SubmitJob, Request(), &job).ok());
  constexpr int kThreads = 4, kEach = 10;
  std::vector<absl::Status> failed[kThreads];
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        v1::UpdateJobRequest request;
        request.mutable_job()->set_name(job.name());
        request.mutable_job()->mutable_spec()->mutable_scheduling()->set_priority(10 * t + i);
        request.mutable_update_mask()->add_paths("spec.scheduling.priority");
        v1::Job changed;
        absl::Status status =
            Call(jobs_.get(), &v1::JobService::Stub::UpdateJob, request, &changed);
        if (!status.ok()) failed[t].push_back(std::move(status));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& statuses : failed) {
    EXPECT_TRUE(statuses.empty()) << statuses.front();
  }
}

TEST_F(RefusalsTest, ARequestIdIsForOneRequest) {
  v1::SubmitJobRequest request = Request();
  request.set_request_id("a");
  (*request.mutable_labels())["team"] = "x";
  (*request.mutable_labels())["stage"] = "y";
  v1::Job first, again;
  ASSERT_TRUE(Call(jobs_.get(), &v1::JobService::Stub::SubmitJob, request, &first).ok());
  request.set_rank_memory_bytes(int64_t{64} << 30);  // what the client found differs by the minute
  ASSERT_TRUE(Call(jobs_.get(), &v1::JobService::Stub::SubmitJob, request, &again).ok());
  EXPECT_EQ(again.name(), first.name());
  request.mutable_spec()->mutable_train()->set_steps(7);
  const absl::Status other = Call(jobs_.get(), &v1::JobService::Stub::SubmitJob, request, &again);
  EXPECT_EQ(ReasonOf(other), v1::ERROR_REASON_REQUEST_ID_USED);
  EXPECT_THAT(std::string(other.message()), HasSubstr("that for " + first.name() + ","));
}

TEST_F(RefusalsTest, ARequestIdIsForAJobOrForAnArray) {
  Run(/*keep_last=*/1);
  Saved(start_, 5);
  v1::SubmitJobArrayRequest array;
  *array.mutable_spec() = Request().spec();
  array.add_elements();
  array.add_elements();
  array.set_request_id("a");
  ASSERT_TRUE(Call(jobs_.get(), &v1::JobService::Stub::SubmitJobArray, array).ok());
  v1::SubmitJobRequest single = Request();
  single.set_request_id("a");
  const absl::Status submitted = Call(jobs_.get(), &v1::JobService::Stub::SubmitJob, single);
  EXPECT_EQ(ReasonOf(submitted), v1::ERROR_REASON_REQUEST_ID_USED);
  EXPECT_THAT(std::string(submitted.message()), HasSubstr("that for arrays/2,"));
  v1::Job job;
  EXPECT_EQ(ReasonOf(Fork("checkpoints/1", &job, "a")), v1::ERROR_REASON_REQUEST_ID_USED);
  single.set_request_id("j");
  ASSERT_TRUE(Call(jobs_.get(), &v1::JobService::Stub::SubmitJob, single).ok());
  array.set_request_id("j");
  EXPECT_EQ(ReasonOf(Call(jobs_.get(), &v1::JobService::Stub::SubmitJobArray, array)),
            v1::ERROR_REASON_REQUEST_ID_USED);
}

TEST_F(RefusalsTest, AnArrayCountsForAllItsJobs) {
  options_.coordinator.most_active_jobs = 6;
  Start();
  Submit();
  v1::SubmitJobArrayRequest array;
  *array.mutable_spec() = Request().spec();
  for (int i = 0; i < 3; ++i) array.add_elements();
  EXPECT_EQ(ReasonOf(Call(jobs_.get(), &v1::JobService::Stub::SubmitJobArray, array)),
            v1::ERROR_REASON_TOO_MANY_JOBS);
  array.mutable_elements()->RemoveLast();
  EXPECT_TRUE(Call(jobs_.get(), &v1::JobService::Stub::SubmitJobArray, array).ok());
  EXPECT_EQ(ReasonOf(Call(jobs_.get(), &v1::JobService::Stub::SubmitJob, Request())),
            v1::ERROR_REASON_TOO_MANY_JOBS);
}

TEST_F(RefusalsTest, AProjectHasHalfOfThePlaces) {
  options_.coordinator.most_active_jobs = 4;
  Start();
  const auto submit = [&](const std::string& project) {
    v1::SubmitJobRequest request = Request();
    request.set_project(project);
    return Call(jobs_.get(), &v1::JobService::Stub::SubmitJob, request);
  };
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(submit("p").ok());
  EXPECT_EQ(ReasonOf(submit("p")), v1::ERROR_REASON_TOO_MANY_JOBS);
  EXPECT_THAT(std::string(submit("p").message()), HasSubstr("project p has 2 jobs"));
  EXPECT_TRUE(submit("q").ok());
  // Those that have ended do not count, whatever has happened in between.
  EXPECT_TRUE(Cancel("jobs/1").ok());
  Start();
  EXPECT_TRUE(submit("p").ok());
  EXPECT_FALSE(submit("p").ok());
  EXPECT_TRUE(submit("q").ok());
  EXPECT_THAT(std::string(submit("r").message()), HasSubstr("there are 4 jobs"));
}

TEST_F(RefusalsTest, TheRecordsOfAllJobsAreBounded) {
  options_.coordinator.most_job_bytes = 4096;
  Start();
  const auto submit = [&] {
    return Call(jobs_.get(), &v1::JobService::Stub::SubmitJob, Request());
  };
  int jobs = 0;
  while (submit().ok()) ASSERT_LT(++jobs, 100);
  EXPECT_GT(jobs, 2);
  // Also of those that have ended, which are kept.
  for (int i = 1; i <= jobs; ++i) EXPECT_TRUE(Cancel(JobName(i)).ok());
  EXPECT_EQ(submit().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(submit().message()), HasSubstr("--max-job-bytes"));
  Start();
  EXPECT_EQ(ReasonOf(submit()), v1::ERROR_REASON_TOO_MANY_JOBS);
  options_.coordinator.most_job_bytes = 8192;
  Start();
  EXPECT_TRUE(submit().ok());
}

TEST_F(RefusalsTest, AJobThatCouldNeverSaveAnythingIsRefused) {
  std::atomic<int64_t> bytes = 1000;
  options_.coordinator.check_submission = [&](const v1::JobSpec& spec, const KnownPlace&,
                                              const StillWanted&) -> absl::StatusOr<CheckedSpec> {
    return CheckedSpec{.spec = spec, .choices = {}, .checkpoint_bytes = bytes};
  };
  options_.store.free_bytes = [](const std::string&) { return uint64_t{1} << 40; };
  Start();
  const auto submit = [&](bool validate_only) {
    v1::SubmitJobRequest request = Request();
    request.set_validate_only(validate_only);
    return Call(jobs_.get(), &v1::JobService::Stub::SubmitJob, request);
  };
  EXPECT_TRUE(submit(false).ok());
  bytes = int64_t{1} << 40;
  for (const bool validate_only : {true, false}) {
    const absl::Status status = submit(validate_only);
    EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_DISK_FULL) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("would ever fit"));
  }
}

TEST_F(RefusalsTest, LiveSettingsHoldAtOnce) {
  LiveSettings live({.most_job_bytes = 1});
  options_.coordinator.live = &live;
  Start();
  const auto submit = [&] {
    return Call(jobs_.get(), &v1::JobService::Stub::SubmitJob, Request());
  };
  EXPECT_EQ(submit().code(), absl::StatusCode::kResourceExhausted);
  LiveValues more = live.Get();
  more.most_job_bytes = 1 << 20;
  live.Set(more);
  EXPECT_TRUE(submit().ok());
  server_.reset();  // before what it asks
}

TEST_F(RefusalsTest, AnArrayIsPlannedForWhoWaitsForItAlone) {
  std::atomic<int> planned = 0;
  options_.coordinator.check_submission = [&](const v1::JobSpec& spec, const KnownPlace&,
                                              const StillWanted&) -> absl::StatusOr<CheckedSpec> {
    ++planned;
    return CheckedSpec{.spec = spec, .choices = {}};
  };
  Start();
  v1::SubmitJobArrayRequest array;
  *array.mutable_spec() = Request().spec();
  for (int i = 1; i <= 5; ++i) {
    v1::SpecOverride* one = array.add_elements()->add_overrides();
    one->set_path("train.batch.global");
    one->set_value(absl::StrCat(i));
  }
  const auto anything = [](const v1::JobSpec&) { return absl::OkStatus(); };
  const auto answer = server_->coordinator().jobs().SubmitArray(
      array, anything, {.gone = [&] { return planned == 2; }});
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(planned, 2);
  EXPECT_THAT(server_->coordinator().jobs().List(0, 10).jobs, IsEmpty());
}

// A plan that would never end, but where nobody wants it any more.
class EndlessPlanTest : public RefusalsTest {
 protected:
  EndlessPlanTest() {
    options_.coordinator.check_submission =
        [&](const v1::JobSpec&, const KnownPlace&,
            const StillWanted& wanted) -> absl::StatusOr<CheckedSpec> {
      begun_.Notify();
      absl::Status status;
      while (status.ok()) status = wanted();
      ended_.Notify();
      return status;
    };
    Start();
  }
  absl::Notification begun_;
  absl::Notification ended_;
};

TEST_F(EndlessPlanTest, EndsWithItsCall) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  v1::Job job;
  const grpc::Status status = jobs_->SubmitJob(&context, Request(), &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(ended_.WaitForNotificationWithTimeout(absl::Seconds(30)));
}

TEST_F(EndlessPlanTest, EndsWhenTheCoordinatorStops) {
  std::thread caller([&] {
    grpc::ClientContext context;
    v1::Job job;
    EXPECT_FALSE(jobs_->SubmitJob(&context, Request(), &job).ok());
  });
  begun_.WaitForNotification();
  server_->Stop();
  EXPECT_TRUE(ended_.HasBeenNotified());
  caller.join();
}

TEST_F(RefusalsTest, ChangesOfWhatOthersHaveChangedAreRefused) {
  Submit();
  v1::UpdateJobRequest update;
  update.mutable_job()->set_name("jobs/1");
  update.mutable_job()->set_etag("v7");
  update.mutable_update_mask()->add_paths("labels");
  EXPECT_EQ(ReasonOf(Call(jobs_.get(), &v1::JobService::Stub::UpdateJob, update)),
            v1::ERROR_REASON_ETAG_MISMATCH);
  auto queues = v1::QueueService::NewStub(MakeChannel(server_->address()));
  v1::UpdateQueueRequest queue;
  queue.mutable_queue()->set_name("queues/default");
  queue.mutable_queue()->set_etag("v7");
  EXPECT_EQ(ReasonOf(Call(queues.get(), &v1::QueueService::Stub::UpdateQueue, queue)),
            v1::ERROR_REASON_ETAG_MISMATCH);
  v1::DeleteQueueRequest remove;
  remove.set_name("queues/default");
  EXPECT_EQ(ReasonOf(Call(queues.get(), &v1::QueueService::Stub::DeleteQueue, remove)),
            v1::ERROR_REASON_QUEUE_PERMANENT);
}

TEST_F(RefusalsTest, PreconditionsSayOfWhat) {
  Run(/*keep_last=*/2);
  Saved(start_, 5);
  v1::PinCheckpointRequest pin;
  pin.set_name("checkpoints/1");
  pin.set_pinned(true);
  ASSERT_TRUE(Call(checkpoints_.get(), &v1::CheckpointService::Stub::PinCheckpoint, pin).ok());
  const absl::Status pinned = Delete("checkpoints/1");
  EXPECT_EQ(ReasonOf(pinned), v1::ERROR_REASON_CHECKPOINT_PINNED);
  v1::PreconditionFailure failure;
  const auto payload = pinned.GetPayload("type.googleapis.com/google.rpc.PreconditionFailure");
  ASSERT_TRUE(payload.has_value() && failure.ParseFromString(std::string(*payload)));
  EXPECT_EQ(failure.violations(0).type(), "CHECKPOINT_PINNED");
  EXPECT_EQ(failure.violations(0).subject(), "checkpoints/1");
  v1::StartRank old = start_;
  old.set_generation(7);
  std::string name;
  EXPECT_EQ(ReasonOf(FromGrpcStatus(Save(old, 6, 4, &name))), v1::ERROR_REASON_GENERATION_OVER);
  EXPECT_EQ(ReasonOf(FromGrpcStatus(Save(start_, 4, 4, &name))),
            v1::ERROR_REASON_CHECKPOINT_SUPERSEDED);
  ASSERT_TRUE(Cancel("jobs/1").ok());
  v1::SuspendJobRequest suspend;
  suspend.set_name("jobs/1");
  EXPECT_EQ(ReasonOf(Call(jobs_.get(), &v1::JobService::Stub::SuspendJob, suspend)),
            v1::ERROR_REASON_JOB_TERMINAL);
}

}  // namespace
}  // namespace milepost::coordinator
