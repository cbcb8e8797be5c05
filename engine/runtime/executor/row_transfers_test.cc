#include "engine/runtime/executor/row_transfers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace milepost::runtime {
namespace {

using testing::HasSubstr;

// Two ranks with two experts each; the third of ranks 4, 6, 8 is this one.
constexpr kernels::ExpertRowsShape kShape = {.ranks = 2, .experts = 4, .rows = 10, .row_bytes = 8};

struct Moves {
  std::vector<char> from = std::vector<char>(80), to = std::vector<char>(160);
  RowTransfers moves = {.among = {4, 2, 2}, .own = 1};

  absl::Status Set(const std::vector<int32_t>& offsets, const std::vector<int32_t>& segments,
                   int64_t room = 20) {
    return moves.Set(kShape, {from.data(), offsets.data(), 10}, {to.data(), segments.data(), room});
  }
};

TEST(RowTransfers, RowsLieByRankAndByExpert) {
  Moves m;
  // Three and no rows for the other's experts, two and four for the own ones; five come from it.
  ASSERT_EQ(m.Set({0, 3, 3, 5, 9}, {0, 1, 5, 7, 11}), absl::OkStatus());
  ASSERT_EQ(m.moves.transfers.size(), 1u);
  const comm::Communicator::Transfer& transfer = m.moves.transfers[0];
  EXPECT_EQ(transfer.peer, 4);
  EXPECT_EQ(transfer.send, m.from.data());
  EXPECT_EQ(transfer.send_bytes, 3u * 8);
  EXPECT_EQ(transfer.receive, m.to.data());
  EXPECT_EQ(transfer.receive_bytes, 5u * 8);
  EXPECT_EQ(m.moves.stays.from, m.from.data() + 3 * 8);
  EXPECT_EQ(m.moves.stays.to, m.to.data() + 5 * 8);
  EXPECT_EQ(m.moves.stays.bytes, 6 * 8);
  ASSERT_EQ(m.Set({0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}), absl::OkStatus());
  EXPECT_EQ(m.moves.transfers.size(), 1u);
  EXPECT_EQ(m.moves.stays.bytes, 0);
}

// Another rank's numbers are believed no further than they lead to memory that is there.
TEST(RowTransfers, NumbersThatCannotBeAreRefused) {
  Moves m;
  const std::vector<int32_t> good = {0, 3, 3, 5, 9};
  for (const std::vector<int32_t>& segments : std::vector<std::vector<int32_t>>{
           {0, 1, 5, 7, 21}, {0, 6, 5, 7, 11}, {1, 1, 5, 7, 11}, {0, -1, 5, 7, 11}}) {
    const absl::Status status = m.Set(good, segments);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(status.message(), HasSubstr("with room for 20"));
  }
  EXPECT_FALSE(m.Set({0, 3, 3, 5, 11}, {0, 1, 5, 7, 13}).ok());
  EXPECT_THAT(m.Set(good, {0, 1, 5, 7, 12}).message(), HasSubstr("a rank sends itself 48 bytes"));
}

}  // namespace
}  // namespace milepost::runtime
