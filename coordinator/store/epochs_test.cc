#include "coordinator/store/epochs.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "coordinator/core/decide.h"
#include "coordinator/store/store_fixture.h"

namespace milepost::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class EpochsTest : public StoreFixture {
 protected:
  static absl::Status Elected() { return absl::OkStatus(); }
  // Elected, and at work in store_. The one before stays as it is in older_.
  void TakeOverAndOpen() {
    const auto epoch = TakeOver(dir_, Elected);
    ASSERT_TRUE(epoch.ok()) << epoch.status();
    older_ = std::move(store_);
    options_.dir = epoch->dir;
    Open();
  }
  void PutKey(Store* store, const std::string& key) {
    EXPECT_TRUE(store->PutKey({.job = 1, .generation = 1, .key = key, .value = "v"}).ok());
    EXPECT_TRUE(store->SyncKeys().ok());
  }
  static std::vector<std::string> Keys(Store* store) {
    const auto loaded = store->LoadKeys();
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    std::vector<std::string> keys;
    for (const RendezvousKey& key : *loaded) keys.push_back(key.key);
    return keys;
  }
  bool Verifies(const std::string& checkpoint) {
    const auto result = checkpoints().Verify(checkpoint, [] { return false; });
    return result.ok() && result->damaged_chunks().empty();
  }
  std::vector<std::string> Entries() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  std::unique_ptr<Store> older_;
};

TEST_F(EpochsTest, BeginsWithNothing) {
  EXPECT_FALSE(HasStore(dir_).value());
  TakeOverAndOpen();
  EXPECT_TRUE(HasStore(dir_).value());
  EXPECT_EQ(NewestEpoch(dir_).value(), 1);
  EXPECT_THAT(Names(), ElementsAre());
}

// The first coordinator of all dies before it has written anything.
TEST_F(EpochsTest, AnEpochWithNothingIsTakenOver) {
  ASSERT_TRUE(TakeOver(dir_, Elected).ok());
  TakeOverAndOpen();
  EXPECT_EQ(NewestEpoch(dir_).value(), 2);
  EXPECT_THAT(Names(), ElementsAre());
}

TEST_F(EpochsTest, TheNextOneHasAllThatWasAcknowledged) {
  TakeOverAndOpen();
  PutKey(store_.get(), "a");
  const std::string checkpoint = Commit(10);
  PutKey(store_.get(), "b");
  TakeOverAndOpen();  // the older one is still open: it was killed, or has not noticed
  EXPECT_THAT(Keys(store_.get()), ElementsAre("a", "b"));
  EXPECT_THAT(Names(), ElementsAre(checkpoint));
  EXPECT_TRUE(Verifies(checkpoint));
  Commit(20);
  EXPECT_EQ(Names().size(), 2u);
}

// A coordinator that was stopped and goes on: what it does is nowhere to be seen.
TEST_F(EpochsTest, WhatAnOlderOneStillDoesChangesNothing) {
  TakeOverAndOpen();
  const std::string first = Commit(10);
  TakeOverAndOpen();
  PutKey(older_.get(), "late");
  EXPECT_TRUE(older_->checkpoints().Delete(first, /*keep_newest=*/false).ok());
  EXPECT_TRUE(older_->checkpoints().AwaitDeletions(absl::Now() + absl::Seconds(10)));
  older_.reset();
  Open();
  EXPECT_THAT(Keys(store_.get()), ElementsAre());
  EXPECT_THAT(Names(), ElementsAre(first));
  EXPECT_TRUE(Verifies(first));
}

TEST_F(EpochsTest, WhatTheNewOneDeletesIsStillTheOlderOnes) {
  TakeOverAndOpen();
  const std::string first = Commit(10);
  TakeOverAndOpen();
  EXPECT_TRUE(checkpoints().Delete(first, /*keep_newest=*/false).ok());
  EXPECT_TRUE(checkpoints().AwaitDeletions(absl::Now() + absl::Seconds(10)));
  store_ = std::move(older_);
  EXPECT_TRUE(Verifies(first));
}

TEST_F(EpochsTest, AStoreWithoutEpochsBecomesTheFirst) {
  Open();
  PutKey(store_.get(), "a");
  const std::string checkpoint = Commit(10);
  store_.reset();
  TakeOverAndOpen();
  EXPECT_THAT(Keys(store_.get()), ElementsAre("a"));
  EXPECT_TRUE(Verifies(checkpoint));
  const auto alone = Store::Open({.dir = dir_});
  EXPECT_EQ(alone.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(alone.status().message()), HasSubstr("give --etcd"));
}

