#include "worker/doctor/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/unique_fd.h"
#include "worker/doctor/checks.h"
#include "worker/gpu/testing/fake_nvml.h"

namespace milepost::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The findings that say `text`, as printed.
std::string Saying(const Findings& findings, const std::string& text) {
  Findings found;
  for (const Finding& finding : findings) {
    if (absl::StrContains(finding.text, text)) found.push_back(finding);
  }
  return FindingsText(found);
}

absl::StatusOr<std::unique_ptr<Nvml>> OpenFake() {
  return Nvml::Open(FakeNvml::Functions(), "/nowhere");
}

TEST(FindingTest, TextAndJson) {
  const Findings findings = {Ok("a", "fine"), Warn("b", "slow", "hurry"), Fail("c", "no", "mend")};
  EXPECT_EQ(Worst(findings), Level::kFail);
  EXPECT_EQ(Worst({}), Level::kOk);
  EXPECT_EQ(FindingsText(findings),
            "ok    a                fine\n"
            "warn  b                slow\n"
            "        -> hurry\n"
            "fail  c                no\n"
            "        -> mend\n"
            "3 checks, 1 failed, 1 warning\n");
  const auto json = nlohmann::json::parse(FindingsJson(findings));
  EXPECT_EQ(json["worst"], "fail");
  EXPECT_EQ(json["findings"][1]["level"], "warn");
  EXPECT_EQ(json["findings"][1]["advice"], "hurry");
}

TEST(ContainerChecksTest, WhatPodmanSaysOfItself) {
  const auto info = [](const std::string& ranges) {
    return absl::StrCat(R"({"version": {"Version": "4.3.1"}, "store": {"graphRoot": "/s", )",
                        R"("graphDriverName": "overlay"}, "host": {"idMappings": {"uidmap": )",
                        ranges, "}}}");
  };
  const std::string own = R"([{"size": 1}])", more = R"([{"size": 1}, {"size": 65536}])";
  EXPECT_EQ(FindingsText(PodmanFindings(info(more), /*root_user=*/false)),
            "ok    podman           4.3.1, images in /s (overlay): can run scripts in containers\n"
            "1 checks, 0 failed, 0 warnings\n");
  EXPECT_EQ(Worst(PodmanFindings(info("null"), /*root_user=*/true)), Level::kOk);
  EXPECT_THAT(FindingsText(PodmanFindings(info(own), /*root_user=*/false)),
              AllOf(HasSubstr("/etc/subuid has no range"), HasSubstr("usermod --add-subuids")));
  for (const char* garbage : {"", "7", "[]", "[{"}) {
    EXPECT_EQ(Worst(PodmanFindings(garbage, /*root_user=*/false)), Level::kWarn) << garbage;
  }
  EXPECT_EQ(Worst(PodmanFindings(R"({"host": 7, "version": null})", true)), Level::kOk);
}

TEST(ContainerChecksTest, APodmanThatFailsAndGpusThatNothingDescribes) {
  const std::string folder = testing::TempDir() + absl::StrCat("podman-", getpid());
  std::filesystem::create_directories(folder + "/etc/cdi");
  setenv("PATH", folder.c_str(), 1);
  EXPECT_EQ(Worst(CheckContainers(/*gpus=*/false)), Level::kOk) << "not everybody needs it";
  std::ofstream(folder + "/podman") << "#!/bin/sh\necho 'Error: no newuidmap' >&2\nexit 125\n";
  std::filesystem::permissions(folder + "/podman", std::filesystem::perms::owner_all);
  EXPECT_THAT(FindingsText(CheckContainers(/*gpus=*/false)),
              AllOf(HasSubstr("warn  podman           no newuidmap"), HasSubstr("`podman info`")));
  EXPECT_THAT(FindingsText(CheckContainers(/*gpus=*/true, folder)), HasSubstr("nvidia-ctk cdi"));
  std::ofstream(folder + "/etc/cdi/nvidia.yaml") << "kind: nvidia.com/gpu\n- name: GPU-1\n";
  EXPECT_THAT(FindingsText(CheckContainers(/*gpus=*/true, folder)), Not(HasSubstr("nvidia-ctk")));
  std::filesystem::remove_all(folder);
}

TEST(GpuChecksTest, NoDriverIsAFactAndABrokenOneAFailure) {
  EXPECT_EQ(Worst(CheckGpus(absl::NotFoundError("no libnvidia-ml.so.1"))), Level::kOk);
  FakeNvml fake;
  fake.init_error = kNvmlVersionMismatch;
  const Findings broken = CheckGpus(OpenFake());
  EXPECT_EQ(Worst(broken), Level::kFail);
  EXPECT_THAT(FindingsText(broken), HasSubstr("restart the host"));
  fake.init_error = kNvmlSuccess;
  EXPECT_EQ(Worst(CheckGpus(OpenFake())), Level::kOk) << "a driver without GPUs";
}

