#include "coordinator/desks/store_watch.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "absl/synchronization/notification.h"
#include "common/rpc/warning.h"
#include "coordinator/rpc/server_fixture.h"

namespace milepost::coordinator {
namespace {

TEST(StoreWatchTest, GivesUpWhenEveryWriteFails) {
  StoreWatch watch(absl::Seconds(15));
  const absl::Status broken = absl::InternalError("IO error");
  const absl::Time begin = absl::UnixEpoch();
  EXPECT_FALSE(watch.Wrote(broken, begin));
  EXPECT_FALSE(watch.Wrote(broken, begin + absl::Seconds(14)));
  EXPECT_FALSE(watch.Wrote(absl::OkStatus(), begin + absl::Seconds(14)));
  EXPECT_FALSE(watch.Wrote(broken, begin + absl::Seconds(16)));
  EXPECT_FALSE(watch.Wrote(absl::ResourceExhaustedError("full"), begin + absl::Seconds(30)));
  EXPECT_FALSE(watch.Wrote(broken, begin + absl::Seconds(40)));
  EXPECT_TRUE(watch.Wrote(broken, begin + absl::Seconds(55)));
}

class BrokenStoreTest : public ServerTest {
 protected:
  BrokenStoreTest() {
    signal(SIGXFSZ, SIG_IGN);
    options_.coordinator.store_patience = absl::Milliseconds(100);
    options_.coordinator.on_broken_store = [this](const absl::Status&) {
      if (!broken_.HasBeenNotified()) broken_.Notify();
    };
    Start();
    getrlimit(RLIMIT_FSIZE, &before_);
  }
  ~BrokenStoreTest() override { setrlimit(RLIMIT_FSIZE, &before_); }

  // Every write to a file of this process fails.
  void Break() const {
    rlimit none = before_;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_FSIZE, &none);
  }
  absl::Notification broken_;
  rlimit before_;
};

TEST_F(BrokenStoreTest, IsGivenUpAndHasLostNothingThatWasAccepted) {
  const std::string accepted = Submit();
  Break();
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  while (!broken_.HasBeenNotified() && absl::Now() < give_up) {
    grpc::ClientContext context;
    v1::Job job;
    EXPECT_FALSE(jobs_->SubmitJob(&context, Request(), &job).ok());
  }
  EXPECT_TRUE(broken_.HasBeenNotified());
  setrlimit(RLIMIT_FSIZE, &before_);
  Start();
  EXPECT_EQ(GetJob(accepted).name(), accepted);
  Submit();
}

class DamagedStoreTest : public ServerTest {
 protected:
  // What a call's answer warns of; empty: nothing.
  std::string Warning() {
    grpc::ClientContext context;
    v1::ListJobsResponse response;
    const grpc::Status status = jobs_->ListJobs(&context, {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    const auto& metadata = context.GetServerTrailingMetadata();
    const auto found = metadata.find(kWarningKey);
    return found == metadata.end() ? "" : std::string(found->second.data(), found->second.size());
  }

  // In each table.
  void FlipABit() const {
    for (const auto& entry : std::filesystem::directory_iterator(dir_ + "/db")) {
      if (entry.path().extension() != ".sst") continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(40);
      const int byte = file.get();
      file.seekp(40);
      file.put(static_cast<char>(byte ^ 4));
      ASSERT_TRUE(file.good()) << entry.path();
    }
  }
};

// While it serves: it goes on, and whoever calls is told.
TEST_F(DamagedStoreTest, IsToldToWhoeverCalls) {
  std::string name;
  {
    FakeWorker worker(server_->address(), "a", 1);
    worker.Receive();
    Submit();
    const v1::StartRank start = worker.Receive().start_rank();
    ASSERT_TRUE(Save(start, 5, 4, &name).ok());
  }
  Start();
  EXPECT_EQ(Warning(), "");
  FlipABit();
  grpc::ClientContext context;
  v1::GetCheckpointRequest request;
  request.set_name(name);
  v1::CheckpointManifest manifest;
  EXPECT_FALSE(checkpoints_->GetCheckpoint(&context, request, &manifest).ok());
  EXPECT_NE(Warning().find("salvage"), std::string::npos) << Warning();
  EXPECT_NE(Warning().find(".sst"), std::string::npos) << Warning();
  Submit();
}

}  // namespace
}  // namespace milepost::coordinator
