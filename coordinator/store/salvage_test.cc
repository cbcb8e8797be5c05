// What is made of a damaged store: all that can be read of it, and nothing that was not in it.
#include "coordinator/store/salvage.h"

#include <rocksdb/sst_file_reader.h>
#include <rocksdb/sst_file_writer.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/store/damaged_store.h"
#include "coordinator/store/keys.h"

namespace milepost::coordinator {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class SalvageTest : public DamagedStore {
 protected:
  ~SalvageTest() override {
    store_.reset();
    fs::remove_all(new_);
  }

  // Opens what is made of the damaged copy. The lines that say what is lost.
  std::vector<std::string> Salvaged() {
    store_.reset();
    fs::remove_all(new_);
    auto report = Salvage(copy_, new_);
    EXPECT_TRUE(report.ok()) << report.status();
    if (!report.ok()) return {};
    options_.dir = new_;
    Open();
    options_.dir = copy_;
    std::erase_if(*report,
                  [](const std::string& line) { return absl::StartsWith(line, "found: "); });
    return *report;
  }
  std::set<int64_t> Jobs() {
    const auto state = store_->LoadState();
    EXPECT_TRUE(state.ok()) << state.status();
    std::set<int64_t> numbers;
    for (const auto& [number, record] : state->jobs()) {
      EXPECT_EQ(record.job().name(), absl::StrCat("jobs/", number));
      numbers.insert(number);
    }
    return numbers;
  }
  // A table with a checkpoint's record, made without a family. False: it is another table.
  static bool WriteAsEarlier(const std::string& path) {
    rocksdb::SstFileReader reader{rocksdb::Options()};
    EXPECT_TRUE(reader.Open(path).ok());
    std::unique_ptr<rocksdb::Iterator> it(reader.NewIterator(rocksdb::ReadOptions()));
    it->SeekToFirst();
    if (!it->Valid() || it->key()[0] != kManifestPrefix) return false;
    const std::string key = it->key().ToString(), value = it->value().ToString();
    it.reset();
    fs::remove(path);  // not the whole store's
    rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), MetaFileOptions());
    EXPECT_TRUE(writer.Open(path).ok());
    EXPECT_TRUE(writer.Put(key, value).ok());
    EXPECT_TRUE(writer.Finish().ok());
    return true;
  }
  size_t Tokens() {
    const auto tokens = store_->LoadTokens();
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    return tokens->size();
  }

  const std::string new_ = whole_ + "-new";
};

