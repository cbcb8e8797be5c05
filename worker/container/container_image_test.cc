#include "worker/container/container_image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/container/podman.h"

namespace milepost::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

namespace fs = std::filesystem;

TEST(PodmanErrorTest, IsItsLastLine) {
  EXPECT_EQ(PodmanError("Trying to pull a...\nError: initializing source: gone\n\n"),
            "initializing source: gone");
  EXPECT_EQ(PodmanError(""), "");
  EXPECT_EQ(PodmanError(std::string(4096, 'x')).size(), 512U);
}

TEST(PullFailureTest, WhatMayWorkLaterIsTriedAgain) {
  for (const char* text :
       {"Error: reading manifest 9 in docker.io/a: manifest unknown",
        "Error: requested access to the resource is denied",
        "Error: unauthorized: authentication required", "Error: invalid reference format",
        "Error: open /images/a.tar: no such file or directory"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(PullFailure("a", text))) << text;
  }
  for (const char* text : {"Error: pinging container registry: dial tcp: i/o timeout",
                           "Error: dial tcp: lookup quay.io: no such host", "Error: EOF", "",
                           "Error: exec: \"newuidmap\": executable file not found in $PATH",
                           "Error: mkdir /home/x/.local: permission denied",
                           "WARN manifest unknown\nError: i/o timeout"}) {
    EXPECT_TRUE(absl::IsUnavailable(PullFailure("a", text))) << text;
  }
  EXPECT_EQ(PullFailure("a/b:1", "x\nError: manifest unknown\n").message(),
            "script.container.image: a/b:1: podman could not fetch it: manifest unknown");
}

TEST(ParseImageTest, OfWhatPodmanSays) {
  const auto image = ParseImage(
      R"([{"Id": "6171", "Config": {"Env": ["PATH=/bin", "A=b=c", "EMPTY=", "ODD", 7]}}])");
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->id, "6171");
  EXPECT_THAT(image->environment, ElementsAre(Pair("PATH", "/bin"), Pair("A", "b=c"),
                                              Pair("EMPTY", ""), Pair("ODD", "")));
  EXPECT_TRUE(ParseImage(R"([{"Id": "1", "Config": {"Env": null}}])").ok());
  EXPECT_TRUE(ParseImage(R"([{"Id": "1", "Config": null}])").ok());
  for (const char* other : {"", "[]", "{}", "[7]", R"([{"Id": 7}])", "[{"}) {
    EXPECT_FALSE(ParseImage(other).ok()) << other;
  }
}

// With a program in podman's place.
class BringImageTest : public testing::Test {
 protected:
  BringImageTest() {
    std::string path = testing::TempDir() + "container_image_XXXXXX";
    folder_ = mkdtemp(path.data());
    fs::create_directory(folder_ + "/bin");
    setenv("PATH", absl::StrCat(folder_, "/bin:/usr/bin:/bin").c_str(), 1);
    setenv("AT", folder_.c_str(), 1);
  }
  ~BringImageTest() override { fs::remove_all(folder_); }

  // `$1` is its command, after the flags that all calls have.
  void Podman(const std::string& shell) const {
    const std::string program = folder_ + "/bin/podman";
    std::ofstream(program) << "#!/bin/sh\nshift 2\necho \"$*\" >> $AT/calls\n" << shell;
    fs::permissions(program, fs::perms::owner_all);
  }
  std::string Calls() const {
    std::ifstream file(folder_ + "/calls");
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  absl::StatusOr<ContainerImage> Bring(absl::Duration patience = absl::Minutes(1),
                                       bool give_up = false) const {
    return BringImage("a:1", {.temporary_files = folder_,
                              .give_up = [give_up] { return give_up; },
                              .patience = patience});
  }

  std::string folder_;
};

TEST_F(BringImageTest, WhatIsThereIsNotFetched) {
  Podman(R"(echo '[{"Id": "6171"}]')");
  const auto image = Bring();
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->id, "6171");
  EXPECT_EQ(Calls(), "image inspect -- a:1\n");
}

TEST_F(BringImageTest, WhatIsNotThereIsFetchedAndThenKnownByItsNumber) {
  Podman(
      "case $1 in pull) touch $AT/here; echo progress >&2; echo 6171;; *) [ -e $AT/here ] && "
      "[ $4 = 6171 ] && echo '[{\"Id\": \"6171\"}]'; exit;; esac\n");
  const auto image = Bring();
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_THAT(Calls(), HasSubstr("pull --quiet -- a:1\nimage inspect -- 6171\n"));
}

TEST_F(BringImageTest, ItsFailuresAreNamed) {
  Podman("echo 'Error: a:1: manifest unknown' >&2; exit 125\n");
  EXPECT_EQ(Bring().status(),
            absl::InvalidArgumentError(
                "script.container.image: a:1: podman could not fetch it: a:1: manifest unknown"));
}

TEST_F(BringImageTest, APodmanThatHangsIsBounded) {
  Podman("[ $1 = image ] && exit 125; sleep 1000\n");
  const auto late = Bring(absl::Milliseconds(300));
  EXPECT_TRUE(absl::IsUnavailable(late.status())) << late.status();
  EXPECT_THAT(late.status().message(), HasSubstr("` did not end within"));
  Podman("sleep 1000\n");
  EXPECT_TRUE(absl::IsCancelled(Bring(absl::Minutes(1), /*give_up=*/true).status()));
  EXPECT_TRUE(absl::IsUnavailable(Bring(absl::Milliseconds(50)).status()));
}

TEST_F(BringImageTest, WithoutPodmanTheRemedyIsSaid) {
  setenv("PATH", folder_.c_str(), 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(Bring().status()));
  EXPECT_THAT(Bring().status().message(), HasSubstr("install it"));
}

}  // namespace
}  // namespace milepost::worker
