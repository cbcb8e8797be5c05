// The bin, and jobs that go with all that is theirs.
#include "common/error_details.h"
#include "coordinator/store/store_fixture.h"

namespace milepost::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class DeletionTest : public StoreFixture {
 protected:
  DeletionTest() { Open(); }

  std::vector<std::string> InBin() {
    std::vector<std::string> names;
    for (const v1::Checkpoint& one : checkpoints().List("", /*deleted=*/true)) {
      names.push_back(one.name());
    }
    return names;
  }
  v1::ErrorReason Bin(const std::string& name, absl::Time now = absl::FromUnixSeconds(100)) {
    const absl::Status status = checkpoints().Bin(name, /*keep_newest=*/false, now);
    return status.ok() ? v1::ERROR_REASON_UNSPECIFIED : ReasonOf(status);
  }
  // The job "jobs/1", which has ended, with a line of log.
  void PutJob() {
    Outcome outcome;
    outcome.jobs[1].mutable_job()->set_name("jobs/1");
    outcome.jobs[1].mutable_job()->set_state(v1::JOB_STATE_SUCCEEDED);
    outcome.durable_jobs.insert(1);
    ASSERT_TRUE(store_->Write(outcome).ok());
    v1::LogLine line;
    line.set_text("hello");
    ASSERT_TRUE(store_->logs().Append(1, {line}).ok());
  }
  absl::Status DeleteJob() {
    Outcome outcome;
    outcome.deleted_jobs.insert(1);
    outcome.last_job = 7;
    return store_->Write(outcome);
  }
  size_t LogLines() { return store_->logs().Read(1, 0, 100)->size(); }
};

TEST_F(DeletionTest, WhatIsInTheBinCountsNowhereAndComesBack) {
  const std::string older = Commit(1);
  const std::string newer = Commit(2);
  ASSERT_EQ(Bin(newer), v1::ERROR_REASON_UNSPECIFIED);
  for (int opened = 0; opened < 2; ++opened) {
    EXPECT_THAT(Names(), ElementsAre(older));
    EXPECT_THAT(InBin(), ElementsAre(newer));
    EXPECT_EQ(checkpoints().Newest("jobs/1")->name(), older);
    EXPECT_EQ(ReasonOf(checkpoints().Read(newer, {}).status()),
              v1::ERROR_REASON_CHECKPOINT_DELETED);
    EXPECT_EQ(ReasonOf(checkpoints().Pin(newer, true).status()),
              v1::ERROR_REASON_CHECKPOINT_DELETED);
    EXPECT_EQ(checkpoints().Get(newer)->checkpoint().purge_time().seconds(), 100 + 7 * 24 * 3600);
    ASSERT_TRUE(checkpoints().Retain("jobs/1", {.keep_last = 1}).ok());
    Open();
  }
  ASSERT_TRUE(checkpoints().Restore(newer).ok());
  ASSERT_TRUE(checkpoints().Restore(newer).ok());
  EXPECT_THAT(Names(), ElementsAre(newer, older));
  EXPECT_EQ(checkpoints().Newest("jobs/1")->name(), newer);
  Open();
  EXPECT_THAT(InBin(), IsEmpty());
  EXPECT_TRUE(checkpoints().Verify(newer, [] { return false; })->damaged_chunks().empty());
}

TEST_F(DeletionTest, WhatIsInTheBinIsNothingToBeginWith) {
  const std::string older = Commit(1);
  Commit(2);
  auto kept = checkpoints().Keep(older);
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(Bin(older), v1::ERROR_REASON_CHECKPOINT_IN_USE);
  kept->reset();
  ASSERT_EQ(Bin(older), v1::ERROR_REASON_UNSPECIFIED);
  EXPECT_EQ(ReasonOf(checkpoints().Keep(older).status()), v1::ERROR_REASON_CHECKPOINT_DELETED);
}

TEST_F(DeletionTest, WhatMayNotGoDoesNotGoIntoTheBin) {
  const std::string older = Commit(1);
  const std::string newer = Commit(2);
  ASSERT_TRUE(checkpoints().Pin(older, true).ok());
  EXPECT_EQ(Bin(older), v1::ERROR_REASON_CHECKPOINT_PINNED);
  auto reader = checkpoints().Read(newer, {});
  EXPECT_EQ(Bin(newer), v1::ERROR_REASON_CHECKPOINT_IN_USE);
  reader->reset();
  EXPECT_EQ(ReasonOf(checkpoints().Bin(newer, /*keep_newest=*/true, absl::Now())),
            v1::ERROR_REASON_CHECKPOINT_NEWEST);
  EXPECT_THAT(InBin(), IsEmpty());
}

TEST_F(DeletionTest, TheBinIsEmptiedInTimeAndWhereTheDiskIsFull) {
  options_.bin_time = absl::Seconds(10);
  options_.margin_bytes = 0;
  uint64_t free = uint64_t{1} << 40;
  options_.free_bytes = [&](const std::string&) { return free; };
  Open();
  const std::string first = Commit(1);
  const std::string second = Commit(2);
  const std::string third = Commit(3);
  Commit(4);
  Bin(second, absl::FromUnixSeconds(200));
  Bin(first, absl::FromUnixSeconds(201));
  Bin(third, absl::FromUnixSeconds(100));
  ASSERT_TRUE(checkpoints().EmptyBin(absl::FromUnixSeconds(111)).ok());
  EXPECT_THAT(InBin(), ElementsAre(second, first));
  EXPECT_TRUE(absl::IsNotFound(checkpoints().Restore(third).status()));
  // Room once one more is gone: the oldest in the bin.
  int asked = 0;
  options_.free_bytes = [&](const std::string&) { return ++asked <= 3 ? 0 : uint64_t{1} << 40; };
  Open();
  EXPECT_TRUE(checkpoints().Begin(Request(5)).ok());
  EXPECT_THAT(InBin(), ElementsAre(first));
}

