// A store with records of every kind, and copies of it to be damaged: for tests.
#ifndef MILEPOST_COORDINATOR_STORE_DAMAGED_STORE_H_
#define MILEPOST_COORDINATOR_STORE_DAMAGED_STORE_H_

#include <rocksdb/db.h>
#include <rocksdb/metadata.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/store/database.h"
#include "coordinator/store/store_fixture.h"

namespace milepost::coordinator {

constexpr int kJobs = 60;
constexpr int kTokens = 30;
constexpr int kCheckpoints = 12;

class DamagedStore : public StoreFixture {
 protected:
  DamagedStore() : whole_(dir_) { options_.dir = copy_ = dir_ + "-copy"; }
  ~DamagedStore() override {
    store_.reset();
    std::filesystem::remove_all(copy_);
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
    synced_ = std::filesystem::file_size(Log(whole_));
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
        {"logs", MetaFileOptions()},
        {"curves", MetaFileOptions()}};
    ASSERT_TRUE(rocksdb::DB::Open(meta, whole_ + "/db", wanted, &families, &opened).ok());
    std::unique_ptr<rocksdb::DB> db(opened);
    rocksdb::CompactRangeOptions all;
    all.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
    ASSERT_TRUE(db->CompactRange(all, families[0], nullptr, nullptr).ok());
    std::vector<rocksdb::LiveFileMetaData> files;
    db->GetLiveFilesMetaData(&files);
    for (const rocksdb::LiveFileMetaData& file : files) {
      if (file.column_family_name == "chunks") chunks_.insert(file.name.substr(1));
      if (file.column_family_name != rocksdb::kDefaultColumnFamilyName) continue;
      tables_.insert(file.name.substr(1));
      EXPECT_GT(file.level, 0);
    }
    for (rocksdb::ColumnFamilyHandle* family : families) db->DestroyColumnFamilyHandle(family);
  }

  // A fresh copy to be damaged.
  void Copy() {
    store_.reset();
    std::filesystem::remove_all(copy_);
    std::filesystem::copy(whole_, copy_, std::filesystem::copy_options::recursive);
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
    for (const auto& entry : std::filesystem::directory_iterator(dir + "/db")) {
      if (entry.path().extension() != ".log" || entry.file_size() == 0) continue;
      log = std::max(log, entry.path().string());
    }
    return log;
  }
  std::string Log() const { return Log(copy_); }

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
      EXPECT_TRUE(std::filesystem::exists(absl::StrCat(copy_, "/db/", chunk)))
          << chunk << " was deleted";
    }
  }

  const std::string whole_;
  std::string copy_;
  uintmax_t synced_ = 0;  // of Log()
  std::set<std::string> tables_, chunks_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_DAMAGED_STORE_H_
