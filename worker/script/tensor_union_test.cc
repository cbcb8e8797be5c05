#include "worker/script/tensor_union.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "engine/comm/in_process.h"

namespace milepost::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Tensors = std::vector<v1::TensorInfo>;

v1::TensorInfo Tensor(const std::string& name, int64_t size) {
  v1::TensorInfo tensor;
  tensor.set_name(name);
  tensor.set_kind("tensor");
  tensor.set_dtype("F32");
  tensor.add_shape(size);
  return tensor;
}

// All of each tensor.
RankState Whole(const Tensors& tensors, int64_t step = 7) {
  RankState state{step, tensors, {}};
  for (int32_t i = 0; i < static_cast<int32_t>(tensors.size()); ++i) {
    state.pieces.push_back({i, 0, tensors[static_cast<size_t>(i)].shape(0)});
  }
  return state;
}

// What each rank gets.
std::vector<absl::StatusOr<AgreedSave>> Agree(
    const std::vector<absl::StatusOr<RankState>>& states) {
  auto group = comm::MakeInProcessGroup(static_cast<int>(states.size()));
  std::vector<absl::StatusOr<AgreedSave>> results(states.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < states.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = AgreeOnSave(*group[i], states[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

std::vector<std::string> Names(const Tensors& tensors) {
  std::vector<std::string> names;
  for (const v1::TensorInfo& tensor : tensors) names.push_back(tensor.name());
  return names;
}

TEST(TensorUnionTest, EveryRankHasTheTensorsOfAll) {
  RankState first = Whole({Tensor("a", 1), Tensor("r0", 5), Tensor("halves", 10)});
  first.pieces[2].end = 4;
  // In another order, and without a part in "a".
  RankState second{7,
                   {Tensor("r1", 1000), Tensor("halves", 10), Tensor("a", 1), Tensor("r0", 5)},
                   {{0, 0, 1000}, {1, 4, 10}}};
  for (const auto& result : Agree({first, second, RankState{7, {}, {}}})) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_THAT(Names(result->tensors), ElementsAre("a", "r0", "halves", "r1"));
    EXPECT_EQ(result->tensors[3].shape(0), 1000);
  }
}

TEST(TensorUnionTest, ASaveIsDurableWhereOneIsOwed) {
  RankState all = Whole({Tensor("a", 1)});
  all.durable = false;
  RankState none{.step = 7, .durable = false};
  for (const auto& result : Agree({all, none})) EXPECT_FALSE(result->durable);
  none.owed = true;
  for (const auto& result : Agree({all, none})) EXPECT_TRUE(result->durable);
  none.durable = true;
  for (const auto& result : Agree({all, none})) {
    EXPECT_THAT(result.status().message(), HasSubstr("rank 1 do not both want a durable save"));
  }
}

// Else the coordinator would wait for what never comes.
TEST(TensorUnionTest, WhatNoRankSavesOrTwoSaveIsRefusedOnEveryRank) {
  const auto all_say = [](const std::vector<absl::StatusOr<RankState>>& states,
                          const std::string& problem) {
    for (const auto& result : Agree(states)) {
      EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(result.status().message(), HasSubstr(problem));
    }
  };
  const RankState lists_it{7, {Tensor("a", 1), Tensor("only_here", 8)}, {}};
  all_say(
      {Whole({Tensor("a", 1)}), lists_it},
      "only_here (tensor) [0, 8) is missing: what only some ranks have belongs into `per_rank`");
  all_say({Whole({Tensor("a", 4)}), RankState{7, {Tensor("a", 4)}, {{0, 2, 4}}}},
          "a (tensor) [2, 4) is there more than once");
  all_say({Whole({Tensor("a", 1)}), Whole({Tensor("a", 2)})},
          "tensor a has another shape or dtype on rank 1");
  all_say({RankState{7, {}, {}}, Whole({Tensor("a", 1)}), Whole({Tensor("a", 2)})},
          "tensor a has another shape or dtype on rank 2");
  all_say({RankState{7, {}, {}}, RankState{7, {}, {}}, RankState{8, {}, {}}},
          "the ranks save different steps: rank 0 step 7, rank 2 step 8");
  EXPECT_FALSE(CheckWhole(lists_it).ok());
  EXPECT_TRUE(CheckWhole(Whole({Tensor("a", 1)})).ok());
}

TEST(TensorUnionTest, ARankThatCannotSayEndsTheSaveOfAll) {
  const auto results = Agree({Whole({Tensor("a", 1)}), absl::InvalidArgumentError("bad body")});
  EXPECT_EQ(results[0].status().message(), "rank 1 could not say what it saves");
  EXPECT_EQ(results[1].status().message(), "bad body");
}

}  // namespace
}  // namespace milepost::worker
