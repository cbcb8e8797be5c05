#include "client/cli/disk_needs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/disk_space.h"

namespace milepost::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;
constexpr auto kBack = static_cast<int64_t>(kStoreMarginBytes);

TEST(DiskNeedsTest, OneCheckpointMustFitBesideWhatIsKeptBack) {
  const DiskNeeds needs = {.checkpoint_bytes = 100 * kMiB};
  EXPECT_EQ(CheckRoom(needs, {.dir = "d", .free = 100 * kMiB + kBack}), absl::OkStatus());
  const absl::Status full = CheckRoom(needs, {.dir = "d", .free = 100 * kMiB + kBack - 1});
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(full.message(), AllOf(HasSubstr("one takes 100.0 MiB and 64.0 MiB are kept back"),
                                    HasSubstr("d has 164.0 MiB free"), HasSubstr("--data-dir")));
  EXPECT_EQ(CheckRoom({}, {.dir = "d", .free = 0}), absl::OkStatus()) << "not known";
}

TEST(DiskNeedsTest, WhatIsInTheBinMakesRoom) {
  const DiskNeeds needs = {.checkpoint_bytes = 100 * kMiB};
  EXPECT_EQ(CheckRoom(needs, {.dir = "d", .free = kBack, .in_bin = 100 * kMiB}), absl::OkStatus());
  EXPECT_THAT(CheckRoom(needs, {.dir = "d", .free = kBack, .in_bin = 99 * kMiB}).message(),
              HasSubstr("64.0 MiB free and 99.0 MiB in the bin"));
}

TEST(DiskNeedsTest, WhatIsOffloadedCountsWhereItLies) {
  const DiskNeeds needs = {.checkpoint_bytes = 100 * kMiB, .state_bytes = 50 * kMiB};
  Room room = {.dir = "d", .free = 100 * kMiB + kBack};
  EXPECT_THAT(CheckRoom(needs, room).message(), HasSubstr("what is offloaded to disk 50.0 MiB"));
  room.state_is_there = false;
  EXPECT_EQ(CheckRoom(needs, room), absl::OkStatus());
}

TEST(DiskNeedsTest, SaysHowManyCheckpointsFit) {
  v1::JobSpec spec;
  spec.mutable_train()->set_steps(100);
  spec.mutable_checkpoint()->set_every(10);
  spec.mutable_checkpoint()->set_keep_last(3);
  const DiskNeeds needs = {.checkpoint_bytes = 100 * kMiB};
  const auto tell = [&](int64_t free, int64_t kept) {
    return TellTightDisk(spec, needs, {.dir = "d", .free = free * kMiB + kBack}, kept);
  };
  EXPECT_EQ(tell(400, 0), "");
  EXPECT_EQ(tell(399, 0),
            "d has room for 3 checkpoints of 100.0 MiB, and with checkpoint.keep_last: 3 there "
            "will be 4 at a time: what comes after the first 3 could not be saved. Set "
            "checkpoint.keep_last: 2, free some space, or name a --data-dir on a larger disk");
  EXPECT_THAT(tell(100, 0), HasSubstr("what comes after the first could not be saved. Free"));
  EXPECT_EQ(tell(100, 3), "") << "it makes room for each other one";
  EXPECT_THAT(tell(100, 2), HasSubstr("room for 3 checkpoints"));
  spec.mutable_checkpoint()->set_every(50);
  EXPECT_EQ(tell(200, 0), "") << "there will be no more";
  spec.mutable_checkpoint()->set_every(0);
  EXPECT_EQ(tell(100, 0), "");
  EXPECT_EQ(TellTightDisk(spec, {}, {.dir = "d", .free = 0}, 0), "") << "not known";
}

class StateFolderTest : public ::testing::Test {
 protected:
  StateFolderTest() : folder_(absl::StrCat(::testing::TempDir(), "disk-needs-", getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~StateFolderTest() override { std::filesystem::remove_all(folder_); }
  v1::JobSpec Spec(const std::string& path) const {
    v1::JobSpec spec;
    spec.mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_NVME);
    spec.mutable_train()->mutable_offload()->set_path(path);
    return spec;
  }
  const std::string folder_;
};

TEST_F(StateFolderTest, MustBeAFolderThatCanBeWritten) {
  EXPECT_EQ(CheckStateFolder(Spec(""), 1), absl::OkStatus());
  EXPECT_EQ(CheckStateFolder(Spec(folder_), 1), absl::OkStatus());
  const absl::Status missing = CheckStateFolder(Spec(folder_ + "/none"), 1);
  EXPECT_TRUE(absl::IsInvalidArgument(missing));
  EXPECT_THAT(missing.message(),
              AllOf(HasSubstr("train.offload.path: "),
                    HasSubstr("/none: No such file or directory"), HasSubstr("leave it out")));
  std::ofstream(folder_ + "/file") << "text";
  EXPECT_THAT(CheckStateFolder(Spec(folder_ + "/file"), 1).message(), HasSubstr("Not a directory"));
  if (getuid() == 0) return;  // who may write anywhere
  std::filesystem::permissions(folder_, std::filesystem::perms::owner_read);
  EXPECT_THAT(CheckStateFolder(Spec(folder_), 1).message(), HasSubstr("Permission denied"));
  std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
}

TEST_F(StateFolderTest, MustHaveRoom) {
  EXPECT_THAT(CheckStateFolder(Spec(folder_), int64_t{1} << 60).message(),
              AllOf(HasSubstr("train.offload.path: "), HasSubstr(" free, and "),
                    HasSubstr("name a folder on a larger disk")));
}

TEST_F(StateFolderTest, OneThatIsElsewhereIsTold) {
  std::vector<std::string> elsewhere;
  EXPECT_EQ(CheckStateFolderHere(Spec(folder_ + "/none"), &elsewhere), absl::OkStatus());
  EXPECT_THAT(elsewhere, testing::ElementsAre("train.offload.path " + folder_ + "/none"));
}

}  // namespace
}  // namespace milepost::client
