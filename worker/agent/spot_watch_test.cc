#include "worker/agent/spot_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/synchronization/notification.h"
#include "worker/agent/agent_fixture.h"

namespace milepost::worker {
namespace {

class SpotWatchTest : public testing::Test {
 protected:
  SpotWatchTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "milepost-spot-XXXXXX";
    dir_ = mkdtemp(pattern.data());
  }
  ~SpotWatchTest() override { std::filesystem::remove_all(dir_); }

  void Touch(const std::string& name) { std::ofstream(dir_ + "/" + name) << "x"; }
  SpotOptions Quick() const {
    SpotOptions options;
    options.file_interval = absl::Milliseconds(5);
    options.command_interval = absl::Milliseconds(5);
    return options;
  }
  // What is noticed, once `then` was done.
  std::string NoticeAfter(SpotOptions options, const std::function<void()>& then) {
    absl::Notification noticed;
    std::string reason;
    SpotWatch watch(std::move(options), [&](const std::string& why) {
      reason = why;
      noticed.Notify();  // a second call would crash
    });
    then();
    EXPECT_TRUE(noticed.WaitForNotificationWithTimeout(absl::Seconds(20)));
    return reason;
  }

  std::string dir_;
};

TEST_F(SpotWatchTest, AFileThatAppears) {
  SpotOptions options = Quick();
  options.file = dir_ + "/notice";
  EXPECT_EQ(NoticeAfter(options, [&] { Touch("notice"); }),
            "the file " + dir_ + "/notice has appeared");
}

TEST_F(SpotWatchTest, ACommandThatEndsWithZero) {
  SpotOptions options = Quick();
  options.command = "test -e " + dir_ + "/notice";
  EXPECT_EQ(NoticeAfter(options, [&] { Touch("notice"); }),
            "the command '" + options.command + "' said so");
}

// Runs for ever the first time, and is killed for it; says nothing while it fails.
TEST_F(SpotWatchTest, ACommandThatHangsIsKilled) {
  SpotOptions options = Quick();
  options.command_patience = absl::Milliseconds(200);
  options.command = "cd " + dir_ +
                    "; if test -e once; then test -e twice || { touch twice; false; }; "
                    "else touch once; sleep 1000; fi";
  NoticeAfter(options, [] {});
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/twice"));
}

TEST_F(SpotWatchTest, SaysItAgainOnlyAfterItWasTakenBack) {
  const auto await = [](const std::function<bool()>& holds) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (!holds() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
    ASSERT_TRUE(holds());
  };
  SpotOptions options = Quick();
  options.command = "cd " + dir_ + "; echo >> runs; test -e notice || { touch gone; false; }";
  Touch("notice");
  std::atomic<int> notices{0};
  SpotWatch watch(options, [&](const std::string&) { ++notices; });
  await([&] {
    return std::filesystem::exists(dir_ + "/runs") &&
           std::filesystem::file_size(dir_ + "/runs") >= 5;
  });
  EXPECT_EQ(notices, 1);
  std::filesystem::remove(dir_ + "/notice");
  await([&] { return std::filesystem::exists(dir_ + "/gone"); });
  Touch("notice");
  await([&] { return notices == 2; });
}

TEST_F(SpotWatchTest, EndsWithoutANotice) {
  SpotOptions options;
  options.file = dir_ + "/never";
  options.command = "false";
  SpotWatch watch(options, [](const std::string&) { ADD_FAILURE(); });
}

class SpotAgentTest : public AgentTest {};

TEST_F(SpotAgentTest, TheCoordinatorIsToldAtOnceAndInEveryHello) {
  AgentOptions options;
  options.slots.count = 1;
  options.spot.file = folder_ + "/spot";
  options.spot.file_interval = absl::Milliseconds(5);
  options.settings.spot_time = absl::Seconds(30);
  const absl::Time before = absl::Now();
  StartAgent(options);
  EXPECT_FALSE(coordinator_->AwaitHello().has_spot_notice());
  std::ofstream(options.spot.file) << "x";
  const v1::SpotNotice notice =
      coordinator_->Await([](const auto& message) { return message.has_spot_notice(); })
          .spot_notice();
  EXPECT_NE(notice.reason().find("has appeared"), std::string::npos);
  EXPECT_GE(notice.deadline().seconds(), absl::ToUnixSeconds(before + absl::Seconds(30)));
  coordinator_->DropStream();
  const v1::SpotNotice again = coordinator_->AwaitHello().spot_notice();
  EXPECT_EQ(again.reason(), notice.reason());
  EXPECT_TRUE(notice.has_time());
  EXPECT_EQ(again.time().SerializeAsString(), notice.time().SerializeAsString());
  agent_->NoteSpot("SIGUSR2");
  const v1::SpotNotice other =
      coordinator_->Await([](const auto& message) { return message.has_spot_notice(); })
          .spot_notice();
  EXPECT_EQ(other.reason(), "SIGUSR2");
  EXPECT_NE(other.time().SerializeAsString(), notice.time().SerializeAsString());
}

}  // namespace
}  // namespace milepost::worker
