// The whole path on real processes: what a user sees when things go right, and when they do not.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "common/proto_time.h"
#include "common/sanitizer.h"
#include "engine/data/npy.h"
#include "tests/e2e/cluster.h"

namespace milepost::e2e {
namespace {

using testing::HasSubstr;

class ProcessesTest : public testing::Test {
 protected:
  ~ProcessesTest() override {
    if (!HasFailure()) std::filesystem::remove_all(folder_);
  }
  void SetUp() override { cluster_.Start(); }

  static std::function<bool(const v1::Job&)> AtStep(int64_t step) {
    return [step](const v1::Job& job) { return job.progress().step() >= step || IsTerminal(job); };
  }

  const std::string folder_ = MakeFolder("milepost_e2e");
  Cluster cluster_{folder_, {}};
};

TEST_F(ProcessesTest, TrainsToTheEnd) {
  const v1::Job end = cluster_.Await(cluster_.Submit(SmallJob(folder_, 25)), IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.DebugString();
  EXPECT_EQ(end.progress().step(), 25);
  EXPECT_EQ(end.progress().validation_step(), 25);
  EXPECT_EQ(end.progress().planned_bytes(), end.progress().allocated_bytes());
  // What the process holds beside the plan's: code, libraries, connections, pages of the data.
  EXPECT_GT(end.progress().required_bytes(), end.progress().planned_bytes());
  EXPECT_GT(end.progress().peak_resident_bytes(), end.progress().required_bytes());
#if !defined(MILEPOST_ASAN) && !defined(MILEPOST_TSAN)  // whose shadow memory is resident too
  EXPECT_LE(end.progress().peak_resident_bytes(),
            end.progress().required_bytes() * 11 / 10 + (64 << 20));
#endif
  EXPECT_EQ(end.attempts(), 1);
  std::vector<int64_t> steps;
  for (const v1::Checkpoint& checkpoint : cluster_.Checkpoints(end.name())) {
    steps.push_back(checkpoint.step());
    EXPECT_TRUE(cluster_.DamagedChunks(checkpoint.name()).empty());
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{25, 20, 10}));
  EXPECT_EQ(cluster_.StopWorker(0), 0);
  EXPECT_EQ(cluster_.StopCoordinator(), 0);
}

TEST_F(ProcessesTest, AWorkerThatLeavesSavesFirstAndTheJobGoesOnAsIfNothingHadHappened) {
  v1::JobSpec spec = SmallJob(folder_, 150);
  spec.mutable_checkpoint()->set_every(0);
  const v1::Job whole = cluster_.Await(cluster_.Submit(spec), IsTerminal);
  ASSERT_EQ(whole.state(), v1::JOB_STATE_SUCCEEDED);

  const std::string job = cluster_.Submit(spec);
  cluster_.Await(job, AtStep(1));
  // `timeout` and a terminal may signal a process twice in a row: one wish to stop, not two.
  EXPECT_EQ(cluster_.StopWorker(0, {SIGTERM, SIGINT}), 0);
  v1::Job now = cluster_.Await(
      job, [](const v1::Job& j) { return j.state() == v1::JOB_STATE_QUEUED || IsTerminal(j); });
  ASSERT_EQ(now.state(), v1::JOB_STATE_QUEUED) << "it was over before the worker left";
  EXPECT_EQ(now.failures(), 0);
  ASSERT_EQ(cluster_.Checkpoints(job).size(), 1U);
  const int64_t step = cluster_.Checkpoints(job)[0].step();
  EXPECT_GE(step, 1);

  cluster_.StartWorker(0);
  now = cluster_.Await(job, IsTerminal);
  EXPECT_EQ(now.state(), v1::JOB_STATE_SUCCEEDED) << now.DebugString();
  EXPECT_EQ(now.progress().start_step(), step);
  EXPECT_EQ(now.progress().train_loss(), whole.progress().train_loss());  // bitwise
  EXPECT_EQ(now.progress().validation_loss(), whole.progress().validation_loss());
}

TEST_F(ProcessesTest, TrainingGoesOnWhileTheCoordinatorIsAway) {
  // Checkpoints fall due while it is away.
  const std::string job = cluster_.Submit(SmallJob(folder_, 80));
  cluster_.Await(job, AtStep(1));
  cluster_.KillCoordinator();
  cluster_.AwaitIdleTrainers();  // all steps done, the last checkpoint held
  const absl::Time back = absl::Now();
  cluster_.StartCoordinator();
  const v1::Job end = cluster_.Await(job, IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.DebugString();
  EXPECT_EQ(end.generation(), 1);
  EXPECT_EQ(cluster_.Checkpoints(job)[0].step(), 80);
  EXPECT_LT(FromProto(cluster_.AwaitLogLine(job, "step 80/80 loss").time()), back);
}

TEST_F(ProcessesTest, ADamagedCheckpointIsNamedAndTheOneBeforeItIsUsed) {
  v1::JobSpec spec = SmallJob(folder_, 150);
  const v1::Job whole = cluster_.Await(cluster_.Submit(spec), IsTerminal);
  const std::string job = cluster_.Submit(spec);
  cluster_.Await(job, AtStep(21));
  EXPECT_EQ(cluster_.StopWorker(0), 0);
  const std::vector<v1::Checkpoint> saved = cluster_.Checkpoints(job);
  ASSERT_GE(saved.size(), 3U);
  ASSERT_LT(saved[0].step(), 150) << "it was over before the worker left";
  cluster_.FlipAByteOfTheNewestChunks();

  cluster_.StartWorker(0);
  const v1::Job end = cluster_.Await(job, IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.DebugString();
  EXPECT_EQ(end.first_failure().class_(), v1::FAILURE_CLASS_DATA);
  EXPECT_THAT(end.first_failure().message(), HasSubstr(saved[0].name() + ": tensor "));
  EXPECT_EQ(end.progress().start_step(), saved[1].step());
  EXPECT_EQ(end.progress().train_loss(), whole.progress().train_loss());
}

TEST_F(ProcessesTest, AnIdOutsideTheVocabularyFailsTheJobAndSaysWhere) {
  const std::string path = folder_ + "/wide.npy";
  auto writer = data::NpyWriter::Create(path, data::TokenType::kUint16);
  ASSERT_TRUE(writer.ok());
  std::vector<uint32_t> tokens(5000, 7);
  tokens[100] = 300;
  ASSERT_TRUE((*writer)->Append(tokens).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  v1::JobSpec spec = SmallJob(folder_);
  spec.mutable_data()->set_train(path);
  spec.mutable_restart()->set_max_failures(5);  // it would only fail again: none is used
  const v1::Job end = cluster_.Await(cluster_.Submit(spec), IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(end.attempts(), 1);
  EXPECT_EQ(end.first_failure().class_(), v1::FAILURE_CLASS_USER);
  EXPECT_THAT(end.first_failure().message(), HasSubstr(path));
  EXPECT_THAT(end.first_failure().message(), HasSubstr("300"));
  EXPECT_GT(end.first_failure().last_lines_size(), 0);
}

TEST_F(ProcessesTest, AMissingDataFileIsTheUsersToMend) {
  v1::JobSpec spec = SmallJob(folder_);
  spec.mutable_data()->set_train(folder_ + "/nothing.npy");
  spec.mutable_restart()->set_max_failures(0);
  const v1::Job end = cluster_.Await(cluster_.Submit(spec), IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(end.first_failure().class_(), v1::FAILURE_CLASS_USER);
  EXPECT_THAT(end.first_failure().message(), HasSubstr(folder_ + "/nothing.npy"));
}

TEST(RootsOfAWorker, PathsElsewhereAreTheUsersToMend) {
  const std::string folder = MakeFolder("milepost_roots");
  const std::string boards = folder + "/boards";
  std::filesystem::create_directories(boards);
  Cluster cluster(folder, {.worker_flags = {"--write-roots", boards, "--data-roots", folder}});
  cluster.Start();
  v1::JobSpec spec = SmallJob(folder, 2);
  spec.mutable_report()->set_tensorboard(folder + "/elsewhere");
  const v1::Job refused = cluster.Await(cluster.Submit(spec), IsTerminal);
  EXPECT_EQ(refused.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(refused.first_failure().class_(), v1::FAILURE_CLASS_USER);
  EXPECT_THAT(refused.first_failure().message(), HasSubstr("report.tensorboard"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/elsewhere"));
  spec.mutable_report()->set_tensorboard(boards + "/mine");
  EXPECT_EQ(cluster.Await(cluster.Submit(spec), IsTerminal).state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_TRUE(std::filesystem::exists(boards + "/mine"));
  // Within them, but a file is in the way.
  std::ofstream(boards + "/file") << "text";
  spec.mutable_report()->set_tensorboard(boards + "/file/runs");
  const v1::Job unwritable = cluster.Await(cluster.Submit(spec), IsTerminal);
  EXPECT_EQ(unwritable.first_failure().class_(), v1::FAILURE_CLASS_USER);
  EXPECT_THAT(unwritable.first_failure().message(), HasSubstr("report.tensorboard: "));
  if (!::testing::Test::HasFailure()) std::filesystem::remove_all(folder);
}

TEST_F(ProcessesTest, CancelSavesAndEnds) {
  const std::string job = cluster_.Submit(SmallJob(folder_, 100000));
  cluster_.Await(job, AtStep(1));
  cluster_.Cancel(job);
  EXPECT_EQ(cluster_.Await(job, IsTerminal).state(), v1::JOB_STATE_CANCELLED);
  EXPECT_FALSE(cluster_.Checkpoints(job).empty());
}

}  // namespace
}  // namespace milepost::e2e
