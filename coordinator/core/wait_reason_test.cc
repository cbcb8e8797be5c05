#include "coordinator/core/wait_reason.h"

#include <gtest/gtest.h>

namespace milepost::coordinator {
namespace {

constexpr v1::DeviceKind kCpu = v1::DEVICE_KIND_CPU;
constexpr v1::DeviceKind kCuda = v1::DEVICE_KIND_CUDA;

TEST(WaitReasonTest, SaysWhatIsMissing) {
  SlotSupply supply;
  EXPECT_EQ(WaitReason(1, kCuda, supply),
            "needs 1 cuda slot; no worker is ready: start workers with 1 cuda slot");
  supply = {.ready_workers = 2, .by_kind = {{kCpu, 4}}};
  EXPECT_EQ(WaitReason(2, kCuda, supply),
            "needs 2 cuda slots; the workers have 0 cuda slots, 4 cpu: start workers with 2 more");
  supply = {.ready_workers = 1,
            .by_kind = {{kCpu, 4}},
            .by_model = {{"", 4}},
            .free_by_model = {{"", 1}}};
  EXPECT_EQ(WaitReason(4, kCpu, supply),
            "needs 4 free cpu slots; 1 of 4 on 1 ready worker is free");
  EXPECT_EQ(WaitReason(6, kCpu, supply),
            "needs 6 cpu slots; the workers have 4 cpu slots: start workers with 2 more");
}

TEST(WaitReasonTest, SaysWhichModelsDiffer) {
  SlotSupply supply = {.ready_workers = 2,
                       .by_kind = {{kCuda, 4}},
                       .by_model = {{"NVIDIA A100", 2}, {"NVIDIA H200", 2}},
                       .free_by_model = {{"NVIDIA A100", 2}, {"NVIDIA H200", 2}}};
  EXPECT_EQ(WaitReason(4, kCuda, supply),
            "needs 4 cuda slots of one device model, as all ranks of a job must have; the workers "
            "have 2 NVIDIA A100, 2 NVIDIA H200");
  supply.free_by_model = {{"NVIDIA A100", 1}};
  EXPECT_EQ(WaitReason(2, kCuda, supply),
            "needs 2 free cuda slots of one device model; free are 1 NVIDIA A100 of 2 NVIDIA "
            "A100, 2 NVIDIA H200");
  supply.free_by_model = {};
  EXPECT_EQ(WaitReason(1, kCuda, supply),
            "needs 1 free cuda slot of one device model; free are none of 2 NVIDIA A100, 2 "
            "NVIDIA H200");
}

TEST(WaitReasonTest, SaysAFewOfTheSlotsThatAreOut) {
  const SlotSupply supply = {.ready_workers = 1,
                             .missing = {"one", "two", "three", "four", "five"}};
  EXPECT_EQ(WaitReason(1, kCuda, supply),
            "needs 1 cuda slot; the workers have 0 cuda slots: start workers with 1 more; one; "
            "two; three; and 2 more");
}

}  // namespace
}  // namespace milepost::coordinator
