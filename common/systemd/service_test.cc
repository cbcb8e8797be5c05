#include "common/systemd/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "common/unique_fd.h"

namespace milepost {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// systemd's end of NOTIFY_SOCKET.
class ServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = (std::filesystem::temp_directory_path() / "milepost_nXXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = folder + "/s";
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    socket_ = UniqueFd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    setenv("NOTIFY_SOCKET", path.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    std::filesystem::remove_all(folder_);
  }
  // "": there is none.
  std::string Heard() {
    char buffer[4096];
    const ssize_t bytes = recv(socket_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    return bytes <= 0 ? "" : std::string(buffer, static_cast<size_t>(bytes));
  }

 private:
  std::string folder_;
  UniqueFd socket_;
};

TEST_F(ServiceTest, TellsOfItself) {
  Service service;
  EXPECT_EQ(service.watchdog(), absl::InfiniteDuration());
  service.Ready("serves\nhere");
  EXPECT_EQ(Heard(), "READY=1\nSTATUS=serves here");
  service.Status("3 jobs run");
  EXPECT_EQ(Heard(), "STATUS=3 jobs run");
  service.Status("3 jobs run");
  EXPECT_EQ(Heard(), "");
  service.Reloading();
  EXPECT_THAT(Heard(), StartsWith("RELOADING=1\nMONOTONIC_USEC="));
  service.Stopping(absl::Seconds(75));
  EXPECT_THAT(Heard(), HasSubstr("EXTEND_TIMEOUT_USEC=75000000"));
}

TEST_F(ServiceTest, SaysThatItIsAliveAsOftenAsItHasTo) {
  setenv("WATCHDOG_USEC", "3600000000", 1);
  Service service;
  EXPECT_EQ(service.watchdog(), absl::Hours(1));
  service.Alive();
  EXPECT_EQ(Heard(), "WATCHDOG=1");
  service.Alive();
  EXPECT_EQ(Heard(), "");
  setenv("WATCHDOG_USEC", "1", 1);
  Service hurried;
  hurried.Alive();
  hurried.Alive();
  EXPECT_EQ(Heard(), "WATCHDOG=1");
  EXPECT_EQ(Heard(), "WATCHDOG=1");
}

TEST_F(ServiceTest, NobodyListens) {
  unsetenv("NOTIFY_SOCKET");
  Service service;
  service.Ready("serves");
  service.Alive();
  EXPECT_EQ(Heard(), "");
}

}  // namespace
}  // namespace milepost
