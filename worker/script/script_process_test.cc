#include "worker/script/script_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace milepost::worker {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ScriptProcessTest : public testing::Test {
 protected:
  ScriptProcessTest() {
    std::string path = testing::TempDir() + "script_process_XXXXXX";
    folder_ = mkdtemp(path.data());
  }
  ~ScriptProcessTest() override { std::filesystem::remove_all(folder_); }

  std::string TextOf(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  void Write(const std::string& name, const std::string& text, mode_t mode) const {
    std::ofstream(folder_ + "/" + name) << text;
    chmod((folder_ + "/" + name).c_str(), mode);
  }
  ScriptOptions Shell(const std::string& text) const {
    return {.command = {"sh", "-c", text}, .folder = folder_};
  }
  static ExitResult EndOf(ScriptProcess& script) {
    const auto end = script.Wait(absl::Now() + absl::Minutes(1));
    EXPECT_TRUE(end.ok()) << end.status();
    return end.value_or(ExitResult());
  }
  std::string WhyNot(std::vector<std::string> command) const {
    return std::string(ScriptProcess::Start({.command = std::move(command), .folder = folder_})
                           .status()
                           .message());
  }

  std::string folder_;
};

TEST_F(ScriptProcessTest, RunsInItsFolderWithItsEnvironment) {
  ScriptOptions options = Shell("echo $WHO in $(pwd) > out; exit 3");
  options.environment = {{"WHO", "me"}};
  auto script = ScriptProcess::Start(std::move(options));
  ASSERT_TRUE(script.ok()) << script.status();
  EXPECT_EQ(EndOf(*script).exit_code, 3);
  EXPECT_EQ(TextOf("out"),
            absl::StrCat("me in ", std::filesystem::canonical(folder_).string(), "\n"));
}

TEST_F(ScriptProcessTest, AProgramOfItsFolderAndOneOfItsPath) {
  Write("go.sh", "#!/bin/sh\necho $0 > out\n", 0755);
  auto own = ScriptProcess::Start({.command = {"./go.sh"}, .folder = folder_});
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_TRUE(EndOf(*own).success());
  EXPECT_THAT(TextOf("out"), HasSubstr("go.sh"));
  auto found = ScriptProcess::Start(
      {.command = {"go.sh"}, .environment = {{"PATH", folder_ + ":/bin"}}, .folder = folder_});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(EndOf(*found).success());
}

TEST_F(ScriptProcessTest, SaysWhatIsWrongWithTheCommand) {
  Write("plain", "text\n", 0644);
  Write("no-interpreter", "#!/no/such/python\n", 0755);
  Write("no-format", "hello\n", 0755);
  EXPECT_THAT(WhyNot({"no-such-program"}),
              AllOf(HasSubstr("script.command"), HasSubstr("no program no-such-program in")));
  EXPECT_THAT(WhyNot({"./absent"}), HasSubstr("is not there on this host"));
  EXPECT_THAT(WhyNot({"./plain"}), HasSubstr("is no program that this worker's user may run"));
  EXPECT_THAT(WhyNot({"./no-interpreter"}), HasSubstr("script.command: cannot run"));
  EXPECT_THAT(WhyNot({"./no-format"}), HasSubstr("script.command: cannot run"));
  const auto nowhere = ScriptProcess::Start({.command = {"sh"}, .folder = folder_ + "/absent"});
  EXPECT_TRUE(absl::IsInvalidArgument(nowhere.status())) << nowhere.status();
  EXPECT_THAT(std::string(nowhere.status().message()), HasSubstr("script.folder"));
  for (const char* name : {"./absent", "./plain", "./no-interpreter", "./no-format"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(
        ScriptProcess::Start({.command = {name}, .folder = folder_}).status()))
        << name;
  }
}

// Of its own group and of sessions of their own, with children of theirs.
TEST_F(ScriptProcessTest, WhatItLeavesIsEnded) {
  auto script = ScriptProcess::Start(
      Shell("sleep 1000 & echo $! > a; setsid sh -c 'sleep 1000 & echo $! > b; wait' &\n"
            "while [ ! -s b ]; do sleep 0.01; done"));
  ASSERT_TRUE(script.ok()) << script.status();
  EXPECT_TRUE(EndOf(*script).success());
  EXPECT_GE(ScriptProcess::EndDescendants(absl::Seconds(30)), 3);
  for (const char* name : {"a", "b"}) {
    const int pid = std::stoi(TextOf(name));
    EXPECT_EQ(kill(pid, 0), -1) << name;
    EXPECT_EQ(errno, ESRCH) << name;
  }
  EXPECT_EQ(ScriptProcess::EndDescendants(absl::Seconds(30)), 0);
}

TEST_F(ScriptProcessTest, IsSignalled) {
  auto script = ScriptProcess::Start(
      Shell("trap 'echo saved > out; exit 0' TERM; touch ready; while :; do sleep 0.01; done"));
  ASSERT_TRUE(script.ok()) << script.status();
  while (!std::filesystem::exists(folder_ + "/ready")) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(script->Signal(SIGTERM).ok());
  EXPECT_TRUE(EndOf(*script).success());
  EXPECT_EQ(TextOf("out"), "saved\n");
}

}  // namespace
}  // namespace milepost::worker
