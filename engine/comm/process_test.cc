// What only communicators between processes can show.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/poll.h"
#include "common/unique_fd.h"
#include "engine/comm/folder_store.h"
#include "engine/comm/tcp.h"

namespace milepost::comm {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::unique_ptr<Communicator>> Connect(int rank, int world, KeyValueStore* store,
                                                      const TcpOptions& options = {}) {
  return ConnectTcp(rank, world, store, options);
}

// Over loopback; nothing is said yet.
UniqueFd ConnectToPort(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// In a folder of its own, which goes with the process that made it.
class OwnFolderStore : public FolderStore {
 public:
  OwnFolderStore() : OwnFolderStore(MakeFolder()) {}
  ~OwnFolderStore() override {
    if (getpid() == owner_) std::filesystem::remove_all(folder_);
  }

 private:
  explicit OwnFolderStore(const std::string& folder) : FolderStore(folder), folder_(folder) {}
  static std::string MakeFolder() {
    std::string pattern = absl::StrCat(testing::TempDir(), "/milepost_tcp_XXXXXX");
    return mkdtemp(pattern.data());
  }
  const std::string folder_;
  const pid_t owner_ = getpid();
};

// A process that takes part as `rank` and all-reduces for ever.
pid_t StartPeer(int rank, int world, KeyValueStore* store, size_t elements = 200000) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  auto communicator = Connect(rank, world, store);
  std::vector<float> values(elements);
  while (communicator.ok() && (*communicator)->AllReduce(absl::MakeSpan(values)).ok()) {
  }
  _exit(communicator.ok() ? 0 : 1);
}

TEST(TcpTest, KilledProcessIsUnavailableAtOnce) {
  OwnFolderStore store;
  const pid_t killed = StartPeer(1, 3, &store);
  const pid_t survivor = StartPeer(2, 3, &store);
  auto communicator = Connect(0, 3, &store);
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
TEST(TcpTest, KilledMidMessageIsUnavailableAtOnce) {
  for (int round = 0; round < 10; ++round) {
    OwnFolderStore store;
    const pid_t peer = StartPeer(1, 2, &store, 4000000);
    auto communicator = Connect(0, 2, &store);
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

TEST(TcpTest, ATimeoutNamesTheCallAndWhoIsMissing) {
  InMemoryKeyValueStore store;
  std::vector<std::unique_ptr<Communicator>> ranks(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      ranks[rank] =
          *Connect(rank, 3, &store, {.communicator = {.timeout = absl::Milliseconds(200)}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<char> bytes(3 << 10);
  const absl::Status status = ranks[0]->AllGather(bytes.data(), bytes.size());
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("rank 0 waited 200ms in an all-gather (collective 1, of "
                                          "3072 bytes) for ranks 1, 2"));
}

TEST(TcpTest, AbsentPeerIsFoundByTheConnectTimeout) {
  InMemoryKeyValueStore store;
  const auto result = Connect(0, 2, &store, {.connect_timeout = absl::Milliseconds(50)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(result.status())) << result.status();
}

TEST(TcpTest, PeerThatGaveUpIsAnError) {
  InMemoryKeyValueStore store;
  // Rank 0 publishes an address and gives up: nobody listens there any more.
  ASSERT_FALSE(Connect(0, 2, &store, {.connect_timeout = absl::Milliseconds(20)}).ok());
  const auto result = Connect(1, 2, &store, {.connect_timeout = absl::Milliseconds(100)});
  EXPECT_TRUE(absl::IsUnavailable(result.status())) << result.status();
  EXPECT_THAT(result.status().message(), HasSubstr("rank 1 cannot connect to rank 0"));
}

TEST(TcpTest, UnknownHostAndInterfaceAreInvalid) {
  InMemoryKeyValueStore store;
  auto result = Connect(0, 2, &store, {.host = "no-such-host.invalid"});
  EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
  EXPECT_THAT(result.status().message(), HasSubstr("no-such-host.invalid"));
  result = Connect(0, 2, &store, {.interface = "nosuch0"});
  EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
  EXPECT_THAT(result.status().message(), HasSubstr("nosuch0"));
}

TEST(TcpTest, InterfaceByName) {
  InMemoryKeyValueStore store;
  auto connect = [&](int rank) { return Connect(rank, 2, &store, {.interface = "lo"}); };
  absl::StatusOr<std::unique_ptr<Communicator>> first, second;
  std::thread other([&] { second = connect(1); });
  first = connect(0);
  other.join();
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(second.ok()) << second.status();
}

TEST(TcpTest, GarbageFromTheStoreIsAnError) {
  InMemoryKeyValueStore store;
  ASSERT_TRUE(store.Put("tcp/0", "garbage").ok());
  EXPECT_FALSE(Connect(1, 2, &store, {.connect_timeout = absl::Milliseconds(100)}).ok());
}

// Whoever finds the port but does not know the secret neither joins nor holds the ranks up.
TEST(TcpTest, StrangersAreRefused) {
  InMemoryKeyValueStore store;
  absl::StatusOr<std::unique_ptr<Communicator>> ranks[2];
  std::thread accepting([&] { ranks[0] = ConnectTcp(0, 2, &store); });
  const std::string key = *store.Get("tcp/0", absl::InfiniteFuture());
  const std::vector<std::string> fields = absl::StrSplit(key, ' ');
  const UniqueFd stranger = ConnectToPort(std::stoi(fields[1]));
  // A greeting of rank 1 of 2 that is right but for the secret.
  const std::string greeting("\0MPcomm1--------\1\0\0\0\2\0\0\0", 24);
  ASSERT_EQ(send(stranger.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL), greeting.size());
  char byte;
  ASSERT_TRUE(PollFd(stranger.get(), POLLIN, absl::Now() + absl::Seconds(20)));
  EXPECT_LE(recv(stranger.get(), &byte, 1, 0), 0) << "the connection must be closed";
  ranks[1] = ConnectTcp(1, 2, &store);
  accepting.join();
  for (const auto& rank : ranks) EXPECT_TRUE(rank.ok()) << rank.status();
}

// As when ranks are told to stop, and one was killed by that before it listened.
TEST(TcpTest, ARankThatDoesNotComeIsGivenUp) {
  InMemoryKeyValueStore store;
  std::atomic<bool> told = false;
  absl::Status ended;
  std::thread accepting([&] {
    ended =
        ConnectTcp(0, 2, &store,
                   {.connect_timeout = absl::Seconds(60), .give_up = [&] { return told.load(); }})
            .status();
  });
  ASSERT_TRUE(store.Get("tcp/0", absl::InfiniteFuture()).ok());
  told = true;
  accepting.join();
  EXPECT_EQ(ended.code(), absl::StatusCode::kCancelled) << ended;
}

// As over a network that loses packets: the rank takes itself for connected all the while.
TEST(TcpTest, ARankWhoseGreetingTakesLongIsHeard) {
  InMemoryKeyValueStore store;
  absl::Status connected = absl::UnknownError("");
  std::thread accepting([&] { connected = ConnectTcp(0, 2, &store).status(); });
  const std::vector<std::string> fields =
      absl::StrSplit(*store.Get("tcp/0", absl::InfiniteFuture()), ' ');
  const UniqueFd rank = ConnectToPort(std::stoi(fields[1]));
  const uint64_t secret = std::stoull(fields[2]);
  std::string greeting("\0MPcomm1--------\1\0\0\0\2\0\0\0", 24);
  std::memcpy(greeting.data() + 8, &secret, sizeof secret);
  ASSERT_EQ(send(rank.get(), greeting.data(), 1, MSG_NOSIGNAL), 1);
  absl::SleepFor(absl::Seconds(3));  // as long as a packet takes that is lost twice
  ASSERT_EQ(send(rank.get(), greeting.data() + 1, 23, MSG_NOSIGNAL), 23);
  accepting.join();
  EXPECT_EQ(connected, absl::OkStatus());
}

// 200 strangers that say nothing, or not all, are in front of the rank: it is heard beside them.
TEST(TcpTest, IdleStrangersHoldNobodyUp) {
  InMemoryKeyValueStore store;
  absl::StatusOr<std::unique_ptr<Communicator>> ranks[2];
  std::thread accepting(
      [&] { ranks[0] = ConnectTcp(0, 2, &store, {.connect_timeout = absl::Seconds(60)}); });
  const std::vector<std::string> fields =
      absl::StrSplit(*store.Get("tcp/0", absl::InfiniteFuture()), ' ');
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 200; ++i) {
    UniqueFd stranger = ConnectToPort(std::stoi(fields[1]));
    const ssize_t said = i % 2;  // of a greeting: nothing, or its first byte
    ASSERT_EQ(send(stranger.get(), "\0", said, MSG_NOSIGNAL), said);
    strangers.push_back(std::move(stranger));
  }
  // One after the other they would have 400 seconds, or all that the ranks have.
  const absl::Time begin = absl::Now();
  ranks[1] = ConnectTcp(1, 2, &store, {.connect_timeout = absl::Seconds(60)});
  accepting.join();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
  for (const auto& rank : ranks) EXPECT_TRUE(rank.ok()) << rank.status();
}

TEST(ScratchTest, IsBounded) {
  EXPECT_EQ(TcpScratchBytes(1), 0);
  EXPECT_EQ(TcpScratchBytes(2), 512 << 10);
  EXPECT_LE(TcpScratchBytes(16), 4 << 20);
  EXPECT_LE(TcpScratchBytes(kMaxTcpWorld), 8 << 20);
}

}  // namespace
}  // namespace milepost::comm
