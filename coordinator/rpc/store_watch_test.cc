#include "coordinator/rpc/store_watch.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "absl/synchronization/notification.h"
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

}  // namespace
}  // namespace milepost::coordinator
