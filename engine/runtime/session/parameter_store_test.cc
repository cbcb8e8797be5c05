// What a device is told to make, and what is written piece by piece, against what is made in the
// whole arena.
#include "engine/runtime/session/parameter_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/comm/in_process.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cpu/random.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/testing/plan_fixture.h"
#include "engine/runtime/executor/arena.h"

namespace milepost::runtime {
namespace {

constexpr uint64_t kInitialSeed = 17;

struct InitialCase {
  int world;
  int stage;
  int group;
  DType dtype;
  int64_t lora = 0;  // rank of adapters
  bool nf4 = false;
};

template <typename T>
void WriteDrawn(const DrawnValues& values, T* buffer) {
  std::vector<float> numbers(static_cast<size_t>(values.count), 1.0F);
  if (values.initializer == graph::Initializer::kNormal) {
    kernels::NormalInit(numbers.data(), values.count, 0, values.scale, values.seed, values.stream,
                        values.first);
  } else if (values.initializer == graph::Initializer::kUniform) {
    kernels::UniformInit(numbers.data(), values.count, values.scale, values.seed, values.stream,
                         values.first);
  }
  std::transform(numbers.begin(), numbers.end(), buffer + values.begin, FromFloat<T>);
}

std::vector<char> Drawn(const ParameterStore& store, plan::BufferId id, int64_t bytes) {
  std::vector<char> got(static_cast<size_t>(bytes));
  for (const DrawnValues& values : store.Drawn(kInitialSeed, id)) {
    if (values.dtype == DType::kBf16) WriteDrawn(values, reinterpret_cast<bf16*>(got.data()));
    if (values.dtype == DType::kF16) WriteDrawn(values, reinterpret_cast<f16*>(got.data()));
    if (values.dtype == DType::kF32) WriteDrawn(values, reinterpret_cast<float*>(got.data()));
  }
  return got;
}

// In pieces of odd lengths, as slots end anywhere.
std::vector<char> Packed(const ParameterStore& store, plan::BufferId id, int64_t bytes) {
  std::vector<char> got(static_cast<size_t>(bytes), 77);
  constexpr int64_t kPiece = 4 * 9001;
  for (int64_t begin = 0; begin < bytes; begin += kPiece) {
    store.WriteDrawn(kInitialSeed, id, begin, std::min(kPiece, bytes - begin), got.data() + begin);
  }
  return got;
}

void ExpectSameBytes(const plan::StepPlan& plan, const ParameterStore& store, const char* arena) {
  for (const plan::BufferId id : plan::InitialisedOnDevice(plan)) {
    const plan::Buffer& buffer = plan.buffers[id];
    const std::vector<char> got =
        store.DrawnOnHost(id) ? Packed(store, id, buffer.bytes) : Drawn(store, id, buffer.bytes);
    const char* want = arena + buffer.offset;
    EXPECT_TRUE(std::equal(got.begin(), got.end(), want)) << buffer.name;
  }
}

class InitialValues : public testing::TestWithParam<InitialCase> {};

TEST_P(InitialValues, AreTheSameOnADevice) {
  const InitialCase& c = GetParam();
  plan::PlanOptions options = plan::OptionsOf(c.world, c.stage, c.dtype);
  options.shard_ranks = c.group;
  v1::JobSpec spec = plan::SpecOf({});
  if (c.lora > 0) spec.mutable_model()->mutable_lora()->set_rank(c.lora);
  options.frozen_masters = c.lora == 0;
  options.nf4_base = c.nf4;
  const auto plan = plan::PlanTraining(spec, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  auto communicators = comm::MakeInProcessGroup(c.world);
  std::vector<std::thread> ranks;
  for (const auto& communicator : communicators) {
    ranks.emplace_back([&, communicator = communicator.get()] {
      SCOPED_TRACE(absl::StrCat("rank ", communicator->rank()));
      auto arena = Arena::Allocate(plan->arena_bytes);
      ASSERT_TRUE(arena.ok()) << arena.status();
      ParameterStore store(*plan, plan->train.graph, arena->data(), communicator);
      store.Initialize(kInitialSeed);
      ASSERT_EQ(store.RebuildParameters(), absl::OkStatus());
      ExpectSameBytes(*plan, store, arena->data());
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

constexpr auto kFloat = DType::kF32;
constexpr auto kHalf = DType::kF16;
constexpr auto kBrain = DType::kBf16;
INSTANTIATE_TEST_SUITE_P(Plans, InitialValues,
                         testing::Values(InitialCase{1, 0, 0, kFloat}, InitialCase{1, 0, 0, kBrain},
                                         InitialCase{3, 1, 0, kBrain}, InitialCase{2, 1, 0, kFloat},
                                         InitialCase{2, 2, 0, kHalf}, InitialCase{3, 3, 0, kBrain},
                                         InitialCase{4, 3, 2, kBrain}, InitialCase{2, 3, 0, kFloat},
                                         InitialCase{2, 1, 0, kBrain, 3},
                                         InitialCase{3, 3, 0, kFloat, 4},
                                         InitialCase{2, 1, 0, kHalf, 3, true},
                                         InitialCase{3, 3, 0, kBrain, 4, true}));

}  // namespace
}  // namespace milepost::runtime
