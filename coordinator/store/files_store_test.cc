#include "coordinator/store/files_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/spec/script.h"
#include "coordinator/store/epochs.h"
#include "coordinator/store/salvage.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

namespace fs = std::filesystem;

std::string DigestOfText(absl::string_view text) {
  Sha256Stream digest;
  digest.Add(text);
  return digest.Hex();
}

class FilesStoreTest : public testing::Test {
 protected:
  FilesStoreTest() {
    std::string path = testing::TempDir() + "files_store_XXXXXX";
    dir_ = mkdtemp(path.data());
    options_ = {.dir = dir_,
                .most_bytes = 1000,
                .margin_bytes = 50,
                .free_bytes = [this](const std::string&) { return free_; },
                .reserved_bytes = [this] { return others_; }};
    Open();
  }
  ~FilesStoreTest() override { fs::remove_all(dir_); }

  void Open() {
    store_.reset();
    auto store = FilesStore::Open(options_, now_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  absl::Status Put(const std::string& text) {
    auto upload = store_->Begin(DigestOfText(text), static_cast<int64_t>(text.size()));
    if (!upload.ok()) return upload.status();
    if (absl::Status status = (*upload)->Append(text); !status.ok()) return status;
    return (*upload)->Finish(now_);
  }
  absl::StatusOr<std::string> Get(const std::string& sha256) {
    auto reader = store_->Read(sha256);
    if (!reader.ok()) return reader.status();
    std::string all;
    while (true) {
      auto piece = (*reader)->Next();
      if (!piece.ok()) return piece.status();
      if (piece->empty()) return all;
      all += *piece;
    }
  }
  std::vector<std::string> Incoming() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_ + "/files/incoming")) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  std::string dir_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1000);
  uint64_t free_ = 1'000'000;
  int64_t others_ = 0;
  FilesStoreOptions options_;
  std::unique_ptr<FilesStore> store_;
};

TEST_F(FilesStoreTest, WhatIsSentIsThereOnceAndAfterARestart) {
  const std::string sha256 = DigestOfText("text");
  EXPECT_FALSE(store_->Has(sha256, now_));
  EXPECT_TRUE(absl::IsNotFound(Get(sha256).status()));
  ASSERT_TRUE(Put("text").ok());
  ASSERT_TRUE(Put("text").ok()) << "two who send the same";
  EXPECT_EQ(store_->CountBytes().archives, 1);
  EXPECT_EQ(store_->CountBytes().bytes, 4);
  Open();
  EXPECT_TRUE(store_->Has(sha256, now_));
  EXPECT_EQ(*Get(sha256), "text");
  EXPECT_EQ(store_->CountBytes().bytes, 4);
  EXPECT_EQ(fs::status(dir_ + "/files/" + sha256).permissions() & fs::perms(077), fs::perms::none);
}

TEST_F(FilesStoreTest, OnlyWhatWasAnnouncedIsTaken) {
  auto upload = store_->Begin(DigestOfText("text"), 4);
  ASSERT_TRUE(upload.ok());
  EXPECT_TRUE(absl::IsInvalidArgument((*upload)->Append("text and more")));
  upload = store_->Begin(DigestOfText("text"), 4);
  ASSERT_TRUE((*upload)->Append("tex").ok());
  EXPECT_THAT((*upload)->Finish(now_).message(), HasSubstr("has 3 bytes, and 4 were announced"));
  upload = store_->Begin(DigestOfText("text"), 4);
  ASSERT_TRUE((*upload)->Append("tent").ok());
  EXPECT_THAT((*upload)->Finish(now_).message(), HasSubstr("does not have the digest"));
  upload->reset();
  EXPECT_FALSE(store_->Has(DigestOfText("text"), now_));
  EXPECT_THAT(Incoming(), IsEmpty());
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Begin("../../etc/passwd", 4).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Begin(DigestOfText("a"), 0).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(store_->Begin(DigestOfText("a"), kMostSentBytes + 1).status()));
}

