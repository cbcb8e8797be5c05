#include "engine/runtime/offload/state_disk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/planner/planner.h"
#include "engine/runtime/executor/arena.h"
#include "engine/runtime/session/training_session.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

using testing::HasSubstr;

// A plan whose states are on disk, its memory on the host, and a folder.
class StateDiskTest : public testing::Test {
 protected:
  StateDiskTest() : spec_(job_.Spec({.precision = v1::PRECISION_BF16, .layers = 4})) {
    folder_ = std::filesystem::path(spec_.data().train()).parent_path().string();
    spec_.mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_NVME);
    plan_ = *plan::PlanTraining(spec_, *plan::OptionsFromSpec(spec_, 1));
    arena_ = std::make_unique<Arena>(*Arena::Allocate(plan_.host_arena_bytes));
  }

  std::unique_ptr<StateDisk> Open(StateFileOptions options = {}) {
    auto disk = StateDisk::Open(plan_, folder_, 0, arena_->data(), std::move(options));
    EXPECT_TRUE(disk.ok()) << disk.status();
    return *std::move(disk);
  }
  int groups() const { return static_cast<int>(plan_.groups.size()); }
  char* Master(int group) const {
    return arena_->data() + plan_.buffers[plan_.groups[group].master_buffer].offset;
  }
  char* V(int group) const {
    return arena_->data() + plan_.buffers[plan_.groups[group].state_buffers[1]].offset;
  }

  TinyJob job_;
  v1::JobSpec spec_;
  std::string folder_;
  plan::StepPlan plan_;
  std::unique_ptr<Arena> arena_;
};

TEST_F(StateDiskTest, EveryGroupHasItsOwnThoughMemoryIsShared) {
  const auto disk = Open();
  EXPECT_EQ(disk->bytes(), plan_.disk_bytes);
  ASSERT_GT(groups(), plan::kDiskTurns);
  for (int group = 0; group < groups(); ++group) {
    *Master(group) = 'x';
    ASSERT_EQ(disk->Load(group), absl::OkStatus());
    EXPECT_EQ(*Master(group), 0);  // nobody has stored it
    *Master(group) = static_cast<char>('a' + group);
    *V(group) = static_cast<char>('A' + group);
    ASSERT_EQ(disk->Store(group), absl::OkStatus());
  }
  for (int group = 0; group < groups(); ++group) {
    ASSERT_EQ(disk->Load(group), absl::OkStatus());
    EXPECT_EQ(*Master(group), 'a' + group);
    EXPECT_EQ(*V(group), 'A' + group);
  }
  *V(3) = 'x';
  ASSERT_EQ(disk->LoadMaster(3), absl::OkStatus());
  EXPECT_EQ(*Master(3), 'a' + 3);
  EXPECT_EQ(*V(3), 'x');
}

// As a step does it: a turn's next transfer begins when the one before is over.
TEST_F(StateDiskTest, ATurnsTransfersComeOneAfterTheOther) {
  const auto disk = Open();
  for (const int group : {0, 3}) {
    ASSERT_EQ(disk->Load(group), absl::OkStatus());
    *Master(group) = static_cast<char>('a' + group);
    ASSERT_EQ(disk->Store(group), absl::OkStatus());
  }
  for (int round = 0; round < 20; ++round) {
    for (const int group : {0, 3}) {
      ASSERT_EQ(disk->Begin(group, /*write=*/false), absl::OkStatus());
      ASSERT_EQ(disk->Await(0), absl::OkStatus());
      ASSERT_EQ(*Master(group), 'a' + group + round);
      ++*Master(group);
      ASSERT_EQ(disk->Begin(group, /*write=*/true), absl::OkStatus());
    }
  }
  EXPECT_EQ(disk->AwaitAll(), absl::OkStatus());
}

TEST_F(StateDiskTest, NothingIsLeftInTheFolder) {
  std::vector<std::string> before, during;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    before.push_back(entry.path().string());
  }
  const auto disk = Open();
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    during.push_back(entry.path().string());
  }
  EXPECT_EQ(before, during);
}

TEST_F(StateDiskTest, SaysWhatIsWrongWithTheFolder) {
  auto missing = StateDisk::Open(plan_, folder_ + "/none", 0, arena_->data());
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("train.offload.path: "));
  EXPECT_THAT(missing.status().message(), HasSubstr(folder_ + "/none"));
  EXPECT_FALSE(IsDiskFailure(missing.status()));  // the user can mend it
  EXPECT_EQ(StateDisk::Open(plan_, "", 0, arena_->data()).status().code(),
            absl::StatusCode::kInvalidArgument);

  for (plan::DiskRegion& region : plan_.disk_regions) region.bytes = int64_t{1} << 55;
  auto full = StateDisk::Open(plan_, folder_, 0, arena_->data());
  EXPECT_TRUE(IsDiskFailure(full.status()));
  EXPECT_THAT(full.status().message(), HasSubstr(" are free"));
  EXPECT_THAT(full.status().message(), HasSubstr(folder_));
}

// Reads other bytes than were written from some request on.
class Damaging : public BlockIo {
 public:
  Damaging(std::unique_ptr<BlockIo> io, const bool* damaged)
      : io_(std::move(io)), damaged_(damaged) {}
  absl::Status Submit(const BlockRequest& request) override {
    last_ = request;
    return io_->Submit(request);
  }
  absl::StatusOr<BlockResult> Next() override {
    auto result = io_->Next();
    if (*damaged_ && !last_.write) last_.data[0] ^= 1;
    return result;
  }

 private:
  std::unique_ptr<BlockIo> io_;
  const bool* damaged_;
  BlockRequest last_;
};

TEST_F(StateDiskTest, DamageIsTheDisksFailure) {
  bool damaged = false;
  const auto disk = Open({.depth = 1, .io = [&](int fd) {
                            return std::make_unique<Damaging>(ThreadIo(fd, 1), &damaged);
                          }});
  ASSERT_EQ(disk->Store(1), absl::OkStatus());
  ASSERT_EQ(disk->Load(1), absl::OkStatus());
  damaged = true;
  const absl::Status status = disk->Load(1);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_TRUE(IsDiskFailure(status));
  EXPECT_THAT(status.message(), HasSubstr("not those that were written"));
  ASSERT_EQ(disk->Begin(1, /*write=*/false), absl::OkStatus());
  EXPECT_TRUE(IsDiskFailure(disk->Await(1)));
}

// What a whole session says of a folder that is not there.
TEST_F(StateDiskTest, ASessionNamesTheField) {
  spec_.mutable_train()->mutable_offload()->set_path("/none/here");
  auto group = comm::MakeInProcessGroup(1);
  auto session = TrainingSession::Create(spec_, {}, group[0].get());
  EXPECT_EQ(session.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(session.status().message(), HasSubstr("train.offload.path: opening /none/here"));
}

}  // namespace
}  // namespace milepost::runtime
