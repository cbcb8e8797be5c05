// What ranks report as curves, over the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "common/error_details.h"
#include "coordinator/desks/curve_recorder.h"
#include "coordinator/rpc/server_fixture.h"
#include "coordinator/store/store_fixture.h"

namespace milepost::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CurvesTest : public ServerTest {
 protected:
  CurvesTest() {
    options_.coordinator.config.lease = absl::Minutes(10);  // its worker sends no heartbeats
    Start();
    Connect(1);
  }

  void Connect(int64_t incarnation) {
    worker_ = std::make_unique<FakeWorker>(server_->address(), "a", 1, incarnation);
    worker_->Receive();
  }
  void Begin() {
    start_ = worker_->Receive().start_rank();
    worker_->Report(start_, v1::RANK_STATE_RUNNING);
  }
  void Report(int64_t step, double loss, int64_t start_step = 0) {
    v1::WorkerMessage message;
    v1::RankProgress* progress = message.mutable_progress();
    progress->set_job(start_.job());
    progress->set_generation(start_.generation());
    progress->mutable_progress()->set_step(step);
    progress->mutable_progress()->set_start_step(start_step);
    progress->mutable_progress()->set_train_loss(loss);
    worker_->Send(message);
  }
  // Once the coordinator has it, it is in the curves.
  void WaitForStep(int64_t step) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::GetJobRequest request;
    request.set_name(start_.job());
    auto stream = jobs_->WatchJob(&context, request);
    v1::Job job;
    while (stream->Read(&job)) {
      if (job.progress().step() == step) return context.TryCancel();
    }
    FAIL() << job.ShortDebugString();
  }
  absl::StatusOr<v1::JobCurves> Curves(const std::string& job, int max_points = 0) {
    grpc::ClientContext context;
    v1::GetJobCurvesRequest request;
    request.set_name(job);
    request.set_max_points(max_points);
    v1::JobCurves curves;
    const grpc::Status status = jobs_->GetJobCurves(&context, request, &curves);
    if (!status.ok()) return FromGrpcStatus(status);
    return curves;
  }
  v1::Curve Loss(int max_points = 0) {
    const auto curves = Curves("jobs/1", max_points);
    EXPECT_TRUE(curves.ok()) << curves.status();
    if (!curves.ok() || curves->curves().empty()) return {};
    EXPECT_EQ(curves->curves(0).name(), "train_loss");
    return curves->curves(0);
  }

  std::unique_ptr<FakeWorker> worker_;
  v1::StartRank start_;
};

TEST_F(CurvesTest, AreThereAtOnceAndAfterARestart) {
  Submit();
  EXPECT_THAT(Curves("jobs/1")->curves(), IsEmpty());
  Begin();
  for (int step = 1; step <= 5; ++step) Report(step, step == 4 ? NAN : 10 - step);
  WaitForStep(5);
  for (int started = 0; started < 2; ++started) {
    const v1::Curve loss = Loss();
    EXPECT_THAT(loss.steps(), ElementsAre(1, 2, 3, 4, 5));
    EXPECT_THAT(loss.not_finite(), ElementsAre(0, 0, 0, 1, 0));
    EXPECT_EQ(loss.means(4), 5);
    EXPECT_THAT(Loss(2).steps(), ElementsAre(3, 5));
    EXPECT_THAT(Loss(2).means(), ElementsAre(8, 5));
    worker_.reset();
    Start();
  }
}

TEST_F(CurvesTest, TheNextAttemptGoesOnFromItsCheckpoint) {
  Submit();
  Begin();
  for (int step = 1; step <= 5; ++step) Report(step, 1);
  WaitForStep(5);
  worker_->Report(start_, v1::RANK_STATE_FAILED);
  while (!(start_ = worker_->Receive().start_rank()).has_spec()) {
  }
  EXPECT_EQ(start_.generation(), 2);
  worker_->Report(start_, v1::RANK_STATE_RUNNING);
  EXPECT_THAT(Loss().steps(), ElementsAre(1, 2, 3, 4, 5));
  Report(3, 2, /*start_step=*/2);
  WaitForStep(3);
  EXPECT_THAT(Loss().steps(), ElementsAre(1, 2, 3));
  EXPECT_THAT(Loss().means(), ElementsAre(1, 1, 2));
}

