#include "coordinator/desks/rendezvous.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>

#include "coordinator/store/store.h"

namespace milepost::coordinator {
namespace {

std::atomic<int64_t> syncs = 0;

class RendezvousTest : public ::testing::Test {
 protected:
  RendezvousTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "milepost-rendezvous-XXXXXX";
    dir_ = mkdtemp(pattern.data());
  }
  ~RendezvousTest() override { std::filesystem::remove_all(dir_); }

  std::unique_ptr<Store> Open(bool shared) {
    StoreOptions options;
    options.dir = dir_;
    options.shared = shared;
    auto store = Store::Open(options);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  static absl::StatusOr<std::string> Get(RendezvousTable* table, const std::string& key) {
    return table->Get(1, 1, key, absl::InfinitePast(), [] { return absl::OkStatus(); });
  }

  std::string dir_;
};

// Between two decisions, where everybody waits for it.
TEST_F(RendezvousTest, PutNeverWaitsForTheDisk) {
  const auto store = Open(/*shared=*/true);
  RendezvousTable table(store.get());
  const int64_t before = syncs;
  const auto put = table.Put(1, 1, "a", "x");
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(syncs, before);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Get(&table, "a").status())) << "it may yet be lost";
  EXPECT_TRUE(table.Publish(1, 1, "a", *put).ok());
  EXPECT_GT(syncs, before);
  EXPECT_EQ(Get(&table, "a").value(), "x");
}

TEST_F(RendezvousTest, OfOneCoordinatorNobodyWaitsForTheDisk) {
  const auto store = Open(/*shared=*/false);
  RendezvousTable table(store.get());
  const int64_t before = syncs;
  const auto put = table.Put(1, 1, "a", "x");
  EXPECT_TRUE(table.Publish(1, 1, "a", *put).ok());
  EXPECT_EQ(syncs, before);
  EXPECT_EQ(Get(&table, "a").value(), "x");
}

// The newer value is not durable because the older one is.
TEST_F(RendezvousTest, AReplacedValueIsPublishedByItsOwnPut) {
  const auto store = Open(/*shared=*/true);
  RendezvousTable table(store.get());
  const auto first = table.Put(1, 1, "a", "x");
  const auto second = table.Put(1, 1, "a", "y");
  EXPECT_TRUE(table.Publish(1, 1, "a", *first).ok());
  EXPECT_FALSE(Get(&table, "a").ok());
  EXPECT_TRUE(table.Publish(1, 1, "a", *second).ok());
  EXPECT_EQ(Get(&table, "a").value(), "y");
}

TEST_F(RendezvousTest, APutThatIsMadeAgainTakesNoMoreRoom) {
  const auto store = Open(/*shared=*/false);
  RendezvousTable table(store.get());
  const std::string value(RendezvousTable::kMaxValueBytes, 'x');
  const auto most =
      static_cast<int>(RendezvousTable::kMaxBytesPerAttempt / RendezvousTable::kMaxValueBytes);
  for (int i = 0; i <= most; ++i) ASSERT_TRUE(table.Put(1, 1, "a", value).ok()) << i;
}

TEST_F(RendezvousTest, WhatIsPublishedTooLateIsNotThere) {
  const auto store = Open(/*shared=*/true);
  RendezvousTable table(store.get());
  const auto put = table.Put(1, 1, "a", "x");
  table.Drop(1);
  EXPECT_TRUE(table.Publish(1, 1, "a", *put).ok());
  EXPECT_FALSE(Get(&table, "a").ok());
}

TEST_F(RendezvousTest, WhatWasStoredIsThereAfterARestart) {
  {
    const auto store = Open(/*shared=*/true);
    RendezvousTable table(store.get());
    ASSERT_TRUE(table.Put(1, 1, "a", "x").ok());  // and the process dies
  }
  const auto store = Open(/*shared=*/true);
  RendezvousTable table(store.get());
  ASSERT_TRUE(table.Load().ok());
  EXPECT_EQ(Get(&table, "a").value(), "x");
}

}  // namespace
}  // namespace milepost::coordinator

// RocksDB's calls come here: they are counted.
extern "C" int fdatasync(int fd) {
  ++milepost::coordinator::syncs;
  return static_cast<int>(syscall(SYS_fdatasync, fd));
}