// Killed anywhere on its way, a takeover leaves what there was to the next one.
TEST_F(EpochsTest, KilledAtEveryStep) {
  TakeOverAndOpen();
  PutKey(store_.get(), "a");
  const std::string checkpoint = Commit(10);
  PutKey(store_.get(), "b");
  std::vector<std::string> steps;
  ASSERT_TRUE(TakeOver(dir_, Elected, [&](absl::string_view step) {
                steps.emplace_back(step);
                return absl::OkStatus();
              }).ok());
  EXPECT_GE(steps.size(), 7u);
  for (const std::string& last : steps) {
    SCOPED_TRACE(last);
    const auto killed = TakeOver(dir_, Elected, [&](absl::string_view step) {
      return step == last ? absl::AbortedError("killed") : absl::OkStatus();
    });
    EXPECT_EQ(killed.status().code(), absl::StatusCode::kAborted);
    TakeOverAndOpen();
    EXPECT_THAT(Keys(store_.get()), ElementsAre("a", "b"));
    EXPECT_TRUE(Verifies(checkpoint));
  }
}

// Elected earlier, ready later: what the later one has acknowledged is not lost to it.
TEST_F(EpochsTest, AnEarlierOneThatFinishesLateIsPassedOver) {
  TakeOverAndOpen();
  PutKey(store_.get(), "a");
  const auto late = TakeOver(dir_, Elected, [&](absl::string_view step) {
    if (step != "rename") return absl::OkStatus();
    TakeOverAndOpen();
    PutKey(store_.get(), "b");
    return absl::OkStatus();
  });
  EXPECT_TRUE(late.ok()) << late.status();
  TakeOverAndOpen();
  EXPECT_THAT(Keys(store_.get()), ElementsAre("a", "b"));
}

// The older one writes out what it has in memory and deletes its log while it is being copied.
TEST_F(EpochsTest, AStoreThatChangesMeanwhileIsLookedAtAgain) {
  for (const char* at : {"link", "copy logs", "copy manifest", "copy current", "look again"}) {
    SCOPED_TRACE(at);
    TakeOverAndOpen();
    PutKey(store_.get(), absl::StrCat("before ", at));
    int times = 0, looks = 0;
    std::vector<std::string> committed;
    const auto epoch = TakeOver(dir_, Elected, [&](absl::string_view step) {
      if (step == "link") ++looks;
      if (step == at && times++ < 1)
        committed.push_back(Commit(10 + NewestEpoch(dir_).value() + times));
      return absl::OkStatus();
    });
    ASSERT_TRUE(epoch.ok()) << epoch.status();
    EXPECT_GE(looks, 2);  // more where RocksDB deletes what is old in its own time
    older_ = std::move(store_);
    options_.dir = epoch->dir;
    Open();
    EXPECT_THAT(Keys(store_.get()), ::testing::Contains(absl::StrCat("before ", at)));
    for (const std::string& name : committed) EXPECT_TRUE(Verifies(name));
    older_.reset();
  }
}

// At whatever step it is stopped, and with whatever number etcd has elected it: etcd has been set
// up anew meanwhile, and another one has taken over. When it goes on it may believe to be elected
// only where it has looked before it was stopped.
TEST_F(EpochsTest, OneOfAnEtcdThatWasSetUpAnewIsPassedOver) {
  TakeOverAndOpen();
  std::vector<std::string> steps;
  ASSERT_TRUE(TakeOver(dir_, Elected, [&](absl::string_view step) {
                steps.emplace_back(step);
                return absl::OkStatus();
              }).ok());
  std::vector<std::string> acknowledged;
  for (const std::string& at : steps) {
    for (const bool cleaned : {false, true}) {
      SCOPED_TRACE(absl::StrCat(at, cleaned ? ", older epochs removed" : ""));
      bool elected = true;
      const auto stalled = TakeOver(
          dir_, [&] { return elected ? absl::OkStatus() : absl::UnavailableError("not elected"); },
          [&](absl::string_view step) {
            if (step != at || !elected) return absl::OkStatus();
            elected = false;
            TakeOverAndOpen();
            acknowledged.push_back(absl::StrCat("k", 100 + acknowledged.size()));
            PutKey(store_.get(), acknowledged.back());
            if (cleaned) {
              EXPECT_TRUE(RemoveOlderEpochs(dir_, NewestEpoch(dir_).value()).ok());
            }
            return absl::OkStatus();
          });
      EXPECT_LT(stalled.ok() ? stalled->number : 0, NewestEpoch(dir_).value());
      TakeOverAndOpen();
      EXPECT_EQ(Keys(store_.get()), acknowledged);
    }
  }
}

// What was killed on its way has had its number, which no other one may have.
TEST_F(EpochsTest, NumbersOnlyGrow) {
  std::filesystem::create_directory(dir_ + "/epoch-41.unfinished");
  std::filesystem::create_directory(dir_ + "/epoch-40.unfinished-x7Gh2a");
  TakeOverAndOpen();
  EXPECT_EQ(NewestEpoch(dir_).value(), 42);
  EXPECT_TRUE(RemoveOlderEpochs(dir_, 42).ok());
  EXPECT_THAT(Entries(), ElementsAre("epoch-42"));
}

TEST_F(EpochsTest, NotElectedAnyMoreItLeavesNothing) {
  const auto epoch = TakeOver(dir_, [] { return absl::UnavailableError("not elected"); });
  EXPECT_TRUE(absl::IsUnavailable(epoch.status())) << epoch.status();
  EXPECT_THAT(Entries(), ElementsAre());
}

