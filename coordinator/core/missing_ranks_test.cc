#include "coordinator/core/missing_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace milepost::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Place {
  int64_t begun = 0, completed = 0;
  std::string call = "all_reduce of Float[4]";
  bool timed_out = false;
  std::string group = "gloo:0", description = "default_pg";
};

RankWhere At(int rank, const std::string& place, const std::vector<Place>& calls) {
  RankWhere where = {.rank = rank, .worker = absl::StrCat("workers/", rank)};
  where.position.set_place(place);
  for (const Place& call : calls) {
    v1::CollectivePosition* one = where.position.add_collectives();
    one->set_group(call.group);
    one->set_description(call.description);
    one->set_begun(call.begun);
    one->set_completed(call.completed);
    one->set_call(call.call);
    one->set_timed_out(call.timed_out);
  }
  return where;
}

TEST(MissingRanksTest, TheRankThatDidNotComeIsNamed) {
  // Gloo counts a call that has failed as one that has ended.
  EXPECT_EQ(
      MissingRanks({At(0, "train.py:9 (main)", {{4, 4, "all_reduce of Float[4]", true}}),
                    At(1, "train.py:9 (main)", {{4, 3}}), At(2, "data.py:40 (batches)", {{3, 3}})},
                   /*failed=*/0),
      "2 ranks waited in all_reduce of Float[4] (call 4 of default_pg) for rank 2 on "
      "workers/2, which was at data.py:40 (batches)");
}

// With NCCL calls are made long before they are run.
TEST(MissingRanksTest, TheFirstCallThatHasNotEndedCounts) {
  const std::string text =
      MissingRanks({At(0, "", {{60, 56, "all_gather of Half[8]", true}}), At(1, "", {{56, 56}}),
                    At(2, "", {{60, 56, "all_gather of Half[8]", true}})},
                   2);
  EXPECT_THAT(text, AllOf(HasSubstr("2 ranks waited in all_gather of Half[8] (call 57 of"),
                          HasSubstr("for rank 1 on workers/1"), Not(HasSubstr("which was"))));
}

TEST(MissingRanksTest, ARankBeforeItsFirstCallIsMissingToo) {
  EXPECT_THAT(
      MissingRanks({At(0, "", {{1, 0, "barrier", true}}), At(1, "load.py:3 (f)", {{0, 0}})}, 0),
      HasSubstr("1 rank waited in barrier (call 1 of default_pg) for rank 1 on workers/1, "
                "which was at load.py:3 (f)"));
  // Nobody knows what the other one has called.
  EXPECT_EQ(MissingRanks({At(0, "", {{1, 0, "barrier", true}}), At(1, "load.py:3 (f)", {})}, 0),
            "");
}

TEST(MissingRanksTest, WithoutATimeOutOrWithAMissingRankThatFailedThereIsNothingToSay) {
  EXPECT_EQ(MissingRanks({At(0, "a", {{4, 3}}), At(1, "b", {{3, 3}})}, 0), "");
  EXPECT_EQ(MissingRanks({At(0, "a", {{4, 3, "barrier", true}}), At(1, "b", {{3, 3}})}, 1), "");
  EXPECT_EQ(
      MissingRanks({At(0, "a", {{4, 3, "barrier", true}}), At(1, "b", {{4, 3, "barrier"}})}, 0),
      "");
  EXPECT_EQ(MissingRanks({}, 0), "");
}

TEST(MissingRanksTest, RanksThatCalledOtherOperations) {
  EXPECT_EQ(MissingRanks({At(0, "", {{4, 3, "all_reduce of Float[4]", true}}),
                          At(1, "", {{4, 3, "all_gather of Float[4]"}})},
                         0),
            "ranks do not agree on call 4 of default_pg: rank 0 on workers/0 called all_reduce of "
            "Float[4]; rank 1 on workers/1 called all_gather of Float[4]");
  EXPECT_THAT(MissingRanks({At(0, "", {{4, 3, "all_reduce of Float[4]", true}}),
                            At(1, "", {{4, 3, "all_reduce of Float[5]"}})},
                           0),
              HasSubstr("called all_reduce of Float[5]"));
  // Parts of different sizes may be gathered.
  EXPECT_EQ(MissingRanks({At(0, "", {{4, 3, "all_gather of Float[4]", true}}),
                          At(1, "", {{4, 3, "all_gather of Float[5]"}})},
                         0),
            "");
}

// Ranks 0 and 1 wait in "dp" for rank 2, which waits in "tp" for rank 3.
TEST(MissingRanksTest, TheBeginningOfTheChainIsNamed) {
  const auto dp = [](int64_t begun, bool timed_out) {
    return Place{begun, 5, "barrier", timed_out, "gloo:1", "dp"};
  };
  const auto tp = [](int64_t begun, bool timed_out) {
    return Place{begun, 2, "barrier", timed_out, "gloo:2", "tp"};
  };
  for (const bool second_timed_out : {true, false}) {  // it began later
    const std::string text = MissingRanks({At(0, "", {dp(6, true)}), At(1, "", {dp(6, true)}),
                                           At(2, "", {dp(5, false), tp(3, second_timed_out)}),
                                           At(3, "stuck.py:1 (f)", {tp(2, false)})},
                                          0);
    EXPECT_THAT(text, AllOf(HasSubstr("1 rank waited in barrier (call 3 of tp) for rank 3 on "),
                            HasSubstr("stuck")));
  }
  // In a circle: nobody is where it begins, and something is said.
  EXPECT_THAT(
      MissingRanks({At(0, "", {dp(6, true), tp(2, false)}), At(1, "", {dp(5, false), tp(3, true)})},
                   0),
      HasSubstr("waited in barrier"));
}

// A broadcast's source goes on at once.
TEST(MissingRanksTest, OnlyThoseThatWaitAreCounted) {
  EXPECT_THAT(MissingRanks({At(0, "", {{9, 9}}), At(1, "", {{7, 6, "broadcast", true}}),
                            At(2, "data.py:1 (f)", {{6, 6}})},
                           1),
              HasSubstr("1 rank waited in broadcast (call 7 of default_pg) for rank 2"));
}

TEST(MissingRanksTest, AtMostEightAreNamed) {
  std::vector<RankWhere> ranks = {At(0, "", {{1, 0, "barrier", true}})};
  for (int i = 1; i < 1000; ++i) ranks.push_back(At(i, "x.py:1 (f)", {{0, 0}}));
  EXPECT_THAT(MissingRanks(ranks, 0), AllOf(HasSubstr("rank 8 on"), HasSubstr("; and 991 more"),
                                            Not(HasSubstr("rank 9 on"))));
}

}  // namespace
}  // namespace milepost::coordinator
