#include "coordinator/rpc/connection_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace milepost::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Time kNow = absl::FromUnixSeconds(1000);

uint64_t Added(ConnectionTable* table, const std::string& address, absl::Time now = kNow) {
  const auto id = table->Add(address, now);
  EXPECT_TRUE(id.ok()) << id.status();
  return id.value_or(0);
}

// One of `address` came, was cut for what it did at kNow, and is gone.
void CutOne(ConnectionTable* table, const std::string& address) {
  const uint64_t bad = Added(table, address);
  table->NextTurn(kNow);
  table->Misbehaved(bad, kNow);
  table->Remove(bad);
}

TEST(ConnectionTableTest, LimitsOfAllAndOfOneAddress) {
  ConnectionTable table({.all = 3, .of_address = 2});
  const uint64_t first = Added(&table, "a");
  Added(&table, "a");
  EXPECT_TRUE(absl::IsResourceExhausted(table.Add("a", kNow).status()));
  Added(&table, "b");
  EXPECT_TRUE(absl::IsResourceExhausted(table.Add("c", kNow).status()));
  table.Remove(first);
  Added(&table, "c");
  EXPECT_EQ(table.size(), 3u);
}

TEST(ConnectionTableTest, WithoutLoginsAllHaveTheirTurnAtOnce) {
  ConnectionTable table({.slots = 0});
  for (int i = 0; i < 100; ++i) {
    const uint64_t id = Added(&table, "a");
    const auto turn = table.NextTurn(kNow);
    ASSERT_TRUE(turn.has_value());
    EXPECT_EQ(turn->id, id);
    EXPECT_EQ(turn->slot, 0);
  }
  EXPECT_THAT(table.Overdue(kNow + absl::Hours(1)), IsEmpty());
}

TEST(ConnectionTableTest, ACrowdOfOneAddressKeepsNobodyElseOut) {
  ConnectionTable table({.slots = 4, .slots_of_address = 2});
  for (int i = 0; i < 50; ++i) Added(&table, "crowd");
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(table.NextTurn(kNow).has_value());
  EXPECT_FALSE(table.NextTurn(kNow).has_value());
  const uint64_t other = Added(&table, "other");
  const auto turn = table.NextTurn(kNow);
  ASSERT_TRUE(turn.has_value());
  EXPECT_EQ(turn->id, other);
}

TEST(ConnectionTableTest, AddressesTakeTurns) {
  ConnectionTable table({.slots = 3});
  const uint64_t a1 = Added(&table, "a"), a2 = Added(&table, "a"), b1 = Added(&table, "b");
  EXPECT_EQ(table.NextTurn(kNow)->id, a1);
  EXPECT_EQ(table.NextTurn(kNow)->id, b1);
  EXPECT_EQ(table.NextTurn(kNow)->id, a2);
}

TEST(ConnectionTableTest, WhoHasLoggedInNeedsNoPlace) {
  ConnectionTable table({.slots = 1});
  const uint64_t first = Added(&table, "a");
  const uint64_t second = Added(&table, "a");
  EXPECT_EQ(table.NextTurn(kNow)->slot, 0);
  EXPECT_EQ(table.InSlot(0), first);
  EXPECT_FALSE(table.NextTurn(kNow).has_value());
  EXPECT_TRUE(table.LoggedIn(first));
  EXPECT_FALSE(table.LoggedIn(first)) << "once";
  EXPECT_EQ(table.NextTurn(kNow)->id, second);
  EXPECT_EQ(table.InSlot(0), second);
  for (int i = 0; i < 1000; ++i) ASSERT_FALSE(table.Called(first, /*refused=*/false));
  EXPECT_FALSE(table.Sent(first, int64_t{1} << 40));
  EXPECT_THAT(table.Overdue(kNow + absl::Hours(1)), ElementsAre(second));
  table.Remove(second);
  EXPECT_EQ(table.InSlot(0), 0u);
  EXPECT_FALSE(table.HasStrangers());
}

TEST(ConnectionTableTest, StrangersAreBoundedInTimeBytesAndCalls) {
  const ConnectionLimits limits{.slots = 2};
  ConnectionTable table(limits);
  const uint64_t id = Added(&table, "a");
  table.NextTurn(kNow);
  EXPECT_THAT(table.Overdue(kNow + limits.login - absl::Seconds(1)), IsEmpty());
  EXPECT_THAT(table.Overdue(kNow + limits.login), ElementsAre(id));
  table.Given(id, kNow + absl::Seconds(3));  // there was no thread for it before
  EXPECT_THAT(table.Overdue(kNow + limits.login), IsEmpty());
  EXPECT_THAT(table.Overdue(kNow + absl::Seconds(3) + limits.login), ElementsAre(id));
  EXPECT_FALSE(table.Sent(id, limits.bytes_before_login));
  EXPECT_TRUE(table.Sent(id, limits.bytes_before_login + 1));
  for (int i = 0; i < limits.calls_before_login; ++i) EXPECT_FALSE(table.Called(id, false));
  EXPECT_TRUE(table.Called(id, false));
}

TEST(ConnectionTableTest, RefusalsInARowAreBoundedAfterALoginToo) {
  const ConnectionLimits limits;
  ConnectionTable table(limits);
  const uint64_t id = Added(&table, "a");
  table.NextTurn(kNow);
  table.LoggedIn(id);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < limits.calls_before_login; ++i) ASSERT_FALSE(table.Called(id, true));
    table.LoggedIn(id);
  }
  for (int i = 0; i < limits.calls_before_login; ++i) ASSERT_FALSE(table.Called(id, true));
  EXPECT_TRUE(table.Called(id, true));
}

