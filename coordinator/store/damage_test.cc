// What a damaged disk does to a store: it is refused, or all of it is there; nothing is deleted.
#include <rocksdb/db.h>
#include <rocksdb/metadata.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/store/database.h"
#include "coordinator/store/keys.h"
#include "coordinator/store/record_scan.h"
#include "coordinator/store/store_fixture.h"

namespace milepost::coordinator {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int kJobs = 60;
constexpr int kTokens = 30;
constexpr int kCheckpoints = 12;

class DamageTest : public StoreFixture {
 protected:
  DamageTest() : whole_(dir_) { options_.dir = copy_ = dir_ + "-copy"; }
  ~DamageTest() override {
    store_.reset();
    fs::remove_all(copy_);
  }

  void PutJob(int64_t number) {
    Outcome outcome;
    v1::JobRecord& record = outcome.jobs[number];
    record.mutable_job()->set_name(absl::StrCat("jobs/", number));
    record.set_request_id(absl::StrCat(number, std::string(700, 'r')));
    outcome.durable_jobs.insert(number);
    ASSERT_TRUE(store_->Write(outcome).ok());
  }

  void Fill() {
    options_.dir = whole_;
    Open();
    for (int i = 1; i <= kJobs; ++i) PutJob(i);
    for (int i = 1; i <= kTokens; ++i) {
      v1::TokenRecord record;
      record.mutable_token()->set_name(absl::StrCat("tokens/", i));
      record.mutable_token()->set_user(std::string(500, 'u'));
      ASSERT_TRUE(store_->PutToken(record, /*sync=*/true).ok());
    }
    for (int i = 1; i <= kCheckpoints; ++i) Commit(i);
    PutJob(kJobs);
    synced_ = fs::file_size(Log(whole_));
    ASSERT_TRUE(store_->PutKey({1, 1, "k", std::string(2000, 'v')}).ok());  // not synced
    store_.reset();
    options_.dir = copy_;
  }

  // With records in several files of the last level, as a store of gigabytes has them.
  void Compact() {
    rocksdb::Options meta = MetaFileOptions();
    meta.target_file_size_base = 8 << 10;
    rocksdb::DB* opened = nullptr;
    std::vector<rocksdb::ColumnFamilyHandle*> families;
    const std::vector<rocksdb::ColumnFamilyDescriptor> wanted = {
        {rocksdb::kDefaultColumnFamilyName, meta},
        {"chunks", ChunkFileOptions()},
        {"logs", MetaFileOptions()}};
    ASSERT_TRUE(rocksdb::DB::Open(meta, whole_ + "/db", wanted, &families, &opened).ok());
    std::unique_ptr<rocksdb::DB> db(opened);
    rocksdb::CompactRangeOptions all;
    all.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
    ASSERT_TRUE(db->CompactRange(all, families[0], nullptr, nullptr).ok());
    std::vector<rocksdb::LiveFileMetaData> files;
    db->GetLiveFilesMetaData(&files);
    for (const rocksdb::LiveFileMetaData& file : files) {
      (file.column_family_name == "chunks" ? chunks_ : tables_).insert(file.name.substr(1));
      EXPECT_TRUE(file.level > 0 || file.column_family_name == "chunks");
    }
    for (rocksdb::ColumnFamilyHandle* family : families) db->DestroyColumnFamilyHandle(family);
  }

  // A fresh copy to be damaged.
  void Copy() {
    store_.reset();
    fs::remove_all(copy_);
    fs::copy(whole_, copy_, fs::copy_options::recursive);
  }

  void Flip(const std::string& path, int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 4));
    ASSERT_TRUE(file.good()) << path << " at " << at;
  }

  // The newest that has something in it.
  static std::string Log(const std::string& dir) {
    std::string log;
    for (const auto& entry : fs::directory_iterator(dir + "/db")) {
      if (entry.path().extension() != ".log" || entry.file_size() == 0) continue;
      log = std::max(log, entry.path().string());
    }
    return log;
  }
  std::string Log() const { return Log(copy_); }

  void ExpectRefused(const std::string& naming) {
    const auto store = Store::Open(options_);
    ASSERT_FALSE(store.ok());
    EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss) << store.status();
    EXPECT_THAT(std::string(store.status().message()), HasSubstr(naming));
    EXPECT_THAT(std::string(store.status().message()), HasSubstr("restore a backup"));
  }

  void ExpectAll() {
    const auto state = store_->LoadState();
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->jobs().size(), kJobs);
    const auto tokens = store_->LoadTokens();
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    EXPECT_EQ(tokens->size(), kTokens);
    EXPECT_EQ(Names().size(), kCheckpoints);
  }

  void ExpectChunks() {
    for (const std::string& chunk : chunks_) {
      EXPECT_TRUE(fs::exists(absl::StrCat(copy_, "/db/", chunk))) << chunk << " was deleted";
    }
  }

  const std::string whole_;
  std::string copy_;
  uintmax_t synced_ = 0;  // of Log()
  std::set<std::string> tables_, chunks_;
};

