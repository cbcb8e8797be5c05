// What a damaged disk does to a store: it is refused, or all of it is there; nothing is deleted.
#include "coordinator/store/damaged_store.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/store/database.h"
#include "coordinator/store/keys.h"
#include "coordinator/store/record_scan.h"
#include "coordinator/store/unnamed_chunks.h"

namespace milepost::coordinator {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class DamageTest : public DamagedStore {
 protected:
  int ChunksLeft() const {
    int left = 0;
    for (const std::string& chunk : chunks_) left += fs::exists(absl::StrCat(copy_, "/db/", chunk));
    return left;
  }

  void ExpectRefused(const std::string& naming) {
    const auto store = Store::Open(options_);
    ASSERT_FALSE(store.ok());
    EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss) << store.status();
    EXPECT_THAT(std::string(store.status().message()), HasSubstr(naming));
    EXPECT_THAT(std::string(store.status().message()), HasSubstr("restore a backup"));
  }
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
  EXPECT_EQ(UnnamedChunks(copy_, /*remove=*/true).status().code(),
            absl::StatusCode::kFailedPrecondition)
      << "a coordinator is at work";
  store_.reset();

  const auto listed = UnnamedChunks(copy_, /*remove=*/false);
  ASSERT_TRUE(listed.ok()) << listed.status();
  ASSERT_EQ(listed->size(), 1u);
  EXPECT_EQ(listed->front().checkpoint, 3);
  EXPECT_EQ(listed->front().files, 1);
  EXPECT_GT(listed->front().bytes, 64u);
  ExpectChunks();
  ASSERT_TRUE(UnnamedChunks(copy_, /*remove=*/true).ok());
  EXPECT_EQ(ChunksLeft(), kCheckpoints - 1);
  EXPECT_TRUE(UnnamedChunks(copy_, /*remove=*/true)->empty());
  Open();
  EXPECT_EQ(Names().size(), kCheckpoints - 1u);
  for (const std::string& name : Names()) {
    EXPECT_TRUE(checkpoints().Verify(name, [] { return false; })->damaged_chunks().empty());
  }
}

TEST_F(DamageTest, NothingIsRemovedOfADamagedStore) {
  Fill();
  Compact();
  Copy();
  for (const std::string& table : tables_) Flip(absl::StrCat(copy_, "/db/", table), 40);
  EXPECT_EQ(UnnamedChunks(copy_, /*remove=*/true).status().code(), absl::StatusCode::kDataLoss);
  ExpectChunks();
  EXPECT_EQ(UnnamedChunks(copy_ + "-none", /*remove=*/true).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(fs::exists(copy_ + "-none"));
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
  EXPECT_EQ(ChunksLeft(), kCheckpoints - 1);
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
