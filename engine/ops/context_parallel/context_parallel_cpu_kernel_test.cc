#include "engine/ops/context_parallel/context_parallel_cpu_kernel.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

using Rows = std::vector<uint16_t>;  // elements of two bytes

struct Sizes {
  int64_t ranks, batch, tokens, heads, kv_heads, width;  // `width` of a head
  int64_t query_parts = 1;
  HeadsExchangeShape Shape() const {
    return {.ranks = ranks,
            .query_parts = query_parts,
            .batch = batch,
            .tokens = tokens,
            .heads = heads,
            .kv_heads = kv_heads,
            .head_bytes = width * 2};
  }
};

char* Bytes(Rows& rows) { return reinterpret_cast<char*>(rows.data()); }
const char* Bytes(const Rows& rows) { return reinterpret_cast<const char*>(rows.data()); }

// The element that column `column` of head `head` has at a token; all heads of queries come first,
// then those of keys and of values.
uint16_t ElementOf(const Sizes& s, int64_t sequence, int64_t token, int64_t head, int64_t column) {
  const int64_t all = s.heads + 2 * s.kv_heads;
  const int64_t row = sequence * s.ranks * s.tokens + token;
  return static_cast<uint16_t>((row * all + head) * s.width + column);
}

Rows ByTokens(const Sizes& s, int64_t rank) {
  Rows rows;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t t = 0; t < s.tokens; ++t) {
      for (int64_t h = 0; h < s.heads + 2 * s.kv_heads; ++h) {
        for (int64_t c = 0; c < s.width; ++c) {
          rows.push_back(ElementOf(s, b, rank * s.tokens + t, h, c));
        }
      }
    }
  }
  return rows;
}

Rows ByHeads(const Sizes& s, int64_t rank) {
  const int64_t groups = s.ranks / s.query_parts, group = rank / s.query_parts;
  std::vector<int64_t> own;  // heads
  for (int64_t h = 0; h < s.heads / groups; ++h) own.push_back(group * s.heads / groups + h);
  for (const int64_t first : {s.heads, s.heads + s.kv_heads}) {
    const bool shared = s.kv_heads > 0 && s.kv_heads < groups;
    const int64_t count = shared ? 1 : s.kv_heads / groups;
    const int64_t begin = shared ? group / (groups / s.kv_heads) : group * count;
    for (int64_t h = 0; h < count; ++h) own.push_back(first + begin + h);
  }
  Rows rows;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t t = 0; t < s.ranks * s.tokens; ++t) {
      for (const int64_t h : own) {
        for (int64_t c = 0; c < s.width; ++c) rows.push_back(ElementOf(s, b, t, h, c));
      }
    }
  }
  return rows;
}

const Sizes kSizes[] = {{1, 2, 3, 2, 1, 4},    {2, 1, 3, 4, 2, 5},    {2, 3, 4, 4, 4, 3},
                        {3, 2, 5, 6, 3, 8},    {4, 2, 1, 4, 0, 7},    {2, 2, 40, 2, 2, 1},
                        {4, 2, 3, 8, 2, 5},    {4, 1, 5, 4, 1, 3},    {3, 2, 2, 1, 1, 4, 3},
                        {4, 1, 3, 2, 2, 3, 2}, {4, 2, 2, 6, 2, 5, 2}, {8, 1, 2, 4, 2, 3, 2},
                        {4, 2, 3, 2, 0, 6, 2}};

// What PutHeads leaves: heads that ranks share are summed, not put.
Rows WithoutSharedHeads(const Sizes& s, Rows rows) {
  const int64_t all = (s.heads + 2 * s.kv_heads) * s.width;
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool key = static_cast<int64_t>(i) % all >= s.heads * s.width;
    if (key ? s.Shape().SharesKeys() : s.query_parts > 1) rows[i] = 0xffff;
  }
  return rows;
}

// All ranks here: what rank `from` packs for rank `to` is what that one puts into its rows.
TEST(HeadsExchangeKernel, TokensBecomeHeadsAndBack) {
  for (const int threads : {1, 3}) {
    const ThreadCount scope(threads);
    for (const Sizes& s : kSizes) {
      const HeadsExchangeShape shape = s.Shape();
      Rows piece(static_cast<size_t>(shape.PieceBytes() / 2));
      for (int64_t to = 0; to < s.ranks; ++to) {
        const Rows wanted = ByHeads(s, to);
        Rows got(wanted.size(), 0xffff);
        for (int64_t from = 0; from < s.ranks; ++from) {
          TakeHeads(shape, Bytes(ByTokens(s, from)), to, PackedPiece(shape, Bytes(piece)));
          const char* sent = Bytes(piece);
          CopyPiece(shape, PackedPiece(shape, sent), PieceOf(shape, Bytes(got), from));
        }
        EXPECT_EQ(got, wanted) << s.ranks << " ranks, to " << to;
      }
      for (int64_t to = 0; to < s.ranks; ++to) {
        const Rows wanted = ByTokens(s, to);
        Rows got(wanted.size(), 0xffff);
        for (int64_t from = 0; from < s.ranks; ++from) {
          const Rows heads = ByHeads(s, from);
          CopyPiece(shape, PieceOf(shape, Bytes(heads), to), PackedPiece(shape, Bytes(piece)));
          const char* sent = Bytes(piece);
          PutHeads(shape, PackedPiece(shape, sent), from, Bytes(got));
        }
        EXPECT_EQ(got, WithoutSharedHeads(s, wanted)) << s.ranks << " ranks, to " << to;
      }
    }
  }
}

