#include "coordinator/desks/paging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "milepost/v1/queue.pb.h"

namespace milepost::coordinator {
namespace {

std::vector<v1::Queue> Queues(int count, size_t bytes) {
  std::vector<v1::Queue> queues(count);
  for (v1::Queue& queue : queues) queue.set_description(std::string(bytes, 'x'));
  return queues;
}

TEST(PageTest, HoldsAsManyAsWereAskedFor) {
  v1::ListQueuesResponse page;
  EXPECT_TRUE(FillPage(Queues(3, 10), 2, page.mutable_queues()));
  EXPECT_EQ(page.queues_size(), 2);
  page.Clear();
  EXPECT_FALSE(FillPage(Queues(2, 10), 2, page.mutable_queues()));
  EXPECT_EQ(page.queues_size(), 2);
}

TEST(PageTest, HoldsNoMoreThanItsBytes) {
  v1::ListQueuesResponse page;
  EXPECT_TRUE(FillPage(Queues(100, PageRoom::kMostBytes / 4), 1000, page.mutable_queues()));
  EXPECT_EQ(page.queues_size(), 3);
  EXPECT_LE(page.ByteSizeLong(), PageRoom::kMostBytes);
}

TEST(PageTest, AlwaysHasRoomForOne) {
  v1::ListQueuesResponse page;
  EXPECT_TRUE(FillPage(Queues(2, 2 * PageRoom::kMostBytes), 1000, page.mutable_queues()));
  EXPECT_EQ(page.queues_size(), 1);
}

// An entry that has no room ends the page, though a smaller one after it would have.
TEST(PageTest, LeavesNothingOut) {
  PageRoom room(10);
  const std::vector<v1::Queue> large = Queues(2, PageRoom::kMostBytes - 100);
  EXPECT_TRUE(room.Take(large[0]));
  EXPECT_FALSE(room.full());
  EXPECT_FALSE(room.Take(large[1]));
  EXPECT_FALSE(room.Take(v1::Queue()));
  EXPECT_TRUE(room.full());
}

}  // namespace
}  // namespace milepost::coordinator
