#include "worker/agent/slots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "common/host_memory.h"
#include "worker/gpu/testing/fake_nvml.h"

namespace milepost::worker {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr v1::DeviceKind kCpu = v1::DEVICE_KIND_CPU;
constexpr v1::DeviceKind kCuda = v1::DEVICE_KIND_CUDA;

// Two nodes of four cores; two GPUs on the first, one on the second.
class SlotsTest : public ::testing::Test {
 protected:
  SlotsTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "milepost-slots-XXXXXX";
    root_ = mkdtemp(pattern.data());
    fake_.gpus = {
        {.uuid = "GPU-a", .bus = 1}, {.uuid = "GPU-b", .bus = 2}, {.uuid = "GPU-c", .bus = 3}};
    Place(1, 0, "0-3");
    Place(2, 0, "0-3");
    Place(3, 1, "4-7");
    options_.cores = {0, 1, 2, 3, 4, 5, 6, 7};
  }
  ~SlotsTest() override { std::filesystem::remove_all(root_); }

  void Place(int bus, int node, const std::string& cores) {
    const std::string folder =
        root_ + "/sys/bus/pci/devices/0000:0" + std::to_string(bus) + ":00.0";
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/numa_node") << node << "\n";
    std::ofstream(folder + "/local_cpulist") << cores << "\n";
  }

  absl::StatusOr<SlotPlan> Plan(bool trainer = true) {
    nvml_ = *Nvml::Open(FakeNvml::Functions(), root_);
    return PlanSlots(options_, nvml_.get(), "", trainer);
  }
  std::string Refusal(bool trainer = true) {
    const auto plan = Plan(trainer);
    EXPECT_FALSE(plan.ok());
    return std::string(plan.status().message());
  }

  std::string root_;
  FakeNvml fake_;
  SlotOptions options_;
  std::unique_ptr<Nvml> nvml_;
};

TEST_F(SlotsTest, AGpuIsASlotWithTheCoresOfItsNode) {
  const auto plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->device, kCuda);
  EXPECT_EQ(DescribeSlots(*plan), "3 cuda slots (NVIDIA H200)");
  ASSERT_EQ(plan->slots.size(), 3);
  EXPECT_THAT(plan->slots[0].cores, ElementsAre(0, 1));
  EXPECT_THAT(plan->slots[1].cores, ElementsAre(2, 3));
  EXPECT_THAT(plan->slots[2].cores, ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(plan->slots[1].memory_node, 0);
  EXPECT_EQ(plan->slots[2].memory_node, 1);
  const v1::Slot& slot = plan->slots[2].slot;
  EXPECT_EQ(slot.index(), 2);
  EXPECT_EQ(slot.device(), kCuda);
  EXPECT_EQ(slot.cores(), 4);
  EXPECT_EQ(slot.uuid(), "GPU-c");
  EXPECT_EQ(slot.memory_bytes(), int64_t{141} << 30);
  EXPECT_EQ(slot.host_memory_bytes(), MemoryLimitBytes() / 3);
  EXPECT_EQ(slot.compute_capability(), 90);
  EXPECT_EQ(slot.numa_node(), 1);
}

TEST_F(SlotsTest, ChosenGpusLeaveTheOthersTheirCores) {
  options_.gpus = {1, 2};
  const auto plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->slots.size(), 2);
  EXPECT_EQ(plan->slots[0].slot.uuid(), "GPU-b");
  EXPECT_EQ(plan->slots[0].slot.index(), 0);
  EXPECT_EQ(plan->slots[0].gpu, 1);
  EXPECT_THAT(plan->slots[0].cores, ElementsAre(2, 3));
}

TEST_F(SlotsTest, CoresElsewhereAreSharedByAllWithoutAMemoryNode) {
  options_.cores = {6, 7};
  const auto plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->slots[0].cores, ElementsAre(6));
  EXPECT_THAT(plan->slots[1].cores, ElementsAre(7));
  EXPECT_THAT(plan->slots[2].cores, ElementsAre(6, 7));
  EXPECT_EQ(plan->slots[0].memory_node, -1);
  EXPECT_EQ(plan->slots[2].memory_node, 1);
}

