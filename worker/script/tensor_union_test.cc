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

// What each rank gets.
std::vector<absl::StatusOr<Tensors>> Agree(const std::vector<Tensors>& lists,
                                           const std::vector<int64_t>& steps) {
  auto group = comm::MakeInProcessGroup(static_cast<int>(lists.size()));
  std::vector<absl::StatusOr<Tensors>> results(lists.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < lists.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = AgreeOnTensors(*group[i], steps[i], lists[i]); });
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
  const auto results = Agree(
      {{Tensor("a", 1), Tensor("r0", 5)}, {Tensor("r1", 1000), Tensor("a", 1)}, {}}, {7, 7, 7});
  for (const auto& result : results) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_THAT(Names(*result), ElementsAre("a", "r0", "r1"));
    EXPECT_EQ((*result)[2].shape(0), 1000);
  }
  for (const auto& alike : Agree({{Tensor("a", 1)}, {Tensor("a", 1)}}, {7, 7})) {
    ASSERT_TRUE(alike.ok()) << alike.status();
    EXPECT_THAT(Names(*alike), ElementsAre("a"));
  }
}

TEST(TensorUnionTest, DifferentStepsAndFormsAreRefusedOnEveryRank) {
  for (const auto& result : Agree({{}, {}, {}}, {7, 7, 8})) {
    EXPECT_THAT(result.status().message(),
                HasSubstr("the ranks save different steps: rank 0 step 7, rank 2 step 8"));
  }
  for (const auto& result : Agree({{Tensor("a", 1)}, {Tensor("a", 2)}}, {7, 7})) {
    EXPECT_THAT(result.status().message(),
                HasSubstr("tensor a has another shape or dtype on rank 1 than on rank 0"));
  }
}

}  // namespace
}  // namespace milepost::worker
