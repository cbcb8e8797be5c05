// NVML's answers, its refusals and its absence, with a double of its functions.
#include "worker/gpu/nvml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/xid.h"
#include "worker/gpu/testing/fake_nvml.h"

namespace milepost::worker {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NvmlTest : public ::testing::Test {
 protected:
  NvmlTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "milepost-nvml-XXXXXX";
    root_ = mkdtemp(pattern.data());
    fake_.gpus = {{.uuid = "GPU-a", .bus = 0x3b}, {.uuid = "GPU-b", .bus = 0xaf}};
  }
  ~NvmlTest() override { std::filesystem::remove_all(root_); }

  void Place(const std::string& address, const std::string& node, const std::string& cores) {
    const std::string folder = root_ + "/sys/bus/pci/devices/" + address;
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/numa_node") << node << "\n";
    std::ofstream(folder + "/local_cpulist") << cores << "\n";
  }
  std::unique_ptr<Nvml> Open(const NvmlFunctions& functions = FakeNvml::Functions()) {
    auto nvml = Nvml::Open(functions, root_);
    EXPECT_TRUE(nvml.ok()) << nvml.status();
    return *std::move(nvml);
  }

  std::string root_;
  FakeNvml fake_;
};

TEST_F(NvmlTest, SaysWhatTheGpusAre) {
  Place("0000:3b:00.0", "0", "0-31,64-95");
  Place("0000:af:00.0", "-1", "");  // as virtual machines tell it
  const auto nvml = Open();
  ASSERT_EQ(nvml->gpus().size(), 2);
  const Gpu& gpu = nvml->gpus()[0];
  EXPECT_EQ(gpu.problem, "");
  EXPECT_EQ(gpu.model, "NVIDIA H200");
  EXPECT_EQ(gpu.uuid, "GPU-a");
  EXPECT_EQ(gpu.memory_bytes, int64_t{141} << 30);
  EXPECT_EQ(gpu.compute_capability, 90);
  EXPECT_EQ(gpu.pci_address, "0000:3b:00.0");
  EXPECT_EQ(gpu.numa_node, 0);
  EXPECT_EQ(gpu.local_cores, "0-31,64-95");
  EXPECT_EQ(gpu.persistent, true);
  EXPECT_EQ(nvml->gpus()[1].numa_node, std::nullopt);
  EXPECT_EQ(nvml->gpus()[1].local_cores, "");
  EXPECT_EQ(nvml->versions().driver, "580.65.06");
  EXPECT_EQ(nvml->versions().nvml, "13.580.65.06");
  EXPECT_EQ(nvml->versions().cuda, 13000);
}

TEST_F(NvmlTest, MeasuresHowAGpuDoes) {
  fake_.gpus[1].throttle = 0x1 | 0x4 | 0x40;
  fake_.gpus[1].ecc = 3;
  fake_.gpus[1].broken_nvlinks = 2;
  const auto nvml = Open();
  const v1::DeviceFacts facts = nvml->Measure(1);
  EXPECT_EQ(facts.problem(), "");
  EXPECT_EQ(facts.memory_used_bytes(), int64_t{1} << 30);
  EXPECT_EQ(facts.utilization_percent(), 97);
  EXPECT_DOUBLE_EQ(facts.power_watts(), 650);
  EXPECT_DOUBLE_EQ(facts.power_limit_watts(), 700);
  EXPECT_EQ(facts.temperature_celsius(), 61);
  EXPECT_EQ(facts.sm_clock_mhz(), 1755);
  EXPECT_EQ(facts.most_sm_clock_mhz(), 1980);
  EXPECT_THAT(facts.throttling(), ElementsAre("power cap", "hot (hardware)"));
  EXPECT_EQ(facts.ecc_errors(), 3);
  EXPECT_EQ(facts.pcie_read_bytes_per_second(), 3'000'000);
  EXPECT_EQ(facts.pcie_write_bytes_per_second(), 2'000'000);
  EXPECT_EQ(facts.nvlinks(), 18);
  EXPECT_EQ(facts.nvlinks_active(), 16);
  EXPECT_THAT(nvml->Measure(0).throttling(), IsEmpty());
}

