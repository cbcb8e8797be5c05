// Files of a store that are damaged while it is open: it says so, and goes on.
#include <rocksdb/experimental.h>
#include <rocksdb/write_batch.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/store/damage.h"
#include "coordinator/store/damaged_store.h"
#include "coordinator/store/keys.h"
#include "coordinator/store/log_store.h"

namespace milepost::coordinator {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int kMoreCheckpoints = 60;

class RunningDamageTest : public DamagedStore {
 protected:
  void SetUp() override {
    Fill();
    options_.dir = whole_;
    Open();
    for (int i = kCheckpoints + 1; i <= kMoreCheckpoints; ++i) Commit(i);
    store_.reset();
    options_.dir = copy_;
    Compact();
    ASSERT_GT(tables_.size(), 3u);
    Copy();
  }

  // In each of its blocks of records.
  void Damage(const std::string& table) {
    const std::string path = absl::StrCat(copy_, "/db/", table);
    constexpr int64_t kFooterAndIndex = 2000;
    const auto size = static_cast<int64_t>(fs::file_size(path));
    for (int64_t at = 40; at == 40 || at < size - kFooterAndIndex; at += 1000) Flip(path, at);
  }

  void ExpectTables() const {
    for (const std::string& table : tables_) {
      EXPECT_TRUE(fs::exists(absl::StrCat(copy_, "/db/", table))) << table << " was deleted";
    }
  }
};

TEST_F(RunningDamageTest, ACompactionThatMeetsItDropsNothingAndEndsNothingElse) {
  auto opened = Database::Open(copy_);
  ASSERT_TRUE(opened.ok()) << opened.status();
  std::unique_ptr<Database> database = *std::move(opened);
  for (const std::string& table : tables_) Damage(table);
  const auto put = [&](int64_t job) {
    rocksdb::WriteBatch batch;
    batch.Put(database->meta(), NumberKey(kJobPrefix, job), std::string(1000, 'j'));
    return database->Write(&batch, /*sync=*/true);
  };
  // Each round brings what is new a level nearer to the damaged tables.
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (database->damage().Describe().empty() && absl::Now() < deadline) {
    for (const int64_t job : {1, kJobs}) {
      const absl::Status written = put(job);
      ASSERT_TRUE(written.ok()) << written;
    }
    ASSERT_TRUE(database->db()->Flush(rocksdb::FlushOptions(), database->meta()).ok());
    ASSERT_TRUE(rocksdb::experimental::SuggestCompactRange(database->db(), database->meta(),
                                                           nullptr, nullptr)
                    .ok());
  }
  const std::string told = database->damage().Describe();
  EXPECT_THAT(told, HasSubstr(copy_ + "/db/"));
  EXPECT_THAT(told, HasSubstr("salvage"));
  EXPECT_THAT(told, HasSubstr("restore a backup"));
  EXPECT_TRUE(database->damage().InRecords());
  // More tables than writes would wait for a compaction of.
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(put(1 + i).ok()) << "it takes writes";
    ASSERT_TRUE(database->db()->Flush(rocksdb::FlushOptions(), database->meta()).ok());
  }
  database.reset();
  ExpectTables();
  ExpectChunks();
  EXPECT_EQ(Store::Open(options_).status().code(), absl::StatusCode::kDataLoss);
  ExpectChunks();
}

TEST_F(RunningDamageTest, ACheckpointWhoseRecordIsDamagedIsPassedOverAndKept) {
  Open();
  const std::string newest = checkpoints().Newest("jobs/1")->name();
  int hits = 0;
  for (const std::string& table : tables_) {
    Copy();
    Open();
    Damage(table);
    const auto read = checkpoints().Read(newest, {});
    if (read.ok()) continue;
    ++hits;
    EXPECT_THAT(store_->DescribeDamage(), HasSubstr(table));
    const auto next = checkpoints().Newest("jobs/1");
    ASSERT_TRUE(next.has_value());
    EXPECT_NE(next->name(), newest);
    EXPECT_FALSE(next->damaged());
    const auto gone = checkpoints().Retain("jobs/1", RetentionRule{.keep_last = 1});
    ASSERT_TRUE(gone.ok()) << gone.status();
    EXPECT_TRUE(gone->empty());
  }
  EXPECT_EQ(hits, 1);
}

// Jobs that have no other one are not begun anew, and new ones are saved.
TEST_F(RunningDamageTest, TheNewestStaysTheNewestWhereNoRecordCanBeRead) {
  Open();
  for (const std::string& table : tables_) Damage(table);
  int damaged = 0;
  for (const std::string& name : Names()) damaged += checkpoints().Read(name, {}).ok() ? 0 : 1;
  EXPECT_EQ(damaged, kMoreCheckpoints);
  EXPECT_TRUE(checkpoints().Newest("jobs/1").has_value());
  const std::string next = Commit(kMoreCheckpoints + 1);
  EXPECT_EQ(checkpoints().Newest("jobs/1")->name(), next);
  EXPECT_TRUE(checkpoints().Read(next, {}).ok());
}

TEST_F(RunningDamageTest, DamagedLogsEndNothingElse) {
  Open();
  const auto append = [&](int64_t job) {
    v1::LogLine line;
    line.set_text(std::string(1000, 'l'));
    return store_->logs().Append(job, std::vector<v1::LogLine>(500, line));
  };
  ASSERT_TRUE(append(1).ok());
  Open();          // what is in the log becomes a table
  store_.reset();  // or a compaction might be at it just now
  std::string damaged;
  for (const auto& entry : fs::directory_iterator(copy_ + "/db")) {
    std::stringstream bytes;
    bytes << std::ifstream(entry.path()).rdbuf();
    const bool has_lines = bytes.str().find(std::string(500, 'l')) != std::string::npos;
    if (entry.path().extension() == ".sst" && has_lines) damaged = entry.path().filename();
  }
  ASSERT_FALSE(damaged.empty());
  const std::string path = absl::StrCat(copy_, "/db/", damaged);
  Flip(path, static_cast<int64_t>(fs::file_size(path)) / 2);  // where no log begins or ends
  Open();
  // A compaction begins after some tables, and verifies them while more is written.
  for (int i = 0; store_->DescribeDamage().empty(); ++i) {
    const absl::Status appended = append(1 + i % 2);
    ASSERT_TRUE(appended.ok()) << appended;
  }
  EXPECT_THAT(store_->DescribeDamage(), HasSubstr(damaged));
  EXPECT_THAT(store_->DescribeDamage(), HasSubstr("logs"));
  PutJob(kJobs + 1);
  EXPECT_TRUE(append(1).ok());
  const auto gone = checkpoints().Retain("jobs/1", RetentionRule{.keep_last = 50});
  ASSERT_TRUE(gone.ok()) << gone.status();
  EXPECT_EQ(gone->size(), kMoreCheckpoints - 50u) << "records are whole";
}

}  // namespace
}  // namespace milepost::coordinator
