// What only communicators between processes can show.
#include "engine/comm/gloo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"

namespace milepost::comm {
namespace {

using ::testing::HasSubstr;

// Keys as files in a folder, for ranks in several processes.
class FolderStore : public KeyValueStore {
 public:
  FolderStore() {
    std::string pattern = absl::StrCat(testing::TempDir(), "/milepost_gloo_XXXXXX");
    folder_ = mkdtemp(pattern.data());
  }
  ~FolderStore() override {
    if (getpid() == owner_) std::filesystem::remove_all(folder_);
  }
  absl::Status Put(absl::string_view key, absl::string_view value) override {
    const std::string path = PathOf(key);
    std::ofstream(path + ".new") << value;
    std::filesystem::rename(path + ".new", path);
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) override {
    while (!std::filesystem::exists(PathOf(key))) {
      if (absl::Now() > deadline) return absl::DeadlineExceededError("no such file in time");
      absl::SleepFor(absl::Milliseconds(1));
    }
    std::stringstream value;
    value << std::ifstream(PathOf(key)).rdbuf();
    return value.str();
  }

 private:
  std::string PathOf(absl::string_view key) const {
    return absl::StrCat(folder_, "/", absl::StrReplaceAll(key, {{"/", "_"}}));
  }
  std::string folder_;
  const pid_t owner_ = getpid();
};

// A process that takes part as `rank` and all-reduces for ever.
pid_t StartPeer(int rank, int world, KeyValueStore* store, size_t elements = 200000) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  auto communicator = ConnectGloo(rank, world, store);
  std::vector<float> values(elements);
  while (communicator.ok() && (*communicator)->AllReduce(absl::MakeSpan(values)).ok()) {
  }
  _exit(communicator.ok() ? 0 : 1);
}

TEST(GlooTest, KilledProcessIsUnavailableAtOnce) {
  FolderStore store;
  const pid_t killed = StartPeer(1, 3, &store);
  const pid_t survivor = StartPeer(2, 3, &store);
  auto communicator = ConnectGloo(0, 3, &store);
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  std::vector<float> values(200000);
  absl::Status status;
  std::chrono::steady_clock::time_point kill_time;
  for (int call = 0; status.ok(); ++call) {
    if (call == 10) {
      kill_time = std::chrono::steady_clock::now();
      ASSERT_EQ(kill(killed, SIGKILL), 0);
    }
    status = (*communicator)->AllReduce(absl::MakeSpan(values));
  }
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_LT(std::chrono::steady_clock::now() - kill_time, std::chrono::seconds(20));
  int wait_status = 0;
  waitpid(killed, &wait_status, 0);
  EXPECT_TRUE(WIFSIGNALED(wait_status));
  waitpid(survivor, &wait_status, 0);  // ends by itself: it sees the failure as well
  EXPECT_TRUE(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) << wait_status;
}

// The peer dies in the middle of a message, wherever that is.
TEST(GlooTest, KilledMidMessageIsUnavailableAtOnce) {
  for (int round = 0; round < 10; ++round) {
    FolderStore store;
    const pid_t peer = StartPeer(1, 2, &store, 4000000);
    auto communicator = ConnectGloo(0, 2, &store);
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    std::thread killer([&] {
      absl::SleepFor(absl::Milliseconds(2 + 3 * round));
      kill(peer, SIGKILL);
    });
    std::vector<float> values(4000000);
    absl::Status status;
    absl::Time start;
    while (status.ok()) {
      start = absl::Now();
      status = (*communicator)->AllReduce(absl::MakeSpan(values));
    }
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_LT(absl::Now() - start, absl::Seconds(20));
    killer.join();
    waitpid(peer, nullptr, 0);
  }
}

TEST(GlooTest, AbsentPeerIsFoundByTheConnectTimeout) {
  InMemoryKeyValueStore store;
  const auto result = ConnectGloo(0, 2, &store, {.connect_timeout = absl::Milliseconds(50)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(result.status())) << result.status();
}

TEST(GlooTest, PeerThatNeverConnectsIsAnError) {
  InMemoryKeyValueStore store;
  // Published by nobody who listens any more: the other rank gives up at once.
  ASSERT_FALSE(ConnectGloo(1, 2, &store, {.connect_timeout = absl::Milliseconds(1)}).ok());
  const auto result = ConnectGloo(0, 2, &store, {.connect_timeout = absl::Milliseconds(100)});
  EXPECT_TRUE(absl::IsUnavailable(result.status())) << result.status();
  EXPECT_THAT(result.status().message(), HasSubstr("rank 0 cannot connect to rank 1"));
}

TEST(GlooTest, UnknownHostAndInterfaceAreInvalid) {
  InMemoryKeyValueStore store;
  auto result = ConnectGloo(0, 2, &store, {.host = "no-such-host.invalid"});
  EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
  EXPECT_THAT(result.status().message(), HasSubstr("no-such-host.invalid"));
  result = ConnectGloo(0, 2, &store, {.interface = "nosuch0"});
  EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
  EXPECT_THAT(result.status().message(), HasSubstr("nosuch0"));
}

TEST(GlooTest, InterfaceByName) {
  InMemoryKeyValueStore store;
  auto connect = [&](int rank) { return ConnectGloo(rank, 2, &store, {.interface = "lo"}); };
  absl::StatusOr<std::unique_ptr<Communicator>> first, second;
  std::thread other([&] { second = connect(1); });
  first = connect(0);
  other.join();
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(second.ok()) << second.status();
}

TEST(GlooTest, GarbageFromTheStoreIsAnError) {
  InMemoryKeyValueStore store;
  ASSERT_TRUE(store.Put("gloo/1", "garbage").ok());
  const auto result = ConnectGloo(0, 2, &store, {.connect_timeout = absl::Milliseconds(100)});
  EXPECT_FALSE(result.ok());
}

TEST(GlooTest, ScratchIsBounded) {
  EXPECT_EQ(GlooScratchBytes(1), 0);
  EXPECT_EQ(GlooScratchBytes(2), 1 << 20);
  EXPECT_LE(GlooScratchBytes(16), 4 << 20);
  EXPECT_LE(GlooScratchBytes(kMaxGlooWorld), 32 << 20);
}

}  // namespace
}  // namespace milepost::comm