// As after kill -9: nothing is undone by who is killed.
TEST_F(FilesStoreTest, AHalfUploadIsGoneAfterTheNextStart) {
  auto upload = store_->Begin(DigestOfText("text"), 4);
  ASSERT_TRUE(upload.ok() && (*upload)->Append("te").ok());
  ASSERT_EQ(Incoming().size(), 1U);
  fs::copy(dir_, dir_ + "-killed", fs::copy_options::recursive);
  options_.dir = dir_ + "-killed";
  auto again = FilesStore::Open(options_, now_);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE((*again)->Has(DigestOfText("text"), now_));
  EXPECT_EQ((*again)->CountBytes().bytes, 0);
  EXPECT_TRUE(fs::is_empty(options_.dir + "/files/incoming"));
  again->reset();
  fs::remove_all(options_.dir);
}

TEST_F(FilesStoreTest, TheLimitAndTheDiskAreKept) {
  ASSERT_TRUE(Put(std::string(600, 'a')).ok());
  const absl::Status over = Put(std::string(401, 'b'));
  EXPECT_TRUE(absl::IsResourceExhausted(over));
  EXPECT_THAT(over.message(), HasSubstr("--max-files-bytes"));
  {
    const auto under_way = store_->Begin(DigestOfText("c"), 300);
    EXPECT_TRUE(absl::IsResourceExhausted(Put(std::string(200, 'b')))) << "what comes counts";
  }
  EXPECT_TRUE(Put(std::string(200, 'b')).ok()) << "until it is given up";
  free_ = 149;
  EXPECT_TRUE(absl::IsResourceExhausted(Put(std::string(100, 'd'))));
  free_ = 150;
  others_ = 1;
  EXPECT_TRUE(absl::IsResourceExhausted(Put(std::string(100, 'd')))) << "a checkpoint has that";
  others_ = 0;
  EXPECT_TRUE(Put(std::string(100, 'd')).ok());
}

TEST_F(FilesStoreTest, WhatNobodyNeedsGoesAfterAWhile) {
  ASSERT_TRUE(Put("one").ok());
  ASSERT_TRUE(Put("two").ok());
  const std::string one = DigestOfText("one"), two = DigestOfText("two");
  now_ += kFilesGrace - absl::Seconds(1);
  EXPECT_EQ(store_->Collect({}, now_), 0) << "a job may come yet";
  EXPECT_TRUE(store_->Has(two, now_)) << "somebody asks: a job comes";
  now_ += absl::Seconds(1);
  EXPECT_EQ(store_->Collect({one}, now_), 0) << "a job has it";
  EXPECT_EQ(store_->Collect({}, now_), 1);
  EXPECT_FALSE(store_->Has(one, now_));
  EXPECT_FALSE(fs::exists(dir_ + "/files/" + one));
  EXPECT_TRUE(store_->Has(two, now_));
  EXPECT_EQ(store_->CountBytes().bytes, 3);
  Open();
  EXPECT_EQ(store_->Collect({}, now_), 0) << "a start gives time too";
  auto reader = store_->Read(two);
  now_ += kFilesGrace;
  EXPECT_EQ(store_->Collect({}, now_), 1);
  EXPECT_EQ(*(*reader)->Next(), "two") << "who reads goes on";
}

TEST(UnneededFilesTest, WallClocksMayBeSetBack) {
  const absl::Time now = absl::UnixEpoch() + absl::Hours(5);
  EXPECT_THAT(UnneededFiles({{"later", {1, now + absl::Hours(9)}}, {"old", {1, now - kFilesGrace}}},
                            {}, now),
              ElementsAre("old"));
}

