#include "common/rpc/local_socket.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace milepost {
namespace {

// No other process's: of this one's number, in 127.0.0.0/8.
std::string OwnAddress() {
  const int pid = getpid();
  return absl::StrCat("127.", pid >> 16 & 255, ".", pid >> 8 & 255, ".", pid & 255, ":7070");
}

TEST(LocalSocketTest, OnlyAddressesOfLoopbackHaveOne) {
  EXPECT_EQ(LocalSocketName("127.0.0.1:7070"), "milepost-coordinator-127.0.0.1:7070");
  for (const char* address : {"", "localhost:7070", "[::1]:7070", "10.0.0.1:7070", "0.0.0.0:7070",
                              "127.0.0.1:1,127.0.0.1:2", "127.evil:7070"}) {
    EXPECT_EQ(LocalSocketName(address), "") << address;
  }
  EXPECT_EQ(LocalSocketName(absl::StrCat("127.", std::string(100, '1'))), "");
}

TEST(LocalSocketTest, TheWayIsShortWhileSomebodyListens) {
  const std::string address = OwnAddress();
  EXPECT_EQ(ShortestWay(address).address, address);
  {
    const auto fd = ListenLocally(address);
    ASSERT_TRUE(fd.ok()) << fd.status();
    ASSERT_TRUE(fd->ok());
    EXPECT_EQ(ShortestWay(address).address, "unix-abstract:milepost-coordinator-" + address);
    EXPECT_EQ(ListenLocally(address).status().code(), absl::StatusCode::kUnavailable);
    const Endpoint secure(address, grpc::InsecureChannelCredentials());
    EXPECT_EQ(ShortestWay(secure).address, address);  // whoever has credentials shows them
  }
  EXPECT_EQ(ShortestWay(address).address, address);
}

TEST(LocalSocketTest, OtherAddressesAreLeftAsTheyAre) {
  const auto none = ListenLocally("localhost:7070");
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->ok());
  EXPECT_EQ(ShortestWay("localhost:7070").address, "localhost:7070");
}

}  // namespace
}  // namespace milepost
