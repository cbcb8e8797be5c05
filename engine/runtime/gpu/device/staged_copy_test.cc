#include "engine/runtime/gpu/device/staged_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "engine/runtime/gpu/device/testing/fake_device.h"

namespace milepost::runtime {
namespace {

constexpr int64_t kSlot = 4096;
constexpr absl::Duration kLong = absl::Seconds(60);

std::vector<char> Numbers(int64_t bytes) {
  std::vector<char> numbers(static_cast<size_t>(bytes));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<char>(i * 2654435761u >> 24);
  return numbers;
}

class StagedCopyTest : public testing::TestWithParam<int64_t> {};

// In any order that the device may run its work in, and whatever was in the slots before.
TEST_P(StagedCopyTest, BringsEveryByteThereAndBack) {
  const std::vector<char> numbers = Numbers(GetParam());
  const int64_t bytes = GetParam();
  const int64_t first = bytes / 3;  // two transfers follow each other
  for (uint64_t seed = 0; seed < 20; ++seed) {
    FakeDevice device(seed);
    const StreamId stream = *device.AddStream();
    auto staged =
        StagedCopy::Make(&device, stream, /*threads=*/2, {.slots = 3, .slot_bytes = kSlot});
    ASSERT_TRUE(staged.ok()) << staged.status();
    char* const on_device = *device.Allocate(bytes + 1);
    std::vector<char> from = numbers;
    ASSERT_EQ(staged->ToDevice({{on_device, from.data(), first},
                                {on_device + first, from.data() + first, bytes - first}},
                               kLong),
              absl::OkStatus());
    std::fill(from.begin(), from.end(), 0);  // it may change now
    std::vector<char> back(numbers.size() + 1, 77);
    ASSERT_EQ(staged->ToHost({{back.data(), on_device, first},
                              {back.data() + first, on_device + first, bytes - first}},
                             kLong),
              absl::OkStatus());
    EXPECT_EQ(back.back(), 77) << "nothing beyond it is written";
    back.pop_back();
    EXPECT_EQ(back, numbers) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Lengths, StagedCopyTest,
                         testing::Values(0, 1, kSlot - 1, kSlot, kSlot + 1, 3 * kSlot,
                                         3 * kSlot + 5, 10 * kSlot - 3));

// Bytes that are made as they are sent, in the same slots' turns.
TEST_P(StagedCopyTest, SendsWhatIsMadeInItsSlots) {
  const std::vector<char> numbers = Numbers(GetParam());
  for (uint64_t seed = 0; seed < 20; ++seed) {
    FakeDevice device(seed);
    const StreamId stream = *device.AddStream();
    auto staged = StagedCopy::Make(&device, stream, 2, {.slots = 3, .slot_bytes = kSlot});
    ASSERT_TRUE(staged.ok()) << staged.status();
    char* const on_device = *device.Allocate(2 * GetParam() + 1);
    for (int copy = 0; copy < 2; ++copy) {
      int64_t made = 0;
      const auto make = [&](int64_t begin, int64_t bytes, char* at) {
        EXPECT_EQ(begin, made);
        made += bytes;
        std::copy_n(numbers.begin() + begin, bytes, at);
      };
      ASSERT_EQ(staged->ToDevice(on_device + copy * GetParam(), GetParam(), make, kLong),
                absl::OkStatus());
      EXPECT_EQ(made, GetParam());
    }
    std::vector<char> back(2 * numbers.size());
    ASSERT_EQ(staged->ToHost({{back.data(), on_device, 2 * GetParam()}}, kLong), absl::OkStatus());
    EXPECT_TRUE(std::equal(numbers.begin(), numbers.end(), back.begin())) << "seed " << seed;
    EXPECT_TRUE(std::equal(numbers.begin(), numbers.end(), back.begin() + GetParam()));
  }
}

// It comes after what the stream has been given to do.
TEST(StagedCopy, SeesTheStreamsWork) {
  FakeDevice device(3);
  const StreamId stream = *device.AddStream();
  auto staged = StagedCopy::Make(&device, stream, 1, {.slots = 2, .slot_bytes = kSlot});
  char* const on_device = *device.Allocate(3 * kSlot);
  ASSERT_TRUE(device
                  .Enqueue(stream, {.issue =
                                        [&] {
                                          std::memset(on_device, 5, 3 * kSlot);
                                          return absl::OkStatus();
                                        },
                                    .name = "fill",
                                    .accesses = {{on_device, on_device + 3 * kSlot, true}}})
                  .ok());
  std::vector<char> back(3 * kSlot);
  ASSERT_EQ(staged->ToHost({{back.data(), on_device, 3 * kSlot}}, kLong), absl::OkStatus());
  EXPECT_EQ(std::accumulate(back.begin(), back.end(), int64_t{0}), 5 * 3 * kSlot);
}

}  // namespace
}  // namespace milepost::runtime