TEST_F(FilesStoreTest, DamageIsFoundAndCanBeMended) {
  ASSERT_TRUE(Put("text").ok());
  const std::string sha256 = DigestOfText("text");
  std::ofstream(dir_ + "/files/" + sha256) << "tent";
  const auto damaged = Get(sha256);
  EXPECT_TRUE(absl::IsDataLoss(damaged.status())) << damaged.status();
  EXPECT_FALSE(store_->Has(sha256, now_));
  ASSERT_TRUE(Put("text").ok());
  EXPECT_EQ(*Get(sha256), "text");
}

// What was sent again meanwhile is another file.
TEST_F(FilesStoreTest, ASlowReaderOfDamageDoesNotTakeWhatWasMended) {
  ASSERT_TRUE(Put("text").ok());
  const std::string sha256 = DigestOfText("text");
  std::ofstream(dir_ + "/files/" + sha256) << "tent";
  auto slow = store_->Read(sha256);
  ASSERT_TRUE(slow.ok()) << slow.status();
  EXPECT_TRUE(absl::IsDataLoss(Get(sha256).status()));
  ASSERT_TRUE(Put("text").ok());
  while (true) {
    const auto piece = (*slow)->Next();
    if (piece.ok() && !piece->empty()) continue;
    EXPECT_TRUE(absl::IsDataLoss(piece.status())) << piece.status();
    break;
  }
  EXPECT_EQ(*Get(sha256), "text");
}

TEST_F(FilesStoreTest, AnotherDirectoryGetsThem) {
  ASSERT_TRUE(Put("text").ok());
  const auto under_way = store_->Begin(DigestOfText("c"), 300);
  const std::string to = dir_ + "/other";
  fs::create_directories(to);
  ASSERT_THAT(LinkFiles(dir_, to), testing::IsEmpty());
  ASSERT_THAT(LinkFiles(dir_, to), testing::IsEmpty()) << "again, after an attempt that failed";
  EXPECT_EQ(fs::hard_link_count(to + "/files/" + DigestOfText("text")), 2U);
  EXPECT_FALSE(fs::exists(to + "/files/incoming"));
  EXPECT_THAT(LinkFiles(dir_ + "/none", to), testing::IsEmpty());
  std::ofstream(dir_ + "/taken") << "a file";
  EXPECT_THAT(LinkFiles(dir_, dir_ + "/taken"), testing::SizeIs(1)) << "told, and no more";
}

// Of a standby's takeover and of backups, with what the records say.
TEST(StoreWithFilesTest, ItsFilesGoWhereverItsRecordsGo) {
  std::string path = testing::TempDir() + "files_epochs_XXXXXX";
  const std::string dir = mkdtemp(path.data());
  const std::string sha256 = DigestOfText("text");
  {
    auto store = Store::Open({.dir = dir});
    ASSERT_TRUE(store.ok()) << store.status();
    auto upload = (*store)->files().Begin(sha256, 4);
    ASSERT_TRUE(upload.ok() && (*upload)->Append("text").ok());
    ASSERT_TRUE((*upload)->Finish(absl::Now()).ok());
    ASSERT_TRUE(BackUp(dir, dir + "/backup-1").ok());
  }
  const auto has = [&](const std::string& where) {
    auto store = Store::Open({.dir = where});
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() && (*store)->files().Has(sha256, absl::Now());
  };
  EXPECT_TRUE(has(dir + "/backup-1"));
  ASSERT_TRUE(Salvage(dir, dir + "/backup-salvaged").ok());
  EXPECT_TRUE(has(dir + "/backup-salvaged"));
  const auto may_act = [] { return absl::OkStatus(); };
  const auto first = TakeOver(dir, may_act);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(has(first->dir));
  const auto second = TakeOver(dir, may_act);
  ASSERT_TRUE(second.ok()) << second.status();
  ASSERT_TRUE(RemoveOlderEpochs(dir, second->number).ok());
  EXPECT_FALSE(fs::exists(dir + "/files"));
  EXPECT_TRUE(has(second->dir));
  fs::remove_all(dir);
}

}  // namespace
}  // namespace milepost::coordinator