TEST(GpuChecksTest, HealthyGpusPass) {
  FakeNvml fake;
  fake.gpus = {{.uuid = "GPU-a"}, {.uuid = "GPU-b"}};
  const Findings findings = CheckGpus(OpenFake());
  EXPECT_EQ(Worst(findings), Level::kOk) << FindingsText(findings);
  EXPECT_THAT(FindingsText(findings),
              AllOf(HasSubstr("driver 580.65.06"), HasSubstr("CUDA up to 13.0"),
                    HasSubstr("NVIDIA H200, 141.0 GiB, capability 9.0, GPU-a"),
                    HasSubstr("pairs 0-1 over NUMA node: direct")));
}

TEST(GpuChecksTest, SaysWhatIsWrongWithAGpu) {
  FakeNvml fake;
  fake.gpus = {{.uuid = "GPU-a"}, {.model = "NVIDIA L4", .uuid = "GPU-b", .nvlinks = 0}};
  FakeGpu& gpu = fake.gpus[0];
  gpu.throttle = 0x40;
  gpu.ecc = 2;
  gpu.broken_nvlinks = 1;
  gpu.used = 20ull << 30;
  gpu.nvlinks = 18;
  const Findings findings = CheckGpus(OpenFake());
  EXPECT_EQ(Worst(findings), Level::kWarn);
  EXPECT_THAT(Saying(findings, "held down by hot"), HasSubstr("cooling"));
  EXPECT_THAT(Saying(findings, "2 memory errors"), HasSubstr("--gpu-reset -i 0"));
  EXPECT_THAT(Saying(findings, "17 of 18 NVLinks"), HasSubstr("warn"));
  EXPECT_THAT(Saying(findings, "20.0 GiB of its memory"), HasSubstr("nvidia-smi"));
  EXPECT_THAT(FindingsText(findings), HasSubstr("1 NVIDIA H200, 1 NVIDIA L4"));
  gpu.throttle = 0x4;  // what a busy GPU does
  EXPECT_THAT(FindingsText(CheckGpus(OpenFake())), Not(HasSubstr("held down")));
  fake.gpus[0].nvlinks = 0;
  EXPECT_THAT(Saying(CheckGpus(OpenFake()), "not direct"), HasSubstr("ACS"));
  fake.gpus[1].mig = 1;
  EXPECT_THAT(Saying(CheckGpus(OpenFake()), "MIG"), HasSubstr("-mig 0"));
}

TEST(GpuChecksTest, ALostGpuIsAFailure) {
  FakeNvml fake;
  fake.gpus = {{.uuid = "GPU-a"}, {.uuid = "GPU-b"}};
  auto nvml = OpenFake();
  fake.gpus[1].error = kNvmlGpuIsLost;
  const Findings findings = CheckGpus(nvml);
  EXPECT_EQ(Worst(findings), Level::kFail);
  EXPECT_THAT(Saying(findings, "off the bus"), HasSubstr("fail  GPU 1"));
}

TEST(LibraryChecksTest, Versions) {
  EXPECT_EQ(LibraryVersion(91301), "9.13.1");
  EXPECT_EQ(LibraryVersion(22807), "2.28.7");
  EXPECT_EQ(CudaVersion(13000), "13.0");
  EXPECT_EQ(CudaVersion(12040), "12.4");
}

TEST(LibraryChecksTest, OnlyGpusNeedThem) {
  EXPECT_EQ(Worst(CheckLibraries(/*cuda_driver=*/0, /*cuda_trainer=*/false)), Level::kOk);
  const Findings findings = CheckLibraries(13000, false);
  EXPECT_THAT(Saying(findings, "milepost-trainer-cuda"), HasSubstr("docs/internals/cuda.md"));
}

class FolderTest : public ::testing::Test {
 protected:
  FolderTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "milepost-doctor-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~FolderTest() override { std::filesystem::remove_all(folder_); }

  void WriteFile(const std::string& path, const std::string& text) const {
    const std::filesystem::path whole = folder_ + "/" + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }

  std::string folder_;
};