TEST_F(NvmlTest, MeasuresWhatNvlinksCarry) {
  const auto nvml = Open();
  const v1::DeviceFacts first = nvml->Measure(0);
  EXPECT_FALSE(first.has_nvlink_transmit_bytes_per_second());
  EXPECT_FALSE(first.has_nvlink_receive_bytes_per_second());
  FakeGpu& gpu = fake_.gpus[0];
  gpu.counted_at += 2'000'000;
  gpu.sent_kib += 4'000'000;
  const v1::DeviceFacts second = nvml->Measure(0);
  EXPECT_EQ(second.nvlink_transmit_bytes_per_second(), int64_t{2'000'000} * 1024);
  EXPECT_TRUE(second.has_nvlink_receive_bytes_per_second());
  EXPECT_EQ(second.nvlink_receive_bytes_per_second(), 0);
  // Not read again: nothing is known of the time since. Begun anew: neither.
  EXPECT_FALSE(nvml->Measure(0).has_nvlink_transmit_bytes_per_second());
  gpu.counted_at += 1'000'000;
  gpu.sent_kib = 5;
  gpu.received_kib += 1'000;
  const v1::DeviceFacts third = nvml->Measure(0);
  EXPECT_FALSE(third.has_nvlink_transmit_bytes_per_second());
  EXPECT_EQ(third.nvlink_receive_bytes_per_second(), 1'024'000);
}

TEST_F(NvmlTest, OldDriversLackFunctions) {
  NvmlFunctions old;
  const NvmlFunctions all = FakeNvml::Functions();
  old.Init = all.Init;
  old.Shutdown = all.Shutdown;
  old.ErrorString = all.ErrorString;
  old.DeviceGetCount = all.DeviceGetCount;
  old.DeviceGetHandleByIndex = all.DeviceGetHandleByIndex;
  old.DeviceGetName = all.DeviceGetName;
  old.DeviceGetUuid = all.DeviceGetUuid;
  const auto nvml = Open(old);
  EXPECT_EQ(nvml->gpus()[0].model, "NVIDIA H200");
  EXPECT_EQ(nvml->gpus()[0].memory_bytes, 0);
  EXPECT_EQ(nvml->versions().driver, "");
  EXPECT_EQ(nvml->Measure(0).ByteSizeLong(), 0) << nvml->Measure(0).DebugString();
  EXPECT_THAT(nvml->TakeXids(), IsEmpty());
  EXPECT_EQ(nvml->Link(0, 1).path, "");
}

TEST_F(NvmlTest, NewDriversDropTheOldTemperature) {
  NvmlFunctions functions = FakeNvml::Functions();
  functions.DeviceGetTemperature = nullptr;
  EXPECT_EQ(Open(functions)->Measure(0).temperature_celsius(), 61);
}

TEST_F(NvmlTest, AGpuThatFallsOffTheBusSaysOnlyThat) {
  const auto nvml = Open();
  fake_.gpus[1].error = kNvmlGpuIsLost;
  v1::DeviceFacts facts = nvml->Measure(1);
  EXPECT_THAT(facts.problem(), AllOf(HasSubstr("GPU 1"), HasSubstr("off the bus")));
  EXPECT_FALSE(facts.has_power_watts());
  EXPECT_EQ(nvml->Measure(0).problem(), "");
  fake_.gpus[1].error = kNvmlResetRequired;
  EXPECT_THAT(nvml->Measure(1).problem(), HasSubstr("nvidia-smi --gpu-reset -i 1"));
  fake_.gpus[1].error = kNvmlNotSupported;  // as some boards tell of everything
  EXPECT_EQ(nvml->Measure(1).problem(), "");
}

TEST_F(NvmlTest, OneThatIsLostAtTheStartKeepsItsIndex) {
  fake_.gpus[0].error = kNvmlGpuIsLost;
  fake_.gpus[0].no_handle = true;
  const auto nvml = Open();
  ASSERT_EQ(nvml->gpus().size(), 2);
  EXPECT_THAT(nvml->gpus()[0].problem, HasSubstr("off the bus"));
  EXPECT_EQ(nvml->gpus()[0].uuid, "");
  EXPECT_EQ(nvml->gpus()[1].uuid, "GPU-b");
  EXPECT_THAT(nvml->Measure(0).problem(), HasSubstr("off the bus"));
  fake_.xids = {{1, 31}};
  EXPECT_EQ(nvml->TakeXids().at(0).gpu, 1);
}