TEST_F(CurvesTest, GoWithTheirJob) {
  Submit();
  Begin();
  Report(1, 1);
  WaitForStep(1);
  worker_->Report(start_, v1::RANK_STATE_SUCCEEDED);
  WaitFor("jobs/1", v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(Loss().steps(), ElementsAre(1));
  grpc::ClientContext context;
  v1::DeleteJobRequest request;
  request.set_name("jobs/1");
  v1::DeleteJobResponse response;
  ASSERT_TRUE(jobs_->DeleteJob(&context, request, &response).ok());
  EXPECT_EQ(ReasonOf(Curves("jobs/1").status()), v1::ERROR_REASON_JOB_NOT_FOUND);
  worker_.reset();
  server_.reset();
  auto store = Store::Open(options_.store);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_THAT((*store)->curves().Read(1)->Describe(0).curves(), IsEmpty());
}

TEST_F(CurvesTest, WrongRequestsAreRefused) {
  Submit();
  EXPECT_EQ(Curves("jobs/1", -1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(Curves("jobs/2").status()), v1::ERROR_REASON_JOB_NOT_FOUND);
  EXPECT_EQ(ReasonOf(Curves("job 1").status()), v1::ERROR_REASON_JOB_NOT_FOUND);
}

// ---- the recorder alone ----

class CurveRecorderTest : public StoreFixture {
 protected:
  CurveRecorderTest() { Open(); }

  static RankZeroReport At(int64_t step, int64_t generation = 1) {
    RankZeroReport report = {.job = 1, .generation = generation, .time = absl::UnixEpoch()};
    report.progress.set_step(step);
    report.progress.set_train_loss(1);
    return report;
  }
  int StoredPoints() {
    const auto read = store_->curves().Read(1);
    EXPECT_TRUE(read.ok()) << read.status();
    const v1::JobCurves curves = read->Describe(0);
    return curves.curves().empty() ? 0 : curves.curves(0).steps_size();
  }
};

TEST_F(CurveRecorderTest, StoresEveryNowAndThen) {
  CurveRecorder recorder(&store_->curves(), absl::Milliseconds(10));
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  for (int step = 1; step <= 3; ++step) {
    recorder.Take({At(step)}, {});
    while (StoredPoints() < step && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(StoredPoints(), step);
  }
}

TEST_F(CurveRecorderTest, GoesOnWithWhatIsStored) {
  for (int begun = 0; begun < 3; ++begun) {
    CurveRecorder recorder(&store_->curves(), absl::Hours(1));
    recorder.Take({At(2 * begun + 1), At(2 * begun + 2)}, {});
    EXPECT_EQ(recorder.Get(1, 0)->curves(0).steps_size(), 2 * begun + 2);
    recorder.Stop();
    EXPECT_EQ(StoredPoints(), 2 * begun + 2);
    EXPECT_EQ(recorder.Get(1, 0)->curves(0).steps_size(), 2 * begun + 2);
  }
}

// Blocks that were written after the job's records were gone.
TEST_F(CurveRecorderTest, LeavesNothingOfADeletedJob) {
  CurveRecorder recorder(&store_->curves(), absl::Milliseconds(10));
  recorder.Take({At(1)}, {});
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (StoredPoints() < 1 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  ASSERT_EQ(StoredPoints(), 1);
  recorder.Take({At(2)}, {1});
  EXPECT_THAT(recorder.Get(1, 0)->curves(), IsEmpty());
  recorder.Stop();
  EXPECT_EQ(StoredPoints(), 0);
}

TEST_F(CurveRecorderTest, OfTooManyReportsTheNewestStay) {
  CurveRecorder recorder(&store_->curves(), absl::Hours(1));
  for (int step = 1; step <= 100'000; ++step) recorder.Take({At(step)}, {});
  EXPECT_EQ(recorder.Get(1, 0)->curves(0).steps().rbegin()[0], 100'000);
}

}  // namespace
}  // namespace milepost::coordinator