TEST_F(EpochsTest, AnAbandonedOneIsGone) {
  TakeOverAndOpen();
  PutKey(store_.get(), "a");
  for (int i = 0; i < 3; ++i) {
    const auto epoch = TakeOver(dir_, Elected);
    ASSERT_TRUE(epoch.ok()) << epoch.status();
    EXPECT_EQ(Abandon(dir_, *epoch), absl::OkStatus());
    EXPECT_THAT(Entries(), ElementsAre("epoch-1"));
  }
  TakeOverAndOpen();
  EXPECT_THAT(Keys(store_.get()), ElementsAre("a"));
}

TEST_F(EpochsTest, OlderOnesAreRemoved) {
  TakeOverAndOpen();
  const std::string checkpoint = Commit(10);
  TakeOver(dir_, Elected, [](absl::string_view step) {
    return step == "rename" ? absl::AbortedError("killed") : absl::OkStatus();
  }).IgnoreError();
  TakeOverAndOpen();
  std::ofstream(dir_ + "/audit.log") << "kept";
  // Told to stop it leaves the rest to the next one.
  int files = 0;
  EXPECT_TRUE(RemoveOlderEpochs(dir_, 2, [&] { return ++files > 3; }).ok());
  EXPECT_THAT(Entries(), ElementsAre("audit.log", "epoch-2", "trash-epoch-1"));
  EXPECT_TRUE(RemoveOlderEpochs(dir_, 2).ok());
  EXPECT_THAT(Entries(), ElementsAre("audit.log", "epoch-2"));
  older_.reset();
  Open();
  EXPECT_TRUE(Verifies(checkpoint));
}

TEST_F(EpochsTest, AnUnreadableStoreIsNotReplacedByNothing) {
  TakeOverAndOpen();
  PutKey(store_.get(), "a");
  store_.reset();
  std::ofstream(options_.dir + "/db/CURRENT") << "nonsense";
  EXPECT_EQ(TakeOver(dir_, Elected).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(NewestEpoch(dir_).value(), 1);
}

// While the store is at work, and whatever becomes of it then.
TEST_F(EpochsTest, ABackupTakesNoNameThatHasAMeaning) {
  for (const char* name : {"/epoch-50", "/db", "/db/backup-1", "/staging/b", "/audit.log", ""}) {
    EXPECT_EQ(CheckOutside(dir_, dir_ + name).code(), absl::StatusCode::kInvalidArgument) << name;
  }
  std::filesystem::create_directory_symlink(dir_, dir_ + "-link");
  EXPECT_FALSE(CheckOutside(dir_, dir_ + "-link/epoch-50").ok());
  std::filesystem::remove(dir_ + "-link");
  EXPECT_EQ(CheckOutside(dir_, dir_ + "/backup-1"), absl::OkStatus());
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(dir_);
  EXPECT_FALSE(CheckOutside(".", "epoch-50").ok());
  EXPECT_FALSE(CheckOutside(dir_, "epoch-50/").ok());
  EXPECT_EQ(CheckOutside(".", "backup-1"), absl::OkStatus());
  std::filesystem::current_path(before);
  EXPECT_EQ(CheckOutside(dir_, dir_ + "-new"), absl::OkStatus());
}

TEST_F(EpochsTest, ABackupIsTheStoreOfOneMoment) {
  for (const bool epoch : {false, true}) {
    store_.reset();
    if (epoch) {
      TakeOverAndOpen();
    } else {
      Open();
    }
    const std::string at = absl::StrCat(dir_, "/backup-", epoch);
    PutKey(store_.get(), absl::StrCat("before", epoch));
    const std::string kept = Commit(10 + epoch);
    ASSERT_EQ(BackUp(dir_, at), absl::OkStatus());
    EXPECT_TRUE(absl::IsAlreadyExists(BackUp(dir_, at)));
    PutKey(store_.get(), absl::StrCat("after", epoch));
    EXPECT_TRUE(checkpoints().Delete(kept, /*keep_newest=*/false).ok());
    EXPECT_TRUE(checkpoints().AwaitDeletions(absl::Now() + absl::Seconds(10)));
    StoreOptions of_copy = options_;
    of_copy.dir = at;
    const auto copy = Store::Open(of_copy);
    ASSERT_TRUE(copy.ok()) << copy.status();
    const std::vector<std::string> keys = Keys(copy->get());
    EXPECT_EQ(std::count(keys.begin(), keys.end(), absl::StrCat("before", epoch)), 1);
    EXPECT_EQ(std::count(keys.begin(), keys.end(), absl::StrCat("after", epoch)), 0);
    const auto verified = (*copy)->checkpoints().Verify(kept, [] { return false; });
    ASSERT_TRUE(verified.ok()) << verified.status();
    EXPECT_TRUE(verified->damaged_chunks().empty());
  }
  EXPECT_TRUE(absl::IsNotFound(BackUp(dir_ + "/backup-0/db", dir_ + "/none")));
  EXPECT_TRUE(absl::IsNotFound(BackUp(dir_ + "/nowhere", dir_ + "/none")));
}

}  // namespace
}  // namespace milepost::coordinator
