#include "engine/runtime/session/divided_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "engine/comm/in_process.h"

namespace milepost::runtime {
namespace {

TEST(StateInterval, VisitsTheRunsOfARank) {
  // Rank 1 of 2: elements 3..5, 9..11, 15..17 of 18, of which it has those from 4 to 16.
  const StateInterval interval{.begin = 4, .end = 17, .run = 3, .period = 6, .first = 3};
  EXPECT_EQ(interval.elements(), 7);
  EXPECT_EQ(interval.ElementsBefore(4), 0);
  EXPECT_EQ(interval.ElementsBefore(9), 2);
  EXPECT_EQ(interval.ElementsBefore(16), 6);
  std::vector<std::pair<int64_t, int64_t>> seen;
  interval.ForPieces(0, 10, [&](int64_t from, int64_t to) { seen.emplace_back(from, to); });
  EXPECT_EQ(seen, (std::vector<std::pair<int64_t, int64_t>>{{4, 6}, {9, 10}}));
  seen.clear();
  interval.ForPieces(6, 9, [&](int64_t from, int64_t to) { seen.emplace_back(from, to); });
  EXPECT_TRUE(seen.empty());
}

TEST(StateInterval, WithoutRunsItIsWhole) {
  const StateInterval interval{.begin = 4, .end = 9};
  EXPECT_EQ(interval.elements(), 5);
  EXPECT_EQ(interval.ElementsBefore(7), 3);
  int64_t visited = 0;
  interval.ForPieces(5, 20, [&](int64_t from, int64_t to) { visited += to - from; });
  EXPECT_EQ(visited, 4);
}

// Every cut of a divided tensor: the ranks' intervals are the tensor, each element once.
void ExpectWhole(int ranks, int64_t run, int64_t rows, int64_t begin, int64_t end) {
  const int64_t period = run * ranks;
  std::vector<float> whole(static_cast<size_t>(rows * period));
  std::iota(whole.begin(), whole.end(), 1.0F);
  std::vector<float> saved(whole.size(), 0);
  std::vector<int> times(whole.size(), 0);
  auto group = comm::MakeInProcessGroup(ranks);
  std::vector<std::vector<float>> own(static_cast<size_t>(ranks));
  std::vector<DividedRows> all;
  for (int rank = 0; rank < ranks; ++rank) {
    StateInterval held{.tensor = 2, .run = run, .period = period, .first = rank * run};
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = i / run * period + rank * run + i % run;
      if (i == begin) held.begin = at;
      held.end = at + 1;
      own[rank].push_back(whole[at]);
    }
    held.data = reinterpret_cast<char*>(own[rank].data());
    DividedRows& divided = all.emplace_back(ranks, rank, /*first_rank=*/0);
    divided.Add(std::nullopt);  // a tensor that no rank of these has anything of
    divided.Add(DividedRows::Piece{.held = held, .item_bytes = 4, .begin = begin, .end = end});
    divided.Allocate();
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { EXPECT_TRUE(all[rank].Share(*group[rank]).ok()); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const DividedRows& divided : all) {
    for (const StateInterval& interval : divided.Intervals()) {
      EXPECT_EQ(interval.tensor, 2);
      EXPECT_EQ(interval.run, 0);
      const auto* values = reinterpret_cast<const float*>(interval.data);
      for (int64_t i = interval.begin; i < interval.end; ++i) {
        saved[i] = values[i - interval.begin];
        ++times[i];
      }
    }
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / period, column = i % period % run;
    const int64_t local = row * run + column;
    const bool held = local >= begin && local < end;
    EXPECT_EQ(times[i], held ? 1 : 0) << i;
    EXPECT_EQ(saved[i], held ? whole[i] : 0) << i;
  }
}

TEST(DividedRows, AreWholeWhateverTheCut) {
  for (const int ranks : {2, 3, 4}) {
    for (int64_t begin = 0; begin < 12; ++begin) {
      for (int64_t end = begin + 1; end <= 20; ++end) ExpectWhole(ranks, 4, 5, begin, end);
    }
  }
}

}  // namespace
}  // namespace milepost::runtime
