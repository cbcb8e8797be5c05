// DeleteJob, and checkpoints that go into the bin and come back, over the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error_details.h"
#include "common/spec/validate.h"
#include "coordinator/rpc/server_fixture.h"

namespace milepost::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DeletionTest : public ServerTest {
 protected:
  DeletionTest() {
    options_.coordinator.config.lease = absl::Minutes(10);  // its worker sends no heartbeats
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
  // "jobs/1", which has saved "checkpoints/1" and "checkpoints/2", and succeeds with `end`.
  void Train(bool end) {
    worker_ = std::make_unique<FakeWorker>(server_->address(), "a", 1);
    worker_->Receive();
    v1::SubmitJobRequest request = Request();
    request.mutable_spec()->mutable_checkpoint()->set_keep_last(1000);
    ASSERT_TRUE(Call(jobs_.get(), &v1::JobService::Stub::SubmitJob, request).ok());
    const v1::StartRank start = worker_->Receive().start_rank();
    worker_->Report(start, v1::RANK_STATE_RUNNING);
    v1::TrainerState state;
    state.set_spec_digest(StateDigest(start.spec()));
    for (int step = 1; step <= 2; ++step) {
      state.set_step(step);
      std::string name;
      ASSERT_TRUE(Save(start, step, 4, &name, state).ok());
    }
    if (!end) return;
    worker_->Report(start, v1::RANK_STATE_SUCCEEDED);
    WaitFor("jobs/1", v1::JOB_STATE_SUCCEEDED);
  }
  absl::Status DeleteJob(const std::string& job, v1::DeleteJobResponse* response = nullptr) {
    v1::DeleteJobRequest request;
    request.set_name(job);
    return Call(jobs_.get(), &v1::JobService::Stub::DeleteJob, request, response);
  }
  absl::Status DeleteCheckpoint(const std::string& name, bool purge = false) {
    v1::DeleteCheckpointRequest request;
    request.set_name(name);
    request.set_purge(purge);
    return Call(checkpoints_.get(), &v1::CheckpointService::Stub::DeleteCheckpoint, request);
  }
  absl::Status Restore(const std::string& name) {
    v1::RestoreCheckpointRequest request;
    request.set_name(name);
    return Call(checkpoints_.get(), &v1::CheckpointService::Stub::RestoreCheckpoint, request);
  }
  absl::Status Pin(const std::string& name, bool pinned) {
    v1::PinCheckpointRequest request;
    request.set_name(name);
    request.set_pinned(pinned);
    return Call(checkpoints_.get(), &v1::CheckpointService::Stub::PinCheckpoint, request);
  }
  absl::Status Fork(const std::string& source) {
    v1::ForkJobRequest request;
    request.set_source(source);
    return Call(jobs_.get(), &v1::JobService::Stub::ForkJob, request);
  }
  absl::Status Cancel(const std::string& job) {
    v1::CancelJobRequest request;
    request.set_name(job);
    return Call(jobs_.get(), &v1::JobService::Stub::CancelJob, request);
  }
  std::vector<std::string> Checkpoints(bool deleted) {
    v1::ListCheckpointsRequest request;
    request.set_deleted(deleted);
    v1::ListCheckpointsResponse response;
    EXPECT_TRUE(
        Call(checkpoints_.get(), &v1::CheckpointService::Stub::ListCheckpoints, request, &response)
            .ok());
    std::vector<std::string> names;
    for (const v1::Checkpoint& one : response.checkpoints()) names.push_back(one.name());
    return names;
  }

  // Once it returns nothing is started any more.
  void LoseWorker() {
    worker_.reset();
    v1::GetWorkerRequest request;
    request.set_name("workers/a");
    v1::Worker worker;
    do {
      ASSERT_TRUE(Call(workers_.get(), &v1::WorkerService::Stub::GetWorker, request, &worker).ok());
    } while (worker.state() == v1::WORKER_STATE_READY);
  }

  std::unique_ptr<FakeWorker> worker_;
};

TEST_F(DeletionTest, AJobGoesWithAllThatIsItsAndItsNameIsNotGivenAgain) {
  Train(/*end=*/true);
  ASSERT_TRUE(DeleteCheckpoint("checkpoints/1").ok());
  v1::DeleteJobResponse response;
  const absl::Status deleted = DeleteJob("jobs/1", &response);
  ASSERT_TRUE(deleted.ok()) << deleted;
  EXPECT_EQ(response.checkpoints(), 2);
  EXPECT_EQ(response.bytes(), 32);
  for (int started = 0; started < 2; ++started) {
    EXPECT_EQ(ReasonOf(DeleteJob("jobs/1")), v1::ERROR_REASON_JOB_NOT_FOUND);
    EXPECT_THAT(Checkpoints(false), IsEmpty());
    EXPECT_THAT(Checkpoints(true), IsEmpty());
    EXPECT_EQ(ReasonOf(Restore("checkpoints/1")), v1::ERROR_REASON_CHECKPOINT_NOT_FOUND);
    Start();
  }
  EXPECT_EQ(Submit(), "jobs/2");
}

TEST_F(DeletionTest, AJobThatGoesOnOrIsNeededStaysWhole) {
  Train(/*end=*/false);
  EXPECT_EQ(ReasonOf(DeleteJob("jobs/1")), v1::ERROR_REASON_JOB_NOT_OVER);
  ASSERT_TRUE(Pin("checkpoints/1", true).ok());  // nothing is claimed
  ASSERT_TRUE(Pin("checkpoints/1", false).ok());
  ASSERT_TRUE(Fork("checkpoints/2").ok());  // waits: the slot is taken
  worker_.reset();
  ASSERT_TRUE(Cancel("jobs/1").ok());
}

TEST_F(DeletionTest, AJobStaysThatAForkIsToBeginWith) {
  Train(/*end=*/true);
  LoseWorker();
  ASSERT_TRUE(Fork("checkpoints/2").ok());
  const absl::Status refused = DeleteJob("jobs/1");
  EXPECT_EQ(ReasonOf(refused), v1::ERROR_REASON_JOB_NEEDED);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("jobs/2 is to begin with its checkpoints/2"));
  EXPECT_THAT(Checkpoints(false), ElementsAre("checkpoints/2", "checkpoints/1"));
  ASSERT_TRUE(Pin("checkpoints/1", true).ok());
  ASSERT_TRUE(Pin("checkpoints/1", false).ok());
  ASSERT_TRUE(Cancel("jobs/2").ok());
  EXPECT_TRUE(DeleteJob("jobs/1").ok());
}