// Without packing: a rank's own piece, and those of one sequence.
TEST(HeadsExchangeKernel, PiecesLieInRowsByHeads) {
  for (const Sizes& s : kSizes) {
    const HeadsExchangeShape shape = s.Shape();
    for (int64_t rank = 0; rank < s.ranks; ++rank) {
      const Rows heads = ByHeads(s, rank);
      Rows got(heads.size(), 0xffff);
      for (int64_t from = 0; from < s.ranks; ++from) {
        TakeHeads(shape, Bytes(ByTokens(s, from)), rank, PieceOf(shape, Bytes(got), from));
      }
      EXPECT_EQ(got, heads);
      Rows tokens(ByTokens(s, rank).size(), 0xffff);
      for (int64_t from = 0; from < s.ranks; ++from) {
        const Rows of_rank = ByHeads(s, from);
        PutHeads(shape, PieceOf(shape, Bytes(of_rank), rank), from, Bytes(tokens));
      }
      EXPECT_EQ(tokens, WithoutSharedHeads(s, ByTokens(s, rank)));
    }
  }
}

// Each head from every rank's piece that has it, as ByHeads says which these are.
template <typename T>
void CheckSharedHeads(const Sizes& s) {
  SCOPED_TRACE(testing::Message() << s.ranks << " ranks, " << s.kv_heads << " heads of keys, "
                                  << s.query_parts << " parts, elements of " << sizeof(T));
  HeadsExchangeShape shape = s.Shape();
  shape.head_bytes = s.width * static_cast<int64_t>(sizeof(T));
  const int64_t row = shape.HeadRowBytes() / static_cast<int64_t>(sizeof(T));
  const int64_t width = (s.heads + 2 * s.kv_heads) * s.width;
  std::vector<std::vector<T>> pieces;
  std::vector<PieceRows<const char>> rows;
  std::vector<float> wanted(static_cast<size_t>(shape.PieceRows() * width), 0.0f);
  std::vector<int> holders(static_cast<size_t>(width), 0);
  const Sizes one = {s.ranks, 1, 1, s.heads, s.kv_heads, s.width, s.query_parts};
  for (int64_t rank = 0; rank < s.ranks; ++rank) {
    pieces.push_back(RandomVector<T>(shape.PieceRows() * row, static_cast<uint64_t>(rank)));
    rows.push_back(PackedPiece(shape, reinterpret_cast<const char*>(pieces.back().data())));
    const Rows columns = ByHeads(one, rank);  // of its first row: elements of a row by tokens
    for (int64_t i = 0; i < row; ++i) {
      ++holders[columns[i]];
      for (int64_t r = 0; r < shape.PieceRows(); ++r) {
        wanted[r * width + columns[i]] += ToFloat(pieces.back()[r * row + i]);
      }
    }
  }
  std::vector<T> got(wanted.size(), FromFloat<T>(7.0f));
  SumSharedHeads<T>(shape, rows, got.data());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const float want = holders[i % width] > 1 ? wanted[i] : 7.0f;
    ASSERT_EQ(ToFloat(got[i]), ToFloat(FromFloat<T>(want))) << i;
  }
}

TEST(HeadsExchangeKernel, SharedHeadsAreSummedInRankOrderAndRoundedOnce) {
  for (const int64_t batch : {1, 2}) {
    for (const Sizes& s : {Sizes{6, batch, 3, 6, 2, 70}, Sizes{6, batch, 3, 2, 2, 70, 3},
                           Sizes{4, batch, 3, 6, 2, 5, 2}, Sizes{8, batch, 2, 4, 2, 5, 2},
                           Sizes{4, batch, 3, 2, 0, 5, 2}, Sizes{3, batch, 3, 3, 3, 5}}) {
      CheckSharedHeads<float>(s);
      CheckSharedHeads<bf16>(s);
      CheckSharedHeads<f16>(s);
    }
  }
}

TEST(HeadsExchangeKernel, AsFewQueryPartsAsHeadsAllow) {
  const auto parts = [](int64_t ranks, int64_t heads, int64_t kv_heads) {
    return QueryParts({.ranks = ranks, .heads = heads, .kv_heads = kv_heads});
  };
  EXPECT_EQ(parts(4, 8, 2), 1);   // two neighbours share a head of keys
  EXPECT_EQ(parts(16, 8, 2), 2);  // of each head two halves of the queries
  EXPECT_EQ(parts(6, 4, 4), 3);   // two groups with two heads each
  EXPECT_EQ(parts(6, 12, 4), 3);  // six groups could not share four heads of keys
  EXPECT_EQ(parts(5, 4, 4), 5);
  EXPECT_EQ(parts(4, 8, 0), 1);
}

}  // namespace
}  // namespace milepost::kernels
