#include "coordinator/store/store.h"

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>

#include "coordinator/core/decide.h"
#include "coordinator/store/database.h"
#include "coordinator/store/keys.h"
#include "coordinator/store/log_store.h"
#include "coordinator/store/store_fixture.h"

namespace milepost::coordinator {
namespace {

using ::testing::HasSubstr;

class StoreTest : public StoreFixture {
 protected:
  static Outcome Submit(const State& state) {
    return Decide(state, JobSubmitted{.request_id = "r", .uid = "u"}, absl::FromUnixSeconds(1), {});
  }
  static std::vector<v1::LogLine> Lines(int first, int count) {
    std::vector<v1::LogLine> lines(count);
    for (int i = 0; i < count; ++i) lines[i].set_text("line " + std::to_string(first + i));
    return lines;
  }
};

TEST_F(StoreTest, RecordsSurviveReopening) {
  Open();
  auto state = store_->LoadState();
  ASSERT_TRUE(state.ok());
  const Outcome outcome = Submit(*state);
  ASSERT_TRUE(store_->Write(outcome).ok());
  Open();
  state = store_->LoadState();
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(state->FindRequest("r"), 1);
  ASSERT_NE(state->FindJob(1), nullptr);
  EXPECT_EQ(state->FindJob(1)->SerializeAsString(), outcome.jobs.at(1).SerializeAsString());
}

TEST_F(StoreTest, ForgottenWorkersStayForgotten) {
  Open();
  Outcome known;
  for (const char* name : {"workers/a", "workers/b"}) {
    known.workers[name].mutable_worker()->set_name(name);
    known.durable_workers.insert(name);
  }
  ASSERT_TRUE(store_->Write(known).ok());
  Outcome forgets;
  forgets.forgotten_workers = {"workers/a"};
  ASSERT_TRUE(store_->Write(forgets).ok());
  Open();
  const auto state = store_->LoadState();
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(state->FindWorker("workers/a"), nullptr);
  EXPECT_NE(state->FindWorker("workers/b"), nullptr);
}

TEST_F(StoreTest, WhatWasWrittenBeforeAKillIsThere) {
  const pid_t child = fork();
  if (child == 0) {
    auto store = Store::Open(options_);
    State state = *(*store)->LoadState();
    const bool written = (*store)->Write(Submit(state)).ok() &&
                         (*store)->PutKey({1, 1, "k", "v"}).ok() &&
                         (*store)->logs().Append(1, Lines(0, 3)).ok();
    if (written) kill(getpid(), SIGKILL);
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << "the child could not write";
  Open();
  EXPECT_NE(store_->LoadState()->FindJob(1), nullptr);
  EXPECT_EQ(store_->LoadKeys()->size(), 1u);
  EXPECT_EQ(store_->logs().Read(1, 0, 10)->size(), 3u);
}

TEST_F(StoreTest, RendezvousKeysEndWithTheAttempt) {
  Open();
  ASSERT_TRUE(store_->PutKey({1, 1, "a", "x"}).ok());
  ASSERT_TRUE(store_->PutKey({1, 2, "b", "y"}).ok());
  ASSERT_TRUE(store_->PutKey({2, 1, "c", "z"}).ok());
  Outcome outcome;
  outcome.ended_attempts = {1};
  ASSERT_TRUE(store_->Write(outcome).ok());
  Open();
  auto keys = store_->LoadKeys();
  ASSERT_EQ(keys->size(), 1u);
  EXPECT_EQ(keys->at(0).job, 2);
  EXPECT_EQ(keys->at(0).generation, 1);
  EXPECT_EQ(keys->at(0).key, "c");
  EXPECT_EQ(keys->at(0).value, "z");
}

TEST_F(StoreTest, WhatAJobHasChosenEndsWithTheJobAlone) {
  Open();
  ASSERT_TRUE(store_->PutChoices(1, "a").ok());
  ASSERT_TRUE(store_->PutChoices(2, "b").ok());
  Outcome ended;
  ended.ended_attempts = {1};
  ASSERT_TRUE(store_->Write(ended).ok());
  Open();
  EXPECT_EQ(*store_->GetChoices(1), "a");
  Outcome deleted;
  deleted.deleted_jobs = {1};
  deleted.last_job = 2;
  ASSERT_TRUE(store_->Write(deleted).ok());
  Open();
  EXPECT_EQ(*store_->GetChoices(1), "");
  EXPECT_EQ(*store_->GetChoices(2), "b");
}

TEST_F(StoreTest, DirectoryOfANewerVersionIsRefused) {
  {
    auto database = Database::Open(dir_);
    rocksdb::WriteBatch batch;
    batch.Put((*database)->meta(), kFormatKey, "2");
    ASSERT_TRUE((*database)->Write(&batch, true).ok());
  }
  auto store = Store::Open(options_);
  EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(store.status().message()), HasSubstr(dir_ + " has format 2"));
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("newer"));
}

TEST_F(StoreTest, SecondOpenerIsRefused) {
  Open();
  auto second = Store::Open(options_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(dir_ + " is in use by another"));
  EXPECT_TRUE(store_->Write(Submit(State())).ok());  // the first is unharmed
}

TEST_F(StoreTest, DirectoryThatCannotBeMadeIsNamed) {
  std::ofstream(dir_ + "/file") << "x";
  options_.dir = dir_ + "/file/store";
  auto store = Store::Open(options_);
  ASSERT_FALSE(store.ok());
  EXPECT_THAT(std::string(store.status().message()), HasSubstr(options_.dir));
}

TEST_F(StoreTest, LogsAreBoundedByBytes) {
  options_.logs.bytes_per_job = 4000;
  Open();
  LogStore* logs = &store_->logs();
  int64_t stored = 0;
  for (int i = 0; i < 50; ++i) {
    std::vector<v1::LogLine> lines = Lines(i * 10, 10);
    for (v1::LogLine& line : lines) line.mutable_time()->set_seconds(1000 + i);
    ASSERT_TRUE(logs->Append(3, std::move(lines)).ok());
    stored += 10;
    const auto range = logs->GetRange(3);
    EXPECT_LT(range->bytes, 4400);
    EXPECT_EQ(range->dropped + static_cast<int64_t>(range->next - range->first), stored);
  }
  const auto range = logs->GetRange(3);
  EXPECT_GT(range->bytes, 3500);
  EXPECT_GT(range->dropped, 100);
  const auto lines = logs->Read(3, 0, 1000);
  ASSERT_EQ(lines->size(), range->next - range->first);
  int64_t bytes = 0;
  for (const v1::LogLine& line : *lines) bytes += static_cast<int64_t>(line.ByteSizeLong());
  EXPECT_EQ(bytes, range->bytes);
  // The last one that was dropped is right before the first that is kept.
  const int64_t first = lines->front().time().seconds();
  EXPECT_LE(absl::ToUnixSeconds(range->dropped_until), first);
  EXPECT_GE(absl::ToUnixSeconds(range->dropped_until), first - 1);
  Open();
  const auto again = store_->logs().GetRange(3);
  EXPECT_EQ(again->first, range->first);
  EXPECT_EQ(again->next, range->next);
  EXPECT_EQ(again->bytes, range->bytes);
  EXPECT_EQ(again->dropped, range->dropped);
  EXPECT_EQ(again->dropped_until, range->dropped_until);
  EXPECT_EQ(store_->logs().total_bytes(), range->bytes);
}

TEST_F(StoreTest, LogsOfJobsThatHaveEndedGoFirst) {
  options_.logs.total_bytes = 3000;
  options_.logs.lines_of_running = 15;
  Open();
  const auto append = [&](int64_t job, int count) {
    for (int i = 0; i < count; i += 10) {
      ASSERT_TRUE(store_->logs().Append(job, Lines(i, std::min(10, count - i))).ok());
    }
  };
  const auto count = [&](int64_t job) {
    const auto range = store_->logs().GetRange(job);
    return static_cast<int>(range->next - range->first);
  };
  for (int64_t job = 1; job <= 4; ++job) append(job, 100);
  const int64_t each = store_->logs().GetRange(1)->bytes;
  ASSERT_GT(each, 1000);
  ASSERT_LT(each, 1500);
  ASSERT_TRUE(store_->logs().IsOverTotal());
  // 2 ended before 1; 3 and 4 run.
  const auto end_of = [](int64_t job) {
    return job <= 2 ? absl::FromUnixSeconds(100 - job) : absl::InfiniteFuture();
  };
  ASSERT_TRUE(store_->logs().TrimTotal(end_of).ok());
  EXPECT_EQ(count(2), 0);
  EXPECT_EQ(store_->logs().GetRange(2)->dropped, 100);
  EXPECT_GT(count(1), 0);
  EXPECT_LT(count(1), 100);
  EXPECT_EQ(count(3), 100);
  EXPECT_LE(store_->logs().total_bytes(), 3000);
  // Those that run keep the newest lines whatever happens.
  append(3, 300);
  ASSERT_TRUE(store_->logs().TrimTotal(end_of).ok());
  EXPECT_EQ(count(1), 0);
  EXPECT_EQ(count(3), 15);
  EXPECT_EQ(store_->logs().Read(3, 0, 100)->back().text(), "line 299");
  // A job that comes back goes on with its numbers.
  append(2, 1);
  EXPECT_EQ(store_->logs().Read(2, 0, 10)->front().sequence(), 101u);
  Open();
  EXPECT_EQ(count(3), 15);
}

TEST_F(StoreTest, LogsOfAnOlderStoreAreCounted) {
  Open();
  ASSERT_TRUE(store_->logs().Append(3, Lines(0, 10)).ok());
  const auto before = store_->logs().GetRange(3);
  store_.reset();
  {
    auto database = Database::Open(dir_);
    rocksdb::WriteBatch batch;
    batch.Delete((*database)->meta(), NumberKey(kLogSummaryPrefix, 3));
    ASSERT_TRUE((*database)->Write(&batch, true).ok());
  }
  Open();
  EXPECT_EQ(store_->logs().total_bytes(), before->bytes);
  EXPECT_EQ(store_->logs().GetRange(3)->next, 11u);
}

// As if there were none: what comes is kept, and counted.
TEST_F(StoreTest, DamagedLogSummariesAreMadeAnew) {
  for (const int64_t wrong : {int64_t{-1}, INT64_MAX}) {
    store_.reset();
    {
      auto database = Database::Open(dir_);
      ASSERT_TRUE(database.ok()) << database.status();
      v1::LogSummary summary;
      summary.set_first(static_cast<uint64_t>(wrong));
      summary.set_bytes(wrong);
      summary.set_dropped_lines(wrong);
      rocksdb::WriteBatch batch;
      batch.Put((*database)->meta(), NumberKey(kLogSummaryPrefix, 7), summary.SerializeAsString());
      ASSERT_TRUE((*database)->Write(&batch, /*sync=*/true).ok());
    }
    Open();
    const auto before = store_->logs().GetRange(7);
    ASSERT_TRUE(before.ok()) << before.status();
    EXPECT_EQ(before->dropped, 0);
    EXPECT_EQ(before->bytes, store_->logs().total_bytes());
    ASSERT_TRUE(store_->logs().Append(7, {v1::LogLine(), v1::LogLine()}).ok());
    EXPECT_EQ(store_->logs().Read(7, before->next, 10)->size(), 2u);
  }
}

TEST_F(StoreTest, LogsAreNumberedAndTrimmed) {
  options_.logs.lines_per_job = 100;
  Open();
  LogStore* logs = &store_->logs();
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(logs->Append(3, Lines(i * 10, 10)).ok());
  ASSERT_TRUE(logs->Append(2, Lines(0, 1)).ok());
  ASSERT_TRUE(logs->Append(4, Lines(0, 1)).ok());
  auto range = logs->GetRange(3);
  EXPECT_EQ(range->next, 401u);
  EXPECT_GE(range->next - range->first, 100u);
  EXPECT_LT(range->next - range->first, 106u);
  auto lines = logs->Read(3, 0, 1000);
  EXPECT_EQ(lines->size(), range->next - range->first);
  EXPECT_EQ(lines->front().sequence(), range->first);
  EXPECT_EQ(lines->back().text(), "line 399");
  EXPECT_EQ(logs->Read(3, 395, 3)->front().sequence(), 395u);
  Open();
  EXPECT_EQ(store_->logs().GetRange(3)->next, 401u);
  EXPECT_EQ(store_->logs().GetRange(9)->next, 1u);
}

TEST_F(StoreTest, LongLinesAreCut) {
  Open();
  std::vector<v1::LogLine> lines(1);
  lines[0].set_text(std::string(20000, 'x'));
  ASSERT_TRUE(store_->logs().Append(1, lines).ok());
  EXPECT_EQ(store_->logs().Read(1, 0, 1)->at(0).text().size(), 8192u);
}

}  // namespace
}  // namespace milepost::coordinator