TEST_F(NvmlTest, DividedGpusAreNotWholeOnes) {
  fake_.gpus[1].mig = 1;
  const auto nvml = Open();
  EXPECT_EQ(nvml->gpus()[0].problem, "");
  EXPECT_THAT(nvml->gpus()[1].problem, HasSubstr("MIG"));
  EXPECT_THAT(nvml->Measure(1).problem(), HasSubstr("MIG"));
}

TEST_F(NvmlTest, TellsErrorReportsOnce) {
  const auto nvml = Open();
  fake_.xids = {{1, 79}, {0, 31}};
  const auto xids = nvml->TakeXids();
  ASSERT_EQ(xids.size(), 2);
  EXPECT_EQ(xids[0].gpu, 1);
  EXPECT_EQ(xids[0].code, 79);
  EXPECT_EQ(xids[1].gpu, 0);
  EXPECT_THAT(nvml->TakeXids(), IsEmpty());
  for (int i = 0; i < 100; ++i) fake_.xids.emplace_back(0, 13);
  EXPECT_EQ(nvml->TakeXids().size(), 64) << "bounded";
}

TEST_F(NvmlTest, SaysHowGpusAreConnected) {
  const auto nvml = Open();
  EXPECT_EQ(nvml->Link(0, 1).path, "NUMA node");
  EXPECT_EQ(nvml->Link(0, 1).direct, true);
  fake_.gpus[0].nvlinks = 0;
  EXPECT_EQ(nvml->Link(0, 1).direct, false);
}

TEST_F(NvmlTest, SaysWhatToDoWhenTheDriverCannotBeUsed) {
  struct Case {
    int error;
    absl::StatusCode code;
    std::string text;
  };
  const Case cases[] = {
      {kNvmlVersionMismatch, absl::StatusCode::kFailedPrecondition, "restart the host"},
      {kNvmlDriverNotLoaded, absl::StatusCode::kUnavailable, "modprobe nvidia"},
      {kNvmlNoPermission, absl::StatusCode::kPermissionDenied, "/dev/nvidiactl"},
      {kNvmlUnknown, absl::StatusCode::kUnavailable, "Unknown Error"},
  };
  for (const Case& c : cases) {
    fake_.init_error = c.error;
    const auto nvml = Nvml::Open(FakeNvml::Functions());
    EXPECT_EQ(nvml.status().code(), c.code);
    EXPECT_THAT(std::string(nvml.status().message()), HasSubstr(c.text));
  }
  EXPECT_EQ(fake_.opened, 0);
}

TEST_F(NvmlTest, ClosesWhatItOpened) {
  auto nvml = Open();
  EXPECT_EQ(fake_.opened, 1);
  nvml.reset();
  EXPECT_EQ(fake_.opened, 0);
}

TEST(NvmlLibraryTest, ThereMayBeNone) {
  const auto nvml = Nvml::Open("libmilepost-has-no-such.so.1");
  EXPECT_EQ(nvml.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(nvml.status().message()), HasSubstr("no NVIDIA driver"));
}

TEST(NvmlLibraryTest, AnotherLibraryIsNone) {
  const auto nvml = Nvml::Open("libm.so.6");
  EXPECT_EQ(nvml.status().code(), absl::StatusCode::kFailedPrecondition);
}

// Through the dynamic linker: every name that is looked up is in the library of that name.
TEST(NvmlLibraryTest, FindsEveryFunctionByItsName) {
  const auto functions = LoadNvmlFunctions(MILEPOST_FAKE_NVML_LIBRARY);
  ASSERT_TRUE(functions.ok()) << functions.status();
  static_assert(sizeof(NvmlFunctions) % sizeof(void*) == 0);
  void* table[sizeof(NvmlFunctions) / sizeof(void*)];
  std::memcpy(table, &*functions, sizeof table);
  for (size_t i = 0; i < std::size(table); ++i) EXPECT_NE(table[i], nullptr) << "function " << i;
  const auto nvml = Nvml::Open(MILEPOST_FAKE_NVML_LIBRARY);
  ASSERT_TRUE(nvml.ok()) << nvml.status();
  EXPECT_EQ((*nvml)->gpus().size(), 2);
  EXPECT_EQ((*nvml)->Measure(1).temperature_celsius(), 61);
}

TEST(XidTest, SaysWhatItMeans) {
  EXPECT_THAT(XidText(79), AllOf(HasSubstr("79, "), HasSubstr("off the bus")));
  EXPECT_EQ(XidText(7), "7");
}

}  // namespace
}  // namespace milepost::worker