TEST_F(SlotsTest, WithoutNodesAllCoresAreDivided) {
  for (int bus : {1, 2, 3}) Place(bus, -1, "0-7");
  const auto plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->slots[0].cores, ElementsAre(0, 1));
  EXPECT_THAT(plan->slots[1].cores, ElementsAre(2, 3, 4));
  EXPECT_THAT(plan->slots[2].cores, ElementsAre(5, 6, 7));
  EXPECT_FALSE(plan->slots[0].slot.has_numa_node());
  EXPECT_EQ(plan->slots[0].memory_node, -1);
}

TEST_F(SlotsTest, TheDefaultDependsOnWhatThereIs) {
  EXPECT_EQ(Plan()->device, kCuda);
  const auto no_trainer = Plan(/*trainer=*/false);
  EXPECT_EQ(no_trainer->device, kCpu);
  EXPECT_EQ(no_trainer->slots.size(), 1);
  EXPECT_THAT(no_trainer->note, AllOf(HasSubstr("3 GPUs"), HasSubstr("milepost-trainer-cuda")));
  options_.count = 4;
  const auto counted = Plan();
  EXPECT_EQ(counted->device, kCpu);
  EXPECT_EQ(counted->note, "");
  ASSERT_EQ(counted->slots.size(), 4);
  EXPECT_THAT(counted->slots[3].cores, ElementsAre(6, 7));
  EXPECT_EQ(counted->slots[3].slot.memory_bytes(), MemoryLimitBytes() / 4);
  EXPECT_EQ(DescribeSlots(*counted), "4 cpu slots");
  options_.count = 0;
  fake_.gpus.clear();
  EXPECT_EQ(Plan()->device, kCpu);
  EXPECT_EQ(PlanSlots(options_, nullptr, "no driver", true)->device, kCpu);
}

TEST_F(SlotsTest, BrokenGpusAreLeftOutAndNamed) {
  fake_.gpus[1].mig = 1;
  const auto plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->slots.size(), 2);
  EXPECT_EQ(plan->slots[1].slot.uuid(), "GPU-c");
  EXPECT_EQ(plan->slots[1].slot.index(), 1);
  EXPECT_THAT(plan->note, AllOf(HasSubstr("not offered"), HasSubstr("GPU 1"), HasSubstr("MIG")));
  options_.gpus = {1};
  EXPECT_THAT(Refusal(), HasSubstr("--gpus: GPU 1 is divided"));
  options_.gpus = {};
  for (FakeGpu& gpu : fake_.gpus) gpu.mig = 1;
  EXPECT_EQ(Plan()->device, kCpu);
  EXPECT_THAT(Plan()->note, HasSubstr("no GPU of this host can be used"));
  options_.device = kCuda;
  EXPECT_THAT(Refusal(), HasSubstr("no GPU of this host can be used"));
}

TEST_F(SlotsTest, SaysWhatIsWrongWithTheFlags) {
  options_.gpus = {0, 7};
  EXPECT_THAT(Refusal(), HasSubstr("--gpus 7: this host has 3 GPUs, 0 to 2"));
  options_.device = kCpu;
  EXPECT_THAT(Refusal(), HasSubstr("--gpus needs --device cuda"));
  options_ = {.device = kCuda};
  EXPECT_THAT(Refusal(/*trainer=*/false), HasSubstr("--device cuda: milepost-trainer-cuda is not"));
  EXPECT_THAT(std::string(PlanSlots(options_, nullptr, "no driver", true).status().message()),
              HasSubstr("--device cuda: no driver"));
  options_.count = 2;
  EXPECT_THAT(Refusal(), HasSubstr("choose them with --gpus"));
  fake_.gpus.clear();
  options_ = {.device = kCuda};
  EXPECT_THAT(Refusal(), HasSubstr("this host has no GPUs"));
}

}  // namespace
}  // namespace milepost::worker
