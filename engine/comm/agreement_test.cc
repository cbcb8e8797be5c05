#include "engine/comm/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "engine/comm/in_process.h"

namespace milepost::comm {
namespace {

using testing::Each;
using testing::HasSubstr;

// What each rank is told, as a message; empty: OK.
std::vector<std::string> Answers(const std::vector<Facts>& facts_of) {
  auto group = MakeInProcessGroup(static_cast<int>(facts_of.size()));
  std::vector<std::string> answers(facts_of.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < facts_of.size(); ++rank) {
    threads.emplace_back([&, rank] {
      answers[rank] = std::string(CheckAgreement(*group[rank], facts_of[rank]).message());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return answers;
}

TEST(Agreement, TheSameFactsPass) {
  const Facts facts = {{"device", "NVIDIA H200"}, {"cuDNN", "9.19"}};
  EXPECT_THAT(Answers({facts, facts, facts}), Each(""));
  EXPECT_THAT(Answers({facts}), Each(""));
  EXPECT_THAT(Answers({{}, {}}), Each(""));
}

TEST(Agreement, EveryRankHearsWhatDiffers) {
  const Facts h200 = {{"device", "NVIDIA H200"}, {"cuDNN", "9.19"}};
  const Facts h100 = {{"device", "NVIDIA H100"}, {"cuDNN", "9.19"}};
  const Facts older = {{"device", "NVIDIA H200"}, {"cuDNN", "9.8"}};
  EXPECT_THAT(Answers({h200, h200, h200, h100, h200}),
              Each("the ranks' hosts differ: device: NVIDIA H100 on rank 3; NVIDIA H200 on ranks "
                   "0-2, 4"));
  EXPECT_THAT(Answers({h200, older}),
              Each("the ranks' hosts differ: cuDNN: 9.19 on rank 0; 9.8 on rank 1"));
}

TEST(Agreement, RankZerosTextIsEverybodys) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{100'000}}) {
    auto group = MakeInProcessGroup(3);
    std::vector<std::string> texts(3);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        const std::string own(rank == 0 ? size : 7 * rank, static_cast<char>('a' + rank));
        texts[rank] = *BroadcastText(*group[rank], own);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(texts, Each(std::string(size, 'a')));
  }
  const auto alone = MakeInProcessGroup(1);
  EXPECT_EQ(*BroadcastText(*alone[0], "abc"), "abc");
  EXPECT_FALSE(BroadcastText(*alone[0], std::string((1 << 20) + 1, 'a')).ok());
}

TEST(Agreement, RanksOfOtherVersionsAreSaidToBe) {
  const Facts facts = {{"device", "NVIDIA H200"}};
  EXPECT_THAT(Answers({facts, {}}), Each(HasSubstr("of another version of Milepost")));
}

}  // namespace
}  // namespace milepost::comm
