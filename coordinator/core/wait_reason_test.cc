#include "coordinator/core/wait_reason.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace milepost::coordinator {
namespace {

constexpr v1::DeviceKind kCpu = v1::DEVICE_KIND_CPU;
constexpr v1::DeviceKind kGpu = v1::DEVICE_KIND_CUDA;
const SlotClass kNvidiaA100 = {.model = "NVIDIA A100"};
const SlotClass kNvidiaH200 = {.model = "NVIDIA H200"};

TEST(WaitReasonTest, SaysWhatIsMissing) {
  SlotSupply supply;
  EXPECT_EQ(WaitReason({1, kGpu}, supply),
            "needs 1 cuda slot; no worker is ready: start workers with 1 cuda slot");
  supply = {.ready_workers = 2, .by_kind = {{kCpu, 4}}};
  EXPECT_EQ(WaitReason({2, kGpu}, supply),
            "needs 2 cuda slots; the workers have 0 cuda slots, 4 cpu: start workers with 2 more");
  supply = {.ready_workers = 1,
            .by_kind = {{kCpu, 4}},
            .by_class = {{{}, 4}},
            .free_by_class = {{{}, 1}}};
  EXPECT_EQ(WaitReason({4, kCpu}, supply), "needs 4 cpu slots; 1 of 4 on 1 ready worker is free");
  EXPECT_EQ(WaitReason({6, kCpu}, supply),
            "needs 6 cpu slots; the workers have 4 cpu slots: start workers with 2 more");
}

TEST(WaitReasonTest, SaysWhichModelsDiffer) {
  SlotSupply supply = {.ready_workers = 2,
                       .by_kind = {{kGpu, 4}},
                       .by_class = {{kNvidiaA100, 2}, {kNvidiaH200, 2}},
                       .free_by_class = {{kNvidiaA100, 2}, {kNvidiaH200, 2}}};
  EXPECT_EQ(WaitReason({4, kGpu}, supply),
            "needs 4 cuda slots of one device model, as all ranks of a job must have; the workers "
            "have 2 NVIDIA A100, 2 NVIDIA H200");
  supply.free_by_class = {{kNvidiaA100, 1}};
  EXPECT_EQ(WaitReason({2, kGpu}, supply),
            "needs 2 cuda slots of one device model; free are 1 NVIDIA A100 of 2 NVIDIA "
            "A100, 2 NVIDIA H200");
  supply.free_by_class = {};
  EXPECT_EQ(WaitReason({1, kGpu}, supply),
            "needs 1 cuda slot of one device model; free are none of 2 NVIDIA A100, 2 "
            "NVIDIA H200");
}

TEST(WaitReasonTest, NamesTheModelAndTheMemoryThatAreWanted) {
  const SlotWish wish = {8, kGpu, {.model = "h200"}, int64_t{141} << 30};
  SlotSupply supply = {.ready_workers = 1,
                       .by_kind = {{kGpu, 12}},
                       .by_class = {{kNvidiaH200, 8}},
                       .free_by_class = {{kNvidiaH200, 6}}};
  EXPECT_EQ(WaitReason(wish, supply),
            "needs 8 x h200 with 141.0 GiB; 6 of 8 on 1 ready worker are free");
  supply.by_class = {{kNvidiaH200, 7}};
  supply.by_kind[kCpu] = 4;
  supply.missing = {"4 of other models than h200"};
  EXPECT_EQ(WaitReason(wish, supply),
            "needs 8 x h200 with 141.0 GiB; the workers have 7 of these, 4 cpu slots: start "
            "workers with 1 more; 4 of other models than h200");
  EXPECT_EQ(WaitReason({1, kGpu, {}, int64_t{30} << 30}, SlotSupply{}),
            "needs 1 cuda slot with 30.0 GiB; no worker is ready: start workers with 1 cuda slot "
            "with 30.0 GiB");
}

TEST(WaitReasonTest, SaysWhichPoolsThereAre) {
  const SlotClass left = {.pool = "left"};
  const SlotClass right = {.pool = "right"};
  SlotSupply supply = {.ready_workers = 3,
                       .by_kind = {{kCpu, 9}},
                       .by_class = {{{}, 2}, {left, 3}, {right, 4}},
                       .free_by_class = {{{}, 2}, {right, 1}}};
  EXPECT_EQ(WaitReason({6, kCpu}, supply),
            "needs 6 cpu slots of one pool, as all ranks of a job must have; the largest has 4: "
            "the workers have 4 in pool right, 3 in pool left, 2 in no pool");
  EXPECT_EQ(WaitReason({3, kCpu}, supply),
            "needs 3 cpu slots of one pool; free are 2 in no pool, 1 in pool right of 4 in pool "
            "right, 3 in pool left, 2 in no pool");
  EXPECT_EQ(WaitReason({12, kCpu}, supply),
            "needs 12 cpu slots; the workers have 9 cpu slots, at most 4 of one pool: start "
            "workers with 8 more");
  supply.by_class = {{left, 3}};
  supply.free_by_class = {};
  supply.missing = {"6 in other pools than left"};
  EXPECT_EQ(WaitReason({2, kCpu, {.pool = "left"}}, supply),
            "needs 2 cpu slots in pool left; 0 of 3 on 3 ready workers are free; 6 in other pools "
            "than left");
  EXPECT_EQ(WaitReason({4, kCpu, {.pool = "left"}, int64_t{1} << 30}, supply),
            "needs 4 cpu slots in pool left with 1.0 GiB; the workers have 3 of these: start "
            "workers with 1 more; 6 in other pools than left");
}

TEST(WaitReasonTest, SaysWhichPoolsAndModelsDiffer) {
  SlotSupply supply = {.ready_workers = 2,
                       .by_kind = {{kGpu, 4}},
                       .by_class = {{{"left", "A100"}, 2}, {{"right", "H200"}, 2}}};
  EXPECT_EQ(WaitReason({4, kGpu}, supply),
            "needs 4 cuda slots of one pool and device model, as all ranks of a job must have; the "
            "largest has 2: the workers have 2 A100 in pool left, 2 H200 in pool right");
  for (int i = 0; i < 9; ++i) supply.by_class[{absl::StrCat("p", i), "A100"}] = 1;
  EXPECT_THAT(WaitReason({3, kGpu}, supply),
              ::testing::EndsWith(", 1 A100 in pool p5 and 3 others"));
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
