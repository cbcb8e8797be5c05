#include "worker/script/script_container.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>

#include "common/exit_codes.h"

namespace milepost::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ScriptContainerTest, WhatIsInItBesideTheImage) {
  v1::ScriptSpec script;
  script.mutable_container()->add_mounts("/data:/mnt:ro");
  const ContainerPlaces places = {.package = "/usr/lib/milepost/python",
                                  .temporary_files = "/tmp",
                                  .scratch = "/tmp/s",
                                  .folder = "/tmp/s/files",
                                  .read_only = true};
  EXPECT_THAT(
      MountsOf(script, places),
      ElementsAre(ContainerMount{"/tmp", "/tmp", false},
                  ContainerMount{"/tmp/s/files", "/tmp/s/files", true},
                  ContainerMount{"/usr/lib/milepost/python", "/usr/lib/milepost/python", true},
                  ContainerMount{"/data", "/mnt", true},
                  ContainerMount{"/tmp/s", "/tmp/s", false}));
}

TEST(ScriptContainerTest, TheEndIsTheCommands) {
  const ExitResult podman = {.exit_code = 137};
  const ContainedEnd killed =
      EndOf(podman, {.kind = CommandEnd::kEnded, .result = {.signal = SIGSEGV}}, "python3", false);
  EXPECT_EQ(killed.result.signal, SIGSEGV);
  EXPECT_FALSE(killed.failure.has_value());
  EXPECT_EQ(EndOf(podman, {.kind = CommandEnd::kStarted}, "python3", false).result.signal, SIGKILL);
}

TEST(ScriptContainerTest, WhatNeverBeganIsNotTheScriptsFailure) {
  const ContainedEnd absent = EndOf(
      {.exit_code = 127}, {.kind = CommandEnd::kCannotStart, .error = ENOENT}, "python3", false);
  ASSERT_TRUE(absent.failure.has_value());
  EXPECT_EQ(absent.failure->failure_class, v1::FAILURE_CLASS_USER);
  EXPECT_EQ(absent.failure->code, kExitUsage);
  EXPECT_EQ(absent.failure->message,
            "script.command: python3 in the container: No such file or directory");
  const ContainedEnd none = EndOf({.exit_code = 126}, {}, "python3", false);
  ASSERT_TRUE(none.failure.has_value());
  EXPECT_EQ(none.failure->failure_class, v1::FAILURE_CLASS_HOST);
  EXPECT_TRUE(none.failure->with_last_line) << "podman says why";
  EXPECT_THAT(none.failure->message, HasSubstr("exit code 126"));
  EXPECT_EQ(EndOf({.signal = SIGKILL}, {}, "python3", /*late=*/true).failure->message,
            "podman did not run the container (not within 10m)");
}

}  // namespace
}  // namespace milepost::worker