TEST_F(DamageTest, AFlippedBitInATableIsFoundBeforeAnythingIsDeleted) {
  Fill();
  Compact();
  ASSERT_GT(tables_.size(), 3u);
  ASSERT_EQ(chunks_.size(), static_cast<size_t>(kCheckpoints));
  constexpr int64_t kStep = 4096;  // a block
  int refused = 0;
  for (const std::string& table : tables_) {
    const auto size = static_cast<int64_t>(fs::file_size(absl::StrCat(whole_, "/db/", table)));
    for (int64_t at = 40; at < std::min(size, 4 * kStep); at += kStep) {
      SCOPED_TRACE(absl::StrCat(table, " at ", at, " of ", size));
      Copy();
      Flip(absl::StrCat(copy_, "/db/", table), at);
      auto store = Store::Open(options_);
      if (store.ok()) {
        store_ = *std::move(store);
        ExpectAll();
        EXPECT_TRUE(checkpoints().AwaitDeletions(absl::InfiniteFuture()));
        store_.reset();
      } else {
        ++refused;
        EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss) << store.status();
        EXPECT_THAT(std::string(store.status().message()), HasSubstr(table));
      }
      ExpectChunks();
    }
  }
  EXPECT_GE(refused, static_cast<int>(tables_.size()));
}

TEST_F(DamageTest, AScanThatEndsEarlyFails) {
  Fill();
  Compact();
  int damaged = 0;
  for (const std::string& table : tables_) {
    Copy();
    auto database = Database::Open(copy_);
    ASSERT_TRUE(database.ok()) << database.status();
    Flip(absl::StrCat(copy_, "/db/", table), 40);  // while it is open: nothing verifies it any more
    for (const char prefix : {kJobPrefix, kTokenPrefix, kManifestPrefix}) {
      int seen = 0;
      const absl::Status status =
          ScanRecords(**database, prefix, [&](absl::string_view, absl::string_view) {
            ++seen;
            return absl::OkStatus();
          });
      const int all = prefix == kJobPrefix     ? kJobs
                      : prefix == kTokenPrefix ? kTokens
                                               : kCheckpoints;
      if (!status.ok()) ++damaged;
      EXPECT_TRUE(seen == all || absl::IsDataLoss(status)) << table << prefix << seen << status;
    }
  }
  EXPECT_GE(damaged, 3);
}

TEST_F(DamageTest, ChunksThatNothingNamesAreKept) {
  Fill();
  Compact();
  Copy();
  {
    auto database = Database::Open(copy_);
    ASSERT_TRUE(database.ok()) << database.status();
    rocksdb::WriteBatch batch;
    batch.Delete((*database)->meta(), NumberKey(kManifestPrefix, 3));
    ASSERT_TRUE((*database)->Write(&batch, /*sync=*/true).ok());
  }
  Open();
  EXPECT_TRUE(checkpoints().AwaitDeletions(absl::InfiniteFuture()));
  ExpectChunks();
}

TEST_F(DamageTest, ADeletionThatWasCutShortIsFinished) {
  Fill();
  Compact();
  Copy();
  {
    auto database = Database::Open(copy_);
    ASSERT_TRUE(database.ok()) << database.status();
    rocksdb::WriteBatch batch;
    batch.Delete((*database)->meta(), NumberKey(kManifestPrefix, 3));
    batch.Put((*database)->meta(), NumberKey(kDeletedPrefix, 3), "");
    ASSERT_TRUE((*database)->Write(&batch, /*sync=*/true).ok());
  }
  Open();
  EXPECT_TRUE(checkpoints().AwaitDeletions(absl::InfiniteFuture()));
  int left = 0;
  for (const std::string& chunk : chunks_) left += fs::exists(absl::StrCat(copy_, "/db/", chunk));
  EXPECT_EQ(left, kCheckpoints - 1);
}

TEST_F(DamageTest, AStoreWithoutItsFirstFileIsNotBegunAnew) {
  Fill();
  Compact();
  Copy();
  fs::remove(copy_ + "/db/CURRENT");
  ExpectRefused("CURRENT");
  ExpectChunks();
}

TEST_F(DamageTest, AFlippedByteInTheLogIsRefused) {
  Fill();
  const auto size = static_cast<int64_t>((Copy(), fs::file_size(Log())));
  for (int i = 1; i < 6; ++i) {
    Copy();
    Flip(Log(), i * size / 6);
    ExpectRefused("orruption");
  }
}

TEST_F(DamageTest, AMissingOrEmptiedLogIsRefused) {
  Fill();
  Copy();
  const std::string log = Log();
  fs::resize_file(log, 0);
  ExpectRefused(fs::path(log).filename());
  fs::remove(log);
  ExpectRefused("is missing");
}

TEST_F(DamageTest, AcknowledgedWritesAreMissedAtTheEndOfTheLog) {
  Fill();
  Copy();
  fs::resize_file(Log(), synced_ - 1);
  ExpectRefused("acknowledged");
}

// What kill -9 or a loss of power leaves of a write that nobody was told of.
TEST_F(DamageTest, ATornEndOfTheLogIsAccepted) {
  Fill();
  for (const uintmax_t left : {0, 1, 6, 7, 30, 1000}) {
    SCOPED_TRACE(left);
    Copy();
    ASSERT_GT(fs::file_size(Log()), synced_ + left);
    fs::resize_file(Log(), synced_ + left);
    Open();
    ExpectAll();
  }
}

}  // namespace
}  // namespace milepost::coordinator
