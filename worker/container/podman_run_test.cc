#include "worker/container/podman_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace milepost::worker {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;
using testing::UnorderedElementsAre;

ContainerRun Plain() {
  return {.name = "milepost-1-2-jobs-7-1-0",
          .image = "sha256:abc",
          .init = "/usr/lib/milepost/container-init",
          .folder = "/tmp/s/container",
          .pid_file = "/tmp/s/container/pid",
          .command = {"python3", "train.py", "--lr", "3e-4"},
          .work_folder = "/work",
          .environment = {{"RANK", "0"}},
          .mounts = {{"/work", "/work", false}, {"/data", "/mnt/data", true}},
          .gpus = {},
          .user = 0,
          .group = 0,
          .open_files = 1024,
          .most_open_files = 4096,
          .most_processes = 5000};
}

std::vector<std::string> ArgumentsOf(const ContainerRun& run) {
  return PodmanRunOf(run)->arguments;
}

TEST(PodmanRunTest, TheWholeCall) {
  EXPECT_THAT(ArgumentsOf(Plain()),
              ElementsAreArray({"podman",
                                "--runtime=crun",
                                "--cgroup-manager=cgroupfs",
                                "run",
                                "--name=milepost-1-2-jobs-7-1-0",
                                "--replace",
                                "--rm",
                                "--pull=never",
                                "--network=host",
                                "--ipc=host",
                                "--uts=host",
                                "--log-driver=passthrough",
                                "--cgroups=disabled",
                                "--pidfile=/tmp/s/container/pid",
                                "--systemd=false",
                                "--sdnotify=ignore",
                                "--no-healthcheck",
                                "--security-opt=label=disable",
                                "--ulimit=nofile=1024:4096",
                                "--ulimit=nproc=5000:5000",
                                "--user=0:0",
                                "--volume=/data:/mnt/data:ro",
                                "--volume=/usr/lib/milepost/container-init:"
                                "/run/milepost/container-init:ro",
                                "--volume=/work:/work:rw",
                                "--env=RANK",
                                "--workdir=/work",
                                "--entrypoint=[\"/run/milepost/container-init\"]",
                                "sha256:abc",
                                "/tmp/s/container",
                                "python3",
                                "train.py",
                                "--lr",
                                "3e-4"}));
}

TEST(PodmanRunTest, ValuesAreNotInTheArgumentsButWherePodmanWouldHeedThem) {
  ContainerRun run = Plain();
  run.environment = {{"API_KEY", "se cret\n\"'$x"},
                     {"PATH", "/opt/conda/bin"},
                     {"LD_PRELOAD", "x"},
                     {"GOOGLE_API_KEY", "secret"},
                     {"DOCKER_PASSWORD", "secret"},
                     {"LD_SDK_KEY", "secret"},
                     {"RANK", "0"},
                     {"RANK", "1"}};
  const PodmanRun podman = *PodmanRunOf(run);
  EXPECT_THAT(
      podman.environment,
      UnorderedElementsAre(Pair("API_KEY", "se cret\n\"'$x"), Pair("RANK", "1"),
                           Pair("GOOGLE_API_KEY", "secret"), Pair("DOCKER_PASSWORD", "secret"),
                           Pair("LD_SDK_KEY", "secret")));
  EXPECT_THAT(podman.arguments, Contains("--env=API_KEY"));
  EXPECT_THAT(podman.arguments, Contains("--env=PATH=/opt/conda/bin"));
  EXPECT_THAT(podman.arguments, Contains("--env=LD_PRELOAD=x"));
  EXPECT_THAT(podman.arguments, Not(Contains(HasSubstr("cret"))));
  EXPECT_EQ(std::count(podman.arguments.begin(), podman.arguments.end(), "--env=RANK"), 1);
}

TEST(PodmanRunTest, GpusAreNamedAndOthersThanRootKeepTheirNumbers) {
  ContainerRun run = Plain();
  run.gpus = {"GPU-aa", "GPU-bb"};
  run.user = 1001;
  run.group = 1002;
  const std::vector<std::string> arguments = ArgumentsOf(run);
  for (const char* one : {"--device=nvidia.com/gpu=GPU-aa", "--device=nvidia.com/gpu=GPU-bb",
                          "--user=1001:1002", "--userns=keep-id", "--group-add=keep-groups"}) {
    EXPECT_THAT(arguments, Contains(one));
  }
  EXPECT_THAT(ArgumentsOf(Plain()), Not(Contains(HasSubstr("userns"))));
}

TEST(PodmanRunTest, TheLastMountOfATargetCounts) {
  ContainerRun run = Plain();
  run.mounts = {{"/tmp", "/tmp", false}, {"/scratch", "/tmp", true}};
  EXPECT_THAT(ArgumentsOf(run), Contains("--volume=/scratch:/tmp:ro"));
  EXPECT_THAT(ArgumentsOf(run), Not(Contains("--volume=/tmp:/tmp:rw")));
}

TEST(PodmanRunTest, PathsThatPodmanWouldTakeApartAreRefused) {
  for (const char* path : {"/a:b", "/a,b"}) {
    ContainerRun run = Plain();
    run.mounts.push_back({path, "/x", false});
    EXPECT_THAT(PodmanRunOf(run).status().message(), HasSubstr(path));
  }
}

TEST(PodmanRunTest, ContainersAreRemovedByName) {
  EXPECT_THAT(PodmanRemoveArguments({"a", "b"}),
              ElementsAre("podman", "--runtime=crun", "--cgroup-manager=cgroupfs", "rm", "--force",
                          "--ignore", "--time=0", "--", "a", "b"));
}

}  // namespace
}  // namespace milepost::worker
