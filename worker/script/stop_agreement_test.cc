#include "worker/script/stop_agreement.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "engine/comm/in_process.h"

namespace milepost::worker {
namespace {

// A script's side of the page, as python/milepost/_stop.py has it.
class Script {
 public:
  explicit Script(const std::string& path) {
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    words_ = static_cast<int64_t*>(mmap(nullptr, 32, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    close(fd);
  }
  ~Script() { munmap(words_, 32); }

  void Use() { Word(1) = 1; }
  bool ShouldStop() {
    Word(0) = ++calls_;
    if (calls_ < Word(2)) return false;
    while (Word(3) == 0) std::this_thread::yield();
    return calls_ >= Word(3);
  }
  int64_t calls() const { return calls_; }

 private:
  std::atomic_ref<int64_t> Word(int index) { return std::atomic_ref(words_[index]); }

  int64_t* words_ = nullptr;
  int64_t calls_ = 0;
};

class StopAgreementTest : public testing::Test {
 protected:
  StopAgreementTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "milepost-stop-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~StopAgreementTest() override { std::filesystem::remove_all(folder_); }

  StopPage MakePage(int rank) const {
    const std::string folder = folder_ + "/" + std::to_string(rank);
    std::filesystem::create_directory(folder);
    auto page = StopPage::Make(folder);
    EXPECT_TRUE(page.ok()) << page.status();
    return *std::move(page);
  }

  std::string folder_;
};

// Ranks that are out of step, and are told at different moments, stop at one call.
TEST_F(StopAgreementTest, AllRanksStopAtTheSameCall) {
  constexpr int kWorld = 3;
  auto group = comm::MakeInProcessGroup(kWorld);
  std::vector<int64_t> stopped(kWorld);
  std::atomic<int> running = 0;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kWorld; ++rank) {
    ranks.emplace_back([&, rank] {
      StopPage page = MakePage(rank);
      StopAgreement agreement(&page, kWorld, [&](const auto&) { return std::move(group[rank]); });
      Script script(page.path());
      script.Use();
      for (int i = 0; i < 1000 * rank; ++i) EXPECT_FALSE(script.ShouldStop());
      ++running;
      std::thread told([&] {
        while (running < kWorld) std::this_thread::yield();
        agreement.Stop();
      });
      while (!script.ShouldStop()) {
      }
      stopped[rank] = script.calls();
      EXPECT_TRUE(script.ShouldStop()) << "it stays so";
      told.join();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_GT(stopped[0], 0);
  for (int rank = 1; rank < kWorld; ++rank) EXPECT_EQ(stopped[rank], stopped[0]);
}

// Ranks that were told before they had met meet all the same.
TEST_F(StopAgreementTest, ToldWhileTheyMeetTheyStillAgree) {
  auto group = comm::MakeInProcessGroup(2);
  std::vector<int64_t> stopped(2);
  std::atomic<int> told = 0;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      StopPage page = MakePage(rank);
      StopAgreement agreement(&page, 2, [&](const std::function<bool()>& give_up) {
        while (told < 2) std::this_thread::yield();
        EXPECT_FALSE(give_up());
        return std::move(group[rank]);
      });
      Script script(page.path());
      script.Use();
      for (int i = 0; i < 10 + rank; ++i) script.ShouldStop();
      agreement.Stop();
      ++told;
      while (!script.ShouldStop()) {
      }
      stopped[rank] = script.calls();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(stopped[0], stopped[1]);
}

TEST_F(StopAgreementTest, WithoutTheOthersEachStopsAtItsNextStep) {
  StopPage page = MakePage(0);
  StopAgreement agreement(&page, 2,
                          [](const auto&) { return absl::UnavailableError("nobody is there"); });
  EXPECT_FALSE(page.used());
  Script script(page.path());
  EXPECT_FALSE(script.ShouldStop());
  script.Use();
  EXPECT_TRUE(page.used());
  agreement.Stop();
  while (!script.ShouldStop()) {
  }
}

TEST_F(StopAgreementTest, EndsWithoutAScriptThatUsesIt) {
  StopPage page = MakePage(0);
  StopAgreement(&page, 2, [](const auto&) { return absl::InternalError("not asked"); }).Stop();
}

}  // namespace
}  // namespace milepost::worker