TEST_F(SalvageTest, OfAWholeStoreAllIsKept) {
  Fill();
  Copy();
  EXPECT_THAT(Salvaged(), testing::IsEmpty());
  ExpectAll();
  const auto state = store_->LoadState();
  ASSERT_TRUE(state.ok());
  EXPECT_GT(state->NextJobNumber(), kJobs + 900'000) << "none is given out twice";
  EXPECT_EQ(Commit(kCheckpoints + 1), absl::StrCat("checkpoints/", kCheckpoints + 1 + 1'000'000));
  const auto verified = checkpoints().Verify("checkpoints/1", [] { return false; });
  ASSERT_TRUE(verified.ok()) << verified.status();
  EXPECT_EQ(verified->damaged_chunks_size(), 0);
}

// Deleted logs are a range that is marked as deleted, at first in a table of its own.
TEST_F(SalvageTest, WhatIsDeletedStaysDeleted) {
  Fill();
  options_.dir = whole_;
  Open();
  const auto line = [](int64_t job) {
    v1::LogLine one;
    one.set_job(absl::StrCat("jobs/", job));
    one.set_text("text");
    return std::vector<v1::LogLine>{one};
  };
  ASSERT_TRUE(store_->logs().Append(5, line(5)).ok());
  ASSERT_TRUE(store_->logs().Append(6, line(6)).ok());
  Open();
  Outcome deletion;
  deletion.deleted_jobs.insert(5);
  deletion.last_job = kJobs;
  ASSERT_TRUE(store_->Write(deletion).ok());
  Open();
  store_.reset();
  options_.dir = copy_;
  Copy();
  EXPECT_THAT(Salvaged(), testing::IsEmpty());
  EXPECT_FALSE(Jobs().contains(5));
  EXPECT_EQ(store_->logs().Read(5, 0, 10)->size(), 0U);
  EXPECT_EQ(store_->logs().Read(6, 0, 10)->size(), 1U);
}

TEST_F(SalvageTest, RecordsOfAnyKindAreKept) {
  Fill();
  Copy();
  const auto keys = [](const std::string& dir) {
    const auto database = Database::Open(dir);
    EXPECT_TRUE(database.ok()) << database.status();
    std::set<std::string> all;
    std::unique_ptr<rocksdb::Iterator> it(
        (*database)->db()->NewIterator(rocksdb::ReadOptions(), (*database)->meta()));
    for (it->SeekToFirst(); it->Valid(); it->Next()) all.insert(it->key().ToString());
    return all;
  };
  {
    const auto database = Database::Open(copy_);
    ASSERT_TRUE(database.ok()) << database.status();
    rocksdb::WriteBatch batch;
    for (const char* key : {"\x01", "z of the future", "\xfe"}) {
      batch.Put((*database)->meta(), key, "value");
    }
    ASSERT_TRUE((*database)->Write(&batch, /*sync=*/true).ok());
  }
  std::set<std::string> before = keys(copy_);
  EXPECT_THAT(Salvaged(), testing::IsEmpty());
  store_.reset();
  before.insert(kLastJobKey);  // made for a store that had deleted no job
  EXPECT_EQ(keys(new_), before);
}

TEST_F(SalvageTest, ABlockCostsWhatItHeld) {
  Fill();
  Compact();
  constexpr int64_t kStep = 4096;  // a block
  size_t lost_jobs = 0, lost_others = 0;
  for (const std::string& table : tables_) {
    const auto size = static_cast<int64_t>(fs::file_size(absl::StrCat(whole_, "/db/", table)));
    for (int64_t at = 40; at < size; at += kStep) {
      SCOPED_TRACE(absl::StrCat(table, " at ", at, " of ", size));
      Copy();
      Flip(absl::StrCat(copy_, "/db/", table), at);
      const std::string lost = absl::StrJoin(Salvaged(), "\n");
      const size_t jobs = kJobs - Jobs().size();
      const size_t tokens = kTokens - Tokens();
      const size_t checkpoints = kCheckpoints - Names().size();
      lost_jobs += jobs;
      lost_others += tokens + checkpoints;
      // More may be told: whether there was something in what cannot be read is not known.
      EXPECT_TRUE(jobs == 0 || absl::StrContains(lost, "lost: jobs")) << lost;
      EXPECT_TRUE(tokens == 0 || absl::StrContains(lost, "lost: tokens")) << lost;
      EXPECT_TRUE(checkpoints == 0 || absl::StrContains(lost, "lost: checkpoints")) << lost;
      EXPECT_TRUE(fs::exists(absl::StrCat(copy_, "/db/", table))) << "it stays as it is";
    }
  }
  EXPECT_GT(lost_jobs, 0u);
  EXPECT_GT(lost_others, 0u);
}

TEST_F(SalvageTest, TwoBlocksDoNotCostWhatIsBetween) {
  Fill();
  Compact();
  Copy();
  const std::string first = absl::StrCat(copy_, "/db/", *tables_.begin());
  const std::string last = absl::StrCat(copy_, "/db/", *tables_.rbegin());
  Flip(first, 40);
  Flip(last, 40);
  EXPECT_FALSE(Salvaged().empty());
  EXPECT_GT(Jobs().size() + Tokens() + Names().size(),
            static_cast<size_t>(kJobs + kTokens + kCheckpoints) / 2);
}

TEST_F(SalvageTest, ADamagedLogCostsWhatCameAfter) {
  Fill();
  const auto size = static_cast<int64_t>((Copy(), fs::file_size(Log())));
  Flip(Log(), size / 2);
  EXPECT_THAT(absl::StrJoin(Salvaged(), "\n"), HasSubstr("write-ahead log"));
  const std::set<int64_t> jobs = Jobs();
  ASSERT_FALSE(jobs.empty());
  EXPECT_EQ(*jobs.rbegin(), static_cast<int64_t>(jobs.size())) << "none from after a gap";
  EXPECT_LT(jobs.size() + Tokens() + Names().size(),
            static_cast<size_t>(kJobs + kTokens + kCheckpoints));
}

TEST_F(SalvageTest, AMissingLogIsTold) {
  Fill();
  Compact();
  Copy();
  for (const auto& entry : fs::directory_iterator(copy_ + "/db")) {
    if (entry.path().extension() == ".log") fs::remove(entry.path());
  }
  EXPECT_THAT(absl::StrJoin(Salvaged(), "\n"), HasSubstr("write-ahead log"));
  ExpectAll();
}

TEST_F(SalvageTest, WithoutItsFirstFileNothingIsLost) {
  Fill();
  Compact();
  Copy();
  std::ofstream(copy_ + "/db/CURRENT", std::ios::trunc).flush();
  EXPECT_THAT(absl::StrJoin(Salvaged(), "\n"), HasSubstr("CURRENT"));
  ExpectAll();
}

TEST_F(SalvageTest, WithoutTheListOfTablesTheyAreFound) {
  Fill();
  Compact();
  Copy();
  for (const auto& entry : fs::directory_iterator(copy_ + "/db")) {
    const std::string name = entry.path().filename();
    if (absl::StartsWith(name, "MANIFEST-")) Flip(entry.path(), 40);
  }
  EXPECT_THAT(absl::StrJoin(Salvaged(), "\n"), HasSubstr("MANIFEST"));
  ExpectAll();
  for (const std::string& name : Names()) {
    const auto verified = checkpoints().Verify(name, [] { return false; });
    ASSERT_TRUE(verified.ok()) << verified.status();
    EXPECT_EQ(verified->damaged_chunks_size(), 0) << name;
  }
}

// What a commit has just ingested says whose it is; of earlier versions it did not.
TEST_F(SalvageTest, WithoutTheListOfTablesCheckpointsThatWereJustCommittedAreFound) {
  Fill();
  for (const bool earlier : {false, true}) {
    SCOPED_TRACE(earlier);
    Copy();
    int rewritten = 0;
    for (const auto& entry : fs::directory_iterator(copy_ + "/db")) {
      const std::string path = entry.path();
      if (absl::StrContains(path, "/MANIFEST-")) Flip(path, 40);
      if (earlier && entry.path().extension() == ".sst") rewritten += WriteAsEarlier(path) ? 1 : 0;
    }
    EXPECT_EQ(rewritten, earlier ? kCheckpoints : 0);
    EXPECT_THAT(absl::StrJoin(Salvaged(), "\n"), HasSubstr("MANIFEST"));
    ExpectAll();
  }
}

TEST_F(SalvageTest, AFileOfChunksCostsItsCheckpoint) {
  Fill();
  Compact();
  for (const bool missing : {false, true}) {
    SCOPED_TRACE(missing);
    Copy();
    const std::string file = absl::StrCat(copy_, "/db/", *chunks_.begin());
    if (missing) {
      fs::remove(file);
    } else {
      fs::remove(file);  // a file of its own, for the link is the whole store's
      std::ofstream(file) << "nothing of a table";
    }
    EXPECT_THAT(absl::StrJoin(Salvaged(), "\n"), HasSubstr("table"));
    EXPECT_EQ(Names().size(), static_cast<size_t>(kCheckpoints));
    int whole = 0;
    for (const std::string& name : Names()) {
      const auto verified = checkpoints().Verify(name, [] { return false; });
      whole += verified.ok() && verified->damaged_chunks_size() == 0 ? 1 : 0;
    }
    EXPECT_EQ(whole, kCheckpoints - 1);
  }
}

TEST_F(SalvageTest, RefusesWhatItCannotDo) {
  Fill();
  Copy();
  Open();
  EXPECT_EQ(Salvage(copy_, new_).status().code(), absl::StatusCode::kFailedPrecondition);
  store_.reset();
  EXPECT_EQ(Salvage(copy_, whole_).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Salvage(whole_ + "-none", new_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(fs::exists(new_));
  const std::string unfinished = new_ + ".unfinished";  // of one that was killed; it may be `from`
  fs::rename(copy_, unfinished);
  EXPECT_EQ(Salvage(unfinished, new_).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(fs::exists(unfinished + "/db/CURRENT"));
  fs::remove_all(unfinished);
}

}  // namespace
}  // namespace milepost::coordinator