TEST_F(DeletionTest, APinnedCheckpointKeepsItsJob) {
  Train(/*end=*/true);
  ASSERT_TRUE(Pin("checkpoints/1", true).ok());
  const absl::Status refused = DeleteJob("jobs/1");
  EXPECT_EQ(ReasonOf(refused), v1::ERROR_REASON_CHECKPOINT_PINNED);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("checkpoints/1 is pinned"));
  EXPECT_THAT(Checkpoints(false), ElementsAre("checkpoints/2", "checkpoints/1"));
  EXPECT_TRUE(Fork("checkpoints/2").ok());
}

TEST_F(DeletionTest, ADeletedCheckpointComesBack) {
  Train(/*end=*/true);
  ASSERT_TRUE(DeleteCheckpoint("checkpoints/2").ok());
  ASSERT_TRUE(DeleteCheckpoint("checkpoints/2").ok());
  EXPECT_THAT(Checkpoints(false), ElementsAre("checkpoints/1"));
  EXPECT_THAT(Checkpoints(true), ElementsAre("checkpoints/2"));
  EXPECT_EQ(GetJob("jobs/1").latest_checkpoint(), "checkpoints/1");
  EXPECT_EQ(ReasonOf(Fork("checkpoints/2")), v1::ERROR_REASON_CHECKPOINT_DELETED);
  v1::SubmitJobRequest begins = Request();
  begins.mutable_spec()->mutable_checkpoint()->set_resume_from("checkpoints/2");
  const absl::Status refused = Call(jobs_.get(), &v1::JobService::Stub::SubmitJob, begins);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("checkpoints/2 is deleted: restore it"));
  ASSERT_TRUE(Restore("checkpoints/2").ok());
  EXPECT_EQ(GetJob("jobs/1").latest_checkpoint(), "checkpoints/2");
  ASSERT_TRUE(DeleteCheckpoint("checkpoints/1").ok());
  ASSERT_TRUE(DeleteCheckpoint("checkpoints/1", /*purge=*/true).ok());
  EXPECT_EQ(ReasonOf(Restore("checkpoints/1")), v1::ERROR_REASON_CHECKPOINT_NOT_FOUND);
  EXPECT_THAT(Checkpoints(true), IsEmpty());
}

TEST_F(DeletionTest, ARestOfAnArrayIsFoundByItsName) {
  v1::SubmitJobArrayRequest request;
  *request.mutable_spec() = Request().spec();
  for (int i = 0; i < 3; ++i) request.add_elements();
  v1::SubmitJobArrayResponse array;
  ASSERT_TRUE(Call(jobs_.get(), &v1::JobService::Stub::SubmitJobArray, request, &array).ok());
  ASSERT_TRUE(Cancel("jobs/1").ok());
  ASSERT_TRUE(DeleteJob("jobs/1").ok());
  v1::CancelJobArrayRequest cancel;
  cancel.set_array(array.array());
  v1::CancelJobArrayResponse cancelled;
  const absl::Status status =
      Call(jobs_.get(), &v1::JobService::Stub::CancelJobArray, cancel, &cancelled);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(cancelled.jobs(), 2);
  EXPECT_EQ(cancelled.cancelled(), 2);
}

// Over what the records of all jobs may have, a deletion makes room.
TEST_F(DeletionTest, ADeletedJobCountsNoMore) {
  options_.coordinator.most_job_bytes = 3000;
  Start();
  std::vector<std::string> jobs;
  v1::Job job;
  while (Call(jobs_.get(), &v1::JobService::Stub::SubmitJob, Request(), &job).ok()) {
    jobs.push_back(job.name());
    ASSERT_LT(jobs.size(), 100u);
  }
  ASSERT_FALSE(jobs.empty());
  ASSERT_TRUE(Cancel(jobs[0]).ok());
  ASSERT_TRUE(DeleteJob(jobs[0]).ok());
  EXPECT_TRUE(Call(jobs_.get(), &v1::JobService::Stub::SubmitJob, Request(), &job).ok());
}

}  // namespace
}  // namespace milepost::coordinator
