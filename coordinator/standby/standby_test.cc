// Which directories coordinators begin in, and what they leave behind when they end.
#include "coordinator/standby/standby.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "coordinator/election/fake_etcd.h"
#include "coordinator/standby/shared_store.h"
#include "coordinator/store/epochs.h"
#include "coordinator/store/store_id.h"

namespace milepost::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kKey[] = "/milepost/coordinator";
constexpr absl::Duration kPatience = absl::Seconds(30);

class StandbyTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);  // of threads that are started from here on
  }
  StandbyTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "milepost-standby-XXXXXX");
    root_ = mkdtemp(pattern.data());
    dir_ = root_ + "/shared";
    std::filesystem::create_directory(dir_);
  }
  ~StandbyTest() override { std::filesystem::remove_all(root_); }

  // A coordinator, until it ends.
  absl::Status Run(StandbyOptions options, const std::string& dir,
                   const std::function<void()>& listening = nullptr) {
    options.etcd = {etcd_.address()};
    ServerOptions server;
    server.store.dir = dir;
    return RunWithStandby(server, options, signals_, [&](const std::string&) {
      if (listening) listening();
      return absl::OkStatus();
    });
  }
  static void AskToEnd() { kill(getpid(), SIGUSR1); }
  template <typename Condition>
  static bool Await(Condition condition) {
    for (const absl::Time end = absl::Now() + kPatience; absl::Now() < end;) {
      if (condition()) return true;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return false;
  }
  // Serves, is asked to end, and does.
  void ServeOnce(const std::string& dir) {
    std::thread asker([&] {
      EXPECT_TRUE(Await([&] {
        const auto newest = NewestEpoch(dir);
        return newest.ok() && *newest > 0 && etcd_.LeaseOf(kKey) != 0;
      }));
      AskToEnd();
    });
    EXPECT_EQ(Run({}, dir), absl::OkStatus());
    asker.join();
  }
  static std::vector<std::string> Entries(const std::string& dir) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  static inline sigset_t signals_;
  FakeEtcd etcd_;
  EtcdClient client_{{Endpoint(etcd_.address())}};
  std::string root_, dir_;
};

// It may be one that is not mounted.
TEST_F(StandbyTest, AnEmptyDirectoryIsNoStore) {
  const absl::Status status = Run({}, dir_);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("init-store"));
  EXPECT_THAT(Entries(dir_), IsEmpty());
  EXPECT_FALSE(client_.Get(absl::StrCat(kKey, "/store"), kPatience)->has_value());
  EXPECT_TRUE(absl::IsFailedPrecondition(Run({}, root_ + "/not-there")));
}

TEST_F(StandbyTest, ANewStoreIsBegunOnce) {
  const auto id = MakeStoreId(dir_);
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_TRUE(absl::IsAlreadyExists(MakeStoreId(dir_).status()));
  EXPECT_EQ(CheckSharedStore(&client_, kKey, dir_).status(), absl::OkStatus());
  ServeOnce(dir_);
  EXPECT_EQ((*client_.Get(absl::StrCat(kKey, "/store"), kPatience))->value, *id);
  EXPECT_THAT(Entries(dir_), ElementsAre("epoch-1", "store-id"));
  // Another one, and one that is not mounted, are refused from then on.
  EXPECT_TRUE(absl::IsFailedPrecondition(Run({}, root_ + "/not-mounted")));
  ASSERT_TRUE(MakeStoreId(root_ + "/another").ok());
  const absl::Status another = Run({}, root_ + "/another");
  EXPECT_TRUE(absl::IsFailedPrecondition(another)) << another;
  EXPECT_THAT(std::string(another.message()), HasSubstr("another store"));
}

TEST_F(StandbyTest, AStoreOfASingleCoordinatorIsTakenAsItIs) {
  { ASSERT_TRUE(Store::Open({.dir = dir_}).ok()); }
  ServeOnce(dir_);
  EXPECT_FALSE(ReadStoreId(dir_)->empty());
}

// Whoever is active by what etcd has forgotten does not know yet.
TEST_F(StandbyTest, WaitsOutTheLeaseThatEtcdHasForgotten) {
  ASSERT_TRUE(MakeStoreId(dir_).ok());
  ASSERT_TRUE(TakeOver(dir_, [] { return absl::OkStatus(); }).ok());
  const absl::Time begin = absl::Now();
  absl::Time elected = absl::InfiniteFuture(), served = absl::InfiniteFuture();
  std::thread asker([&] {
    EXPECT_TRUE(Await([&] { return etcd_.LeaseOf(kKey) != 0; }));
    elected = absl::Now();
    EXPECT_TRUE(Await([&] { return NewestEpoch(dir_).value_or(0) == 2; }));
    served = absl::Now();
    AskToEnd();
  });
  EXPECT_EQ(Run({.ttl = absl::Seconds(2)}, dir_), absl::OkStatus());
  asker.join();
  EXPECT_GE(served - begin, absl::Seconds(2));
  EXPECT_LT(elected, served);
}

// systemd starts it again and again.
TEST_F(StandbyTest, AStartThatFailsLeavesNoEpochBehind) {
  ASSERT_TRUE(MakeStoreId(dir_).ok());
  ServeOnce(dir_);
  // The newest one is damaged where RocksDB alone sees it.
  for (const auto& entry : std::filesystem::directory_iterator(dir_ + "/epoch-1/db")) {
    if (entry.path().filename().string().rfind("MANIFEST", 0) == 0) {
      std::ofstream(entry.path()) << "nonsense";
    }
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(Run({}, dir_).ok());
    EXPECT_THAT(Entries(dir_), ElementsAre("epoch-1", "store-id"));
  }
}

// Older epochs may be many files on a slow disk.
TEST_F(StandbyTest, GivesItsLeaseUpBeforeTheCleanerHasEnded) {
  ASSERT_TRUE(MakeStoreId(dir_).ok());
  bool given_up = false;
  StandbyOptions options;
  options.keep_older_epochs = absl::ZeroDuration();
  options.before_cleaning = [&] {
    AskToEnd();
    given_up = Await([&] { return etcd_.LeaseOf(kKey) == 0; });
  };
  EXPECT_EQ(Run(options, dir_), absl::OkStatus());
  EXPECT_TRUE(given_up);
}

}  // namespace
}  // namespace milepost::coordinator