TEST(ConnectionTableTest, AnswersMayNotWaitForEver) {
  const ConnectionLimits limits;
  ConnectionTable table(limits);
  const uint64_t id = Added(&table, "a");
  const uint64_t first = table.AnswerBegins(id, kNow);
  table.AnswerBegins(id, kNow + absl::Seconds(5));
  EXPECT_THAT(table.Unread(kNow + limits.answer - absl::Seconds(1)), IsEmpty());
  EXPECT_THAT(table.Unread(kNow + limits.answer), ElementsAre(id));
  table.AnswerEnds(id, first);
  EXPECT_THAT(table.Unread(kNow + limits.answer), IsEmpty());
  EXPECT_THAT(table.Unread(kNow + limits.answer + absl::Seconds(5)), ElementsAre(id));
}

TEST(ConnectionTableTest, OfManyAnswersThoseOfTheConnectionsWithMostHaveLessTime) {
  const ConnectionLimits limits{.many_answers = 10};
  ConnectionTable table(limits);
  const uint64_t slow = Added(&table, "a");
  const uint64_t bad = Added(&table, "b");
  const uint64_t worse = Added(&table, "b");
  table.AnswerBegins(slow, kNow);
  for (int i = 0; i < 6; ++i) table.AnswerBegins(bad, kNow);
  for (int i = 0; i < 3; ++i) table.AnswerBegins(worse, kNow);
  const absl::Time then = kNow + limits.hurried_answer;
  EXPECT_THAT(table.Unread(then), IsEmpty()) << "not too many";
  uint64_t last = 0;
  for (int i = 0; i < 7; ++i) last = table.AnswerBegins(worse, kNow);
  EXPECT_THAT(table.Unread(then - absl::Milliseconds(1)), IsEmpty());
  EXPECT_THAT(table.Unread(then), ElementsAre(worse)) << "the others are few enough";
  for (int i = 0; i < 5; ++i) table.AnswerBegins(bad, kNow);
  EXPECT_THAT(table.Unread(then), ElementsAre(bad, worse));
  table.Remove(bad);
  EXPECT_THAT(table.Unread(then), ElementsAre(bad, worse)) << "gRPC still has them";
  table.AnswerEnds(worse, last);
  table.AnswerEnds(worse, last);
  EXPECT_THAT(table.Unread(then), ElementsAre(bad));
}

TEST(ConnectionTableTest, WhoKeepsOthersWaitingHasLessTime) {
  const ConnectionLimits limits{.slots = 2, .slots_of_address = 1};
  ConnectionTable table(limits);
  const uint64_t idle = Added(&table, "a");
  table.NextTurn(kNow);
  EXPECT_THAT(table.Overdue(kNow + limits.hurried_login), IsEmpty());
  Added(&table, "b");
  table.NextTurn(kNow + absl::Seconds(1));
  const uint64_t waits = Added(&table, "c", kNow + absl::Seconds(1));
  EXPECT_THAT(table.Overdue(kNow + limits.hurried_login), ElementsAre(idle));
  table.Remove(idle);
  EXPECT_EQ(table.NextTurn(kNow + limits.hurried_login)->id, waits);
  // Nor does anybody queue for ever.
  const uint64_t late = Added(&table, "c", kNow);
  EXPECT_THAT(table.Overdue(kNow + limits.login), ::testing::Contains(late));
}

TEST(ConnectionTableTest, WhoWasCutWaitsForItsNextTurnAndOthersDoNot) {
  const ConnectionLimits limits;
  ConnectionTable table(limits);
  CutOne(&table, "a");
  const uint64_t again = Added(&table, "a");
  EXPECT_FALSE(table.NextTurn(kNow).has_value());
  const uint64_t other = Added(&table, "b");
  EXPECT_EQ(table.NextTurn(kNow)->id, other);
  EXPECT_EQ(table.NextTurn(kNow + limits.pause)->id, again);
}

TEST(ConnectionTableTest, WhoWasCutHasOneSlotUntilItIsForgotten) {
  const ConnectionLimits limits;
  ConnectionTable table(limits);
  CutOne(&table, "a");
  const absl::Time soon = kNow + limits.suspicion - absl::Seconds(1);
  table.Overdue(soon);
  const uint64_t first = Added(&table, "a", soon);
  const uint64_t second = Added(&table, "a", soon);
  EXPECT_EQ(table.NextTurn(soon)->id, first);
  EXPECT_FALSE(table.NextTurn(soon).has_value());
  EXPECT_THAT(table.Overdue(soon + limits.hurried_login), IsEmpty()) << "it is forgotten by then";
  EXPECT_EQ(table.NextTurn(kNow + limits.suspicion)->id, second);
}

TEST(ConnectionTableTest, ASuspectInItsOnlySlotHasLessTime) {
  const ConnectionLimits limits{.hurried_login = absl::Seconds(4)};
  ConnectionTable table(limits);
  CutOne(&table, "a");
  const absl::Time then = kNow + limits.pause;
  const uint64_t first = Added(&table, "a", then);
  Added(&table, "a", then);
  table.NextTurn(then);
  EXPECT_THAT(table.Overdue(then + limits.hurried_login), ElementsAre(first));
}

TEST(ConnectionTableTest, QueuesAreBounded) {
  ConnectionTable table({.slots = 1, .queued_of_address = 3, .queued = 5});
  for (int i = 0; i < 3; ++i) Added(&table, "a");
  EXPECT_FALSE(table.Add("a", kNow).ok());
  for (int i = 0; i < 2; ++i) Added(&table, "b");
  EXPECT_FALSE(table.Add("c", kNow).ok());
}

}  // namespace
}  // namespace milepost::coordinator