// Two in the bin, on a disk that has what `free_` says.
class NearlyFullTest : public DeletionTest {
 protected:
  void FillBin(uint64_t margin) {
    options_.bin_time = absl::Hours(1);
    options_.margin_bytes = margin;
    options_.free_bytes = [this](const std::string&) { return free_; };
    Open();
    first_ = Commit(1);
    second_ = Commit(2);
    Commit(3);
    Bin(first_, absl::FromUnixSeconds(100));
    Bin(second_, absl::FromUnixSeconds(101));
  }
  uint64_t free_ = uint64_t{1} << 40;
  std::string first_, second_;
};

TEST_F(NearlyFullTest, TheBinIsNotEmptiedForWhatDoesNotFitAllTheSame) {
  FillBin(/*margin=*/0);
  free_ = 0;
  EXPECT_TRUE(absl::IsResourceExhausted(checkpoints().Begin(Request(4, 1, 1000)).status()));
  EXPECT_THAT(InBin(), ElementsAre(second_, first_));
}

TEST_F(NearlyFullTest, TheOldestGo) {
  FillBin(/*margin=*/1000);
  free_ = 2000;
  ASSERT_TRUE(checkpoints().EmptyBin(absl::FromUnixSeconds(102)).ok());
  EXPECT_THAT(InBin(), ElementsAre(second_, first_)) << "there is room";
  free_ = 1000;
  ASSERT_TRUE(checkpoints().EmptyBin(absl::FromUnixSeconds(102)).ok());
  EXPECT_THAT(InBin(), ElementsAre(second_, first_)) << "it would not be enough";
  free_ = 1990;
  ASSERT_TRUE(checkpoints().EmptyBin(absl::FromUnixSeconds(102)).ok());
  EXPECT_THAT(InBin(), ElementsAre(second_));
}

TEST_F(DeletionTest, AJobGoesWithItsCheckpointsAndItsLog) {
  PutJob();
  const std::string kept = Commit(1);
  Bin(Commit(2));
  ASSERT_EQ(checkpoints().ClaimJob("jobs/1")->size(), 2u);
  EXPECT_EQ(ReasonOf(checkpoints().Read(kept, {}).status()), v1::ERROR_REASON_CHECKPOINT_IN_USE);
  EXPECT_EQ(Bin(kept), v1::ERROR_REASON_CHECKPOINT_IN_USE);
  EXPECT_EQ(ReasonOf(checkpoints().ClaimJob("jobs/1").status()),
            v1::ERROR_REASON_CHECKPOINT_IN_USE);
  ASSERT_EQ(LogLines(), 1u);
  ASSERT_TRUE(DeleteJob().ok());
  for (int opened = 0; opened < 2; ++opened) {
    EXPECT_EQ(store_->LoadState()->FindJob(1), nullptr);
    EXPECT_EQ(store_->LoadState()->NextJobNumber(), 8);
    EXPECT_THAT(Names(), IsEmpty());
    EXPECT_THAT(InBin(), IsEmpty());
    EXPECT_EQ(LogLines(), 0u);
    EXPECT_EQ(store_->logs().total_bytes(), 0);
    Open();
  }
}

// All or nothing: at whatever point the process dies, another finds the job whole, or finds nothing
// of it. What the write says is to go is deleted after the next start.
TEST_F(DeletionTest, ADeletionThatTheProcessDidNotSurviveIsDoneOrWasNot) {
  PutJob();
  const std::string name = Commit(1);
  ASSERT_TRUE(checkpoints().ClaimJob("jobs/1").ok());
  Open();  // claimed, not written
  EXPECT_NE(store_->LoadState()->FindJob(1), nullptr);
  EXPECT_THAT(Names(), ElementsAre(name));
  EXPECT_TRUE(checkpoints().Verify(name, [] { return false; })->damaged_chunks().empty());
  EXPECT_EQ(LogLines(), 1u);
}

TEST_F(DeletionTest, ARefusedClaimLeavesEverything) {
  const std::string older = Commit(1);
  const std::string newer = Commit(2);
  ASSERT_TRUE(checkpoints().Pin(newer, true).ok());
  const absl::Status refused = checkpoints().ClaimJob("jobs/1").status();
  EXPECT_EQ(ReasonOf(refused), v1::ERROR_REASON_CHECKPOINT_PINNED);
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr(newer));
  EXPECT_TRUE(checkpoints().Read(older, {}).ok());
  ASSERT_TRUE(checkpoints().Pin(newer, false).ok());
  ASSERT_TRUE(checkpoints().ClaimJob("jobs/1").ok());
  checkpoints().ReleaseJob("jobs/1");
  EXPECT_TRUE(checkpoints().Read(older, {}).ok());
}

}  // namespace
}  // namespace milepost::coordinator