TEST_F(FolderTest, DiskIsMeasuredAndLeftAsItWas) {
  const Findings findings = CheckDisk(folder_, 9 << 20, absl::Seconds(5));
  EXPECT_NE(Worst(findings), Level::kFail) << FindingsText(findings);
  EXPECT_THAT(FindingsText(findings), HasSubstr("(9 MiB)"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  const Findings bounded = CheckDisk(folder_, int64_t{64} << 20, absl::ZeroDuration());
  EXPECT_THAT(FindingsText(bounded), HasSubstr("(0 MiB)"));
  EXPECT_EQ(Worst(CheckDisk(folder_ + "/none", 1, absl::Seconds(1))), Level::kFail);
  EXPECT_EQ(Worst(CheckDisk("/proc", 0, absl::Seconds(1))), Level::kFail) << "no files there";
}

TEST_F(FolderTest, DataSetsAreFilesAndFolders) {
  WriteFile("set/a.npy", std::string(3 << 20, 'a'));
  WriteFile("set/deeper/b.npy", std::string(2 << 20, 'b'));
  EXPECT_THAT(FindingsText(CheckDataSet(folder_ + "/set/a.npy", 1 << 30, absl::Seconds(5))),
              HasSubstr("(3.0 MiB)"));
  EXPECT_THAT(FindingsText(CheckDataSet(folder_ + "/set", 1 << 30, absl::Seconds(5))),
              HasSubstr("(5.0 MiB)"));
  EXPECT_EQ(Worst(CheckDataSet(folder_ + "/none.npy", 1, absl::Seconds(1))), Level::kFail);
  std::filesystem::create_directory(folder_ + "/empty");
  EXPECT_EQ(Worst(CheckDataSet(folder_ + "/empty", 1, absl::Seconds(1))), Level::kFail);
}

TEST_F(FolderTest, HostIsReadFromTheKernelsFiles) {
  WriteFile("proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 50000 kB\nHugePages_Total: 512\n");
  WriteFile("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  WriteFile("sys/devices/system/node/online", "0-1\n");
  Findings findings = CheckHost(/*gpus=*/true, folder_);
  EXPECT_THAT(Saying(findings, "are free"), HasSubstr("warn  memory"));
  EXPECT_THAT(Saying(findings, "transparent"), HasSubstr("madvise >"));
  EXPECT_THAT(FindingsText(findings), HasSubstr("nodes 0-1"));
  WriteFile("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  EXPECT_THAT(Saying(CheckHost(false, folder_), "reserved: 512"), HasSubstr("nr_hugepages=0"));
}

TEST(NetworkChecksTest, NcclsRuleForInterfaces) {
  EXPECT_TRUE(NcclTakes("eth", "eth0"));
  EXPECT_TRUE(NcclTakes("ib,eth1", "eth1"));
  EXPECT_FALSE(NcclTakes("=eth", "eth0"));
  EXPECT_TRUE(NcclTakes("=eth0", "eth0"));
  EXPECT_FALSE(NcclTakes("^docker,lo", "docker0"));
  EXPECT_TRUE(NcclTakes("^docker,lo", "eth0"));
}

TEST(NetworkChecksTest, AnInterfaceThatIsNotThereIsAFailure) {
  const Findings findings = CheckNetwork("", "no-such-interface");
  EXPECT_EQ(Worst(findings), Level::kFail);
  EXPECT_THAT(FindingsText(findings), HasSubstr("NCCL_SOCKET_IFNAME=no-such-interface"));
}

TEST(NetworkChecksTest, TheCoordinatorAnswersOrNot) {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  const std::string target = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  const Findings there = CheckNetwork(target, "");
  EXPECT_EQ(Worst(there), Level::kOk);
  EXPECT_THAT(FindingsText(there), AllOf(HasSubstr(target), HasSubstr("127.0.0.1)")));
  EXPECT_EQ(Worst(CheckNetwork("127.0.0.1:1", "")), Level::kFail);
  EXPECT_EQ(Worst(CheckNetwork("nowhere", "")), Level::kFail);
}

// In a process of its own, which ends without waiting for threads: on a busy host other groups may
// take longer too.
TEST(DoctorDeathTest, ADriverThatHangsHoldsItNoLongerThanItsPatience) {
  const auto examine = [] {
    DoctorOptions options;
    options.patience = absl::Milliseconds(300);
    options.open_nvml = []() -> absl::StatusOr<std::unique_ptr<Nvml>> {
      absl::Notification never;
      never.WaitForNotification();
      return absl::NotFoundError("none");
    };
    const std::string text = FindingsText(RunDoctor(options));
    std::fputs(text.c_str(), stderr);
    _exit(0);
  };
  EXPECT_EXIT(examine(), testing::ExitedWithCode(0),
              "fail  driver           no answer within 300ms");
}

}  // namespace
}  // namespace milepost::worker
