#include "worker/script/files_cache.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "common/pki/digest.h"

namespace milepost::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

namespace fs = std::filesystem;

bool Never() { return false; }

v1::SentFiles SentText(const std::string& text) {
  Sha256Stream digest;
  digest.Add(text);
  v1::SentFiles sent;
  sent.set_sha256(digest.Hex());
  sent.set_bytes(static_cast<int64_t>(text.size()));
  return sent;
}

class FilesCacheTest : public testing::Test {
 protected:
  FilesCacheTest() {
    std::string path = testing::TempDir() + "files_cache_XXXXXX";
    parent_ = mkdtemp(path.data());
    folder_ = parent_ + "/cache";
  }
  ~FilesCacheTest() override { fs::remove_all(parent_); }

  // Counts how often it was asked.
  FilesCache::Fetch Writes(const std::string& text) {
    return [this, text](int file) {
      ++fetched_;
      EXPECT_EQ(write(file, text.data(), text.size()), static_cast<ssize_t>(text.size()));
      return absl::OkStatus();
    };
  }
  FilesCache Cache(int64_t most = 1000) const {
    auto cache = FilesCache::Open(folder_, most);
    EXPECT_TRUE(cache.ok()) << cache.status();
    return *std::move(cache);
  }
  static std::string TextIn(const UniqueFd& file) {
    std::string text(100, '\0');
    text.resize(static_cast<size_t>(std::max<ssize_t>(0, pread(file.get(), text.data(), 100, 0))));
    return text;
  }
  std::set<std::string> Archives() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      if (name.rfind("lock-", 0) != 0) names.insert(name);
    }
    return names;
  }

  std::string parent_;
  std::string folder_;
  std::atomic<int> fetched_ = 0;
};

TEST_F(FilesCacheTest, AnArchiveIsFetchedOnce) {
  for (int i = 0; i < 3; ++i) {
    const auto file = Cache().Get(SentText("text"), Writes("text"), Never);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(TextIn(*file), "text");
  }
  EXPECT_EQ(fetched_, 1);
}

TEST_F(FilesCacheTest, ManyAtOnceFetchOnce) {
  std::vector<std::thread> ranks;
  for (int i = 0; i < 8; ++i) {
    ranks.emplace_back([this] {
      const auto file = Cache().Get(SentText("text"), Writes("text"), Never);
      EXPECT_TRUE(file.ok()) << file.status();
      EXPECT_EQ(file.ok() ? TextIn(*file) : "", "text");
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(fetched_, 1);
}

TEST_F(FilesCacheTest, WhatIsNotWhatItsNameSaysIsFetchedAgain) {
  const v1::SentFiles sent = SentText("text");
  ASSERT_TRUE(Cache().Get(sent, Writes("text"), Never).ok());
  for (const char* other : {"tent", "", "text and more"}) {
    std::ofstream(folder_ + "/" + sent.sha256()) << other;
    EXPECT_EQ(TextIn(*Cache().Get(sent, Writes("text"), Never)), "text") << other;
  }
  EXPECT_EQ(fetched_, 4);
  std::ofstream(parent_ + "/elsewhere") << "text";
  fs::remove(folder_ + "/" + sent.sha256());
  fs::create_symlink("../elsewhere", folder_ + "/" + sent.sha256());
  EXPECT_TRUE(Cache().Get(sent, Writes("text"), Never).ok());
  EXPECT_EQ(fetched_, 5) << "links are not followed";
}

TEST_F(FilesCacheTest, WhatComesIsVerified) {
  const auto file = Cache().Get(SentText("text"), Writes("tent"), Never);
  EXPECT_TRUE(absl::IsDataLoss(file.status())) << file.status();
  const auto failed = Cache().Get(
      SentText("text"), [](int) { return absl::UnavailableError("away"); }, Never);
  EXPECT_TRUE(absl::IsUnavailable(failed.status()));
  EXPECT_THAT(Archives(), IsEmpty());
  EXPECT_TRUE(Cache().Get(SentText("text"), Writes("text"), Never).ok());
}

// A process that dies while it fetches holds nobody up, and leaves nothing that counts.
TEST_F(FilesCacheTest, AKilledProcessIsInNobodysWay) {
  int ready[2] = {};
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto never_ends = [&](int file) {
      if (write(file, "te", 2) != 2 || write(ready[1], "x", 1) != 1) _exit(1);
      while (true) pause();
      return absl::OkStatus();
    };
    (void)FilesCache::Open(folder_)->Get(SentText("text"), never_ends, Never);
    _exit(1);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  int asked = 0;
  const auto waits = Cache().Get(SentText("text"), Writes("text"), [&] { return ++asked == 3; });
  EXPECT_TRUE(absl::IsCancelled(waits.status())) << "it waits for who fetches, and gives up";
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(TextIn(*Cache().Get(SentText("text"), Writes("text"), Never)), "text");
  EXPECT_EQ(Archives().size(), 2U) << "what the killed one left is too young to be removed";
  for (const std::string& name : Archives()) {
    const timespec long_ago[2] = {{.tv_sec = 1000, .tv_nsec = 0}, {.tv_sec = 1000, .tv_nsec = 0}};
    utimensat(AT_FDCWD, (folder_ + "/" + name).c_str(), long_ago, 0);
  }
  EXPECT_TRUE(Cache().Get(SentText("other"), Writes("other"), Never).ok());
  EXPECT_EQ(Archives(),
            (std::set<std::string>{SentText("text").sha256(), SentText("other").sha256()}));
  close(ready[0]);
  close(ready[1]);
}

TEST_F(FilesCacheTest, TheLongestUnusedGoesFirst) {
  EXPECT_THAT(ArchivesToRemove({{"b", 40, absl::FromUnixSeconds(2)},
                                {"a", 40, absl::FromUnixSeconds(1)},
                                {"c", 40, absl::FromUnixSeconds(3)}},
                               30, 100),
              ElementsAre("a", "b"));
  EXPECT_THAT(ArchivesToRemove({{"a", 40, absl::FromUnixSeconds(1)}}, 60, 100), IsEmpty());
  EXPECT_THAT(ArchivesToRemove({{"a", 40, absl::FromUnixSeconds(1)}}, 200, 100), ElementsAre("a"));
}

TEST_F(FilesCacheTest, WhatIsReadStays) {
  const std::string one(60, '1'), two(60, '2'), three(60, '3');
  const auto reading = Cache(100).Get(SentText(one), Writes(one), Never);
  ASSERT_TRUE(reading.ok());
  ASSERT_TRUE(Cache(100).Get(SentText(two), Writes(two), Never).ok());
  EXPECT_EQ(Archives().size(), 2U);
  EXPECT_EQ(TextIn(*reading), one);
  ASSERT_TRUE(Cache(100).Get(SentText(three), Writes(three), Never).ok());
  EXPECT_EQ(Archives(), (std::set<std::string>{SentText(one).sha256(), SentText(three).sha256()}));
}

TEST_F(FilesCacheTest, AnothersFolderIsNotUsed) {
  fs::create_directories(folder_);
  fs::permissions(folder_, fs::perms::all);
  EXPECT_TRUE(absl::IsPermissionDenied(FilesCache::Open(folder_).status()));
  fs::remove(folder_);
  fs::create_directories(parent_ + "/theirs");
  fs::create_symlink(parent_ + "/theirs", folder_);
  EXPECT_THAT(FilesCache::Open(folder_).status().message(),
              HasSubstr("not this user's own folder"));
}

}  // namespace
}  // namespace milepost::worker
