#include "tests/e2e/lossy_network.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/subprocess.h"

namespace milepost::e2e {
namespace {

constexpr int kSentPackets = 200;
constexpr uint16_t kPort = 5000;
constexpr timeval kQuiet = {0, 500'000};  // nothing more comes

sockaddr_in NameOf(const std::string& address) {
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  name.sin_port = htons(kPort);
  inet_pton(AF_INET, address.c_str(), &name.sin_addr);
  return name;
}

class LossyNetworkTest : public testing::Test {
 protected:
  void SetUp() override {
    auto network = LossyNetwork::Make(3, 1);
    if (absl::IsPermissionDenied(network.status()) || absl::IsNotFound(network.status())) {
      GTEST_SKIP() << "no network namespaces or TUN devices here: " << network.status();
    }
    ASSERT_TRUE(network.ok()) << network.status();
    network_ = *std::move(network);
  }

  // The numbers of those that arrive of kSentPackets, in the order in which they do.
  std::vector<int> Exchange(int from, int to) {
    std::vector<int> arrived;
    absl::Notification listening;
    std::thread receiver([&] { Receive(to, &listening, &arrived); });
    listening.WaitForNotification();
    std::thread([&] { SendAll(from, to); }).join();
    receiver.join();
    return arrived;
  }

  std::unique_ptr<LossyNetwork> network_;

 private:
  void Receive(int host, absl::Notification* listening, std::vector<int>* arrived) {
    EXPECT_TRUE(network_->Join(host).ok());
    const UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const sockaddr_in name = NameOf(network_->Address(host));
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &kQuiet, sizeof kQuiet);
    listening->Notify();
    int number = 0;
    while (recv(fd.get(), &number, sizeof number, 0) == sizeof number) arrived->push_back(number);
  }
  void SendAll(int from, int to) {
    EXPECT_TRUE(network_->Join(from).ok());
    const UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const sockaddr_in name = NameOf(network_->Address(to));
    for (int i = 0; i < kSentPackets; ++i) {
      EXPECT_EQ(
          sendto(fd.get(), &i, sizeof i, 0, reinterpret_cast<const sockaddr*>(&name), sizeof name),
          ssize_t{sizeof i});
    }
  }
};

TEST_F(LossyNetworkTest, ACleanLinkPassesEverythingInOrder) {
  const std::vector<int> arrived = Exchange(1, 2);
  EXPECT_EQ(arrived.size(), size_t{kSentPackets});
  EXPECT_TRUE(std::is_sorted(arrived.begin(), arrived.end()));
}

TEST_F(LossyNetworkTest, ALossyOneLosesSome) {
  network_->Set(1, 2, {.loss = 0.5});
  EXPECT_THAT(Exchange(1, 2).size(), testing::AllOf(testing::Gt(60U), testing::Lt(140U)));
  EXPECT_EQ(Exchange(2, 1).size(), size_t{kSentPackets}) << "a plan is for one direction";
}

TEST_F(LossyNetworkTest, JitterReorders) {
  network_->Set(1, 2, {.jitter = absl::Milliseconds(50)});
  const std::vector<int> arrived = Exchange(1, 2);
  EXPECT_EQ(arrived.size(), size_t{kSentPackets});
  EXPECT_FALSE(std::is_sorted(arrived.begin(), arrived.end()));
  EXPECT_EQ(network_->counts().delayed, kSentPackets);
}

TEST_F(LossyNetworkTest, ACutLinkIsCutUntilItIsWholeAgain) {
  network_->SetBothWays(1, 2, CutLink());
  EXPECT_EQ(Exchange(1, 2).size(), 0U);
  EXPECT_EQ(Exchange(2, 1).size(), 0U);
  EXPECT_EQ(Exchange(1, 0).size(), size_t{kSentPackets}) << "no other link is";
  EXPECT_EQ(network_->counts().dropped, 2 * kSentPackets);
  network_->SetBothWays(1, 2, LinkPlan());
  EXPECT_EQ(Exchange(1, 2).size(), size_t{kSentPackets});
}

TEST_F(LossyNetworkTest, ACommandRunsInItsHost) {
  SpawnOptions options;
  options.argv = network_->Enter(2);
  options.argv.insert(options.argv.end(), {"/bin/readlink", "/proc/self/ns/net"});
  options.out = Redirect::Pipe();
  auto process = Subprocess::Spawn(std::move(options));
  ASSERT_TRUE(process.ok()) << process.status();
  const UniqueFd out = process->TakeOut();
  char there[256] = "", here[256] = "";
  EXPECT_GT(read(out.get(), there, sizeof there - 1), 0);
  std::thread([&] {
    ASSERT_TRUE(network_->Join(2).ok());
    EXPECT_GT(readlink("/proc/thread-self/ns/net", here, sizeof here - 1), 0);
  }).join();
  EXPECT_EQ(std::string(there), std::string(here) + "\n");
}

}  // namespace
}  // namespace milepost::e2e
