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
  HeadsExchangeShape Shape() const {
    return {.ranks = ranks,
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
  std::vector<int64_t> own;  // heads
  for (int64_t h = 0; h < s.heads / s.ranks; ++h) own.push_back(rank * s.heads / s.ranks + h);
  for (const int64_t first : {s.heads, s.heads + s.kv_heads}) {
    const bool shared = s.kv_heads > 0 && s.kv_heads < s.ranks;
    const int64_t count = shared ? 1 : s.kv_heads / s.ranks;
    const int64_t begin = shared ? rank / (s.ranks / s.kv_heads) : rank * count;
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

const Sizes kSizes[] = {{1, 2, 3, 2, 1, 4}, {2, 1, 3, 4, 2, 5}, {2, 3, 4, 4, 4, 3},
                        {3, 2, 5, 6, 3, 8}, {4, 2, 1, 4, 0, 7}, {2, 2, 40, 2, 2, 1},
                        {4, 2, 3, 8, 2, 5}, {4, 1, 5, 4, 1, 3}};

// What PutHeads leaves: keys that ranks share are summed, not put.
Rows WithoutSharedKeys(const Sizes& s, Rows rows) {
  if (!s.Shape().SharesKeys()) return rows;
  const int64_t all = (s.heads + 2 * s.kv_heads) * s.width;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (static_cast<int64_t>(i) % all >= s.heads * s.width) rows[i] = 0xffff;
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
        EXPECT_EQ(got, WithoutSharedKeys(s, wanted)) << s.ranks << " ranks, to " << to;
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
      EXPECT_EQ(tokens, WithoutSharedKeys(s, ByTokens(s, rank)));
    }
  }
}

template <typename T>
void CheckSharedKeys(int64_t batch) {
  const Sizes s = {.ranks = 6, .batch = batch, .tokens = 3, .heads = 6, .kv_heads = 2, .width = 70};
  HeadsExchangeShape shape = s.Shape();
  shape.head_bytes = s.width * static_cast<int64_t>(sizeof(T));
  const int64_t row = 3 * s.width;  // one head of queries, keys and values each
  std::vector<std::vector<T>> pieces;
  std::vector<PieceRows<const char>> rows;
  for (int64_t rank = 0; rank < s.ranks; ++rank) {
    pieces.push_back(RandomVector<T>(shape.PieceRows() * row, static_cast<uint64_t>(rank)));
    rows.push_back(PackedPiece(shape, reinterpret_cast<const char*>(pieces.back().data())));
  }
  const int64_t width = (s.heads + 2 * s.kv_heads) * s.width;
  std::vector<T> got(static_cast<size_t>(shape.PieceRows() * width), FromFloat<T>(7.0f));
  SumSharedKeys<T>(shape, rows, got.data());
  for (int64_t i = 0; i < shape.PieceRows() * width; ++i) {
    const int64_t head = i % width / s.width - s.heads;  // keys, then values
    float wanted = head < 0 ? 7.0f : 0.0f;
    for (int64_t sharing = 0; sharing < 3 && head >= 0; ++sharing) {
      const int64_t from = head % s.kv_heads * 3 + sharing;
      const int64_t column = (1 + head / s.kv_heads) * s.width + i % s.width;
      wanted += ToFloat(pieces[from][i / width * row + column]);
    }
    ASSERT_EQ(ToFloat(got[i]), ToFloat(FromFloat<T>(wanted))) << i;
  }
}

TEST(HeadsExchangeKernel, SharedKeysAreSummedInRankOrderAndRoundedOnce) {
  for (const int64_t batch : {1, 2}) {
    CheckSharedKeys<float>(batch);
    CheckSharedKeys<bf16>(batch);
    CheckSharedKeys<f16>(batch);
  }
}

}  // namespace
}  // namespace milepost::kernels
