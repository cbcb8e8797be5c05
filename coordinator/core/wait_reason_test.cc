#include "coordinator/core/wait_reason.h"

#include <gtest/gtest.h>

namespace milepost::coordinator {
namespace {

constexpr v1::DeviceKind kCpu = v1::DEVICE_KIND_CPU;
constexpr v1::DeviceKind kGpu = v1::DEVICE_KIND_CUDA;

TEST(WaitReasonTest, SaysWhatIsMissing) {
  SlotSupply supply;
  EXPECT_EQ(WaitReason({1, kGpu}, supply),
            "needs 1 cuda slot; no worker is ready: start workers with 1 cuda slot");
  supply = {.ready_workers = 2, .by_kind = {{kCpu, 4}}};
  EXPECT_EQ(WaitReason({2, kGpu}, supply),
            "needs 2 cuda slots; the workers have 0 cuda slots, 4 cpu: start workers with 2 more");
  supply = {.ready_workers = 1,
            .by_kind = {{kCpu, 4}},
            .by_model = {{"", 4}},
            .free_by_model = {{"", 1}}};
  EXPECT_EQ(WaitReason({4, kCpu}, supply), "needs 4 cpu slots; 1 of 4 on 1 ready worker is free");
  EXPECT_EQ(WaitReason({6, kCpu}, supply),
            "needs 6 cpu slots; the workers have 4 cpu slots: start workers with 2 more");
}

TEST(WaitReasonTest, SaysWhichModelsDiffer) {
  SlotSupply supply = {.ready_workers = 2,
                       .by_kind = {{kGpu, 4}},
                       .by_model = {{"NVIDIA A100", 2}, {"NVIDIA H200", 2}},
                       .free_by_model = {{"NVIDIA A100", 2}, {"NVIDIA H200", 2}}};
  EXPECT_EQ(WaitReason({4, kGpu}, supply),
            "needs 4 cuda slots of one device model, as all ranks of a job must have; the workers "
            "have 2 NVIDIA A100, 2 NVIDIA H200");
  supply.free_by_model = {{"NVIDIA A100", 1}};
  EXPECT_EQ(WaitReason({2, kGpu}, supply),
            "needs 2 cuda slots of one device model; free are 1 NVIDIA A100 of 2 NVIDIA "
            "A100, 2 NVIDIA H200");
  supply.free_by_model = {};
  EXPECT_EQ(WaitReason({1, kGpu}, supply),
            "needs 1 cuda slot of one device model; free are none of 2 NVIDIA A100, 2 "
            "NVIDIA H200");
}

TEST(WaitReasonTest, NamesTheModelAndTheMemoryThatAreWanted) {
  const SlotWish wish = {8, kGpu, "h200", int64_t{141} << 30};
  SlotSupply supply = {.ready_workers = 1,
                       .by_kind = {{kGpu, 12}},
                       .by_model = {{"NVIDIA H200", 8}},
                       .free_by_model = {{"NVIDIA H200", 6}}};
  EXPECT_EQ(WaitReason(wish, supply),
            "needs 8 x h200 with 141.0 GiB; 6 of 8 on 1 ready worker are free");
  supply.by_model = {{"NVIDIA H200", 7}};
  supply.by_kind[kCpu] = 4;
  supply.missing = {"4 of other models than h200"};
  EXPECT_EQ(WaitReason(wish, supply),
            "needs 8 x h200 with 141.0 GiB; the workers have 7 of these, 4 cpu slots: start "
            "workers with 1 more; 4 of other models than h200");
  EXPECT_EQ(WaitReason({1, kGpu, "", int64_t{30} << 30}, SlotSupply{}),
            "needs 1 cuda slot with 30.0 GiB; no worker is ready: start workers with 1 cuda slot "
            "with 30.0 GiB");
}

TEST(WaitReasonTest, SaysAFewOfTheSlotsThatAreOut) {
  const SlotSupply supply = {.ready_workers = 1,
                             .missing = {"one", "two", "three", "four", "five"}};
  EXPECT_EQ(WaitReason({1, kGpu}, supply),
            "needs 1 cuda slot; the workers have 0 cuda slots: start workers with 1 more; one; "
            "two; three; and 2 more");
}

}  // namespace
}  // namespace milepost::coordinator
