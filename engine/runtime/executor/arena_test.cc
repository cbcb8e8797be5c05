#include "engine/runtime/executor/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "common/host_memory.h"

namespace milepost::runtime {
namespace {

using ::testing::HasSubstr;

TEST(Arena, IsZeroedAlignedAndExactlyAsLarge) {
  for (int64_t bytes : {int64_t{1}, int64_t{4097}, int64_t{5} << 20}) {
    auto arena = Arena::Allocate(bytes);
    ASSERT_TRUE(arena.ok()) << arena.status();
    EXPECT_EQ(arena->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(arena->data()) % (bytes >= (2 << 20) ? 2 << 20 : 4096),
              0u);
    EXPECT_TRUE(std::all_of(arena->data(), arena->data() + bytes, [](char c) { return c == 0; }));
    arena->data()[bytes - 1] = 1;
    Arena moved = *std::move(arena);
    EXPECT_EQ(moved.data()[bytes - 1], 1);
  }
}

TEST(Arena, RefusesWithTheFigures) {
  const auto arena = Arena::Allocate(int64_t{1} << 50);
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(arena.status().message()), HasSubstr("1125899906842624 bytes"));
  EXPECT_THAT(std::string(arena.status().message()), HasSubstr("this host never has more than"));
}

TEST(Arena, WhatOthersUseMayBeFreeLater) {
  const int64_t free = AvailableMemoryBytes();
  const int64_t limit = MemoryLimitBytes();
  if (free >= limit) GTEST_SKIP() << "nothing else uses memory here";
  const auto arena = Arena::Allocate(limit);
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted) << arena.status();
}

}  // namespace
}  // namespace milepost::runtime
