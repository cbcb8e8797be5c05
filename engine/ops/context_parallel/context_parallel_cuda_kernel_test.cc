#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/ops/context_parallel/context_parallel_cpu_kernel.h"
#include "engine/ops/context_parallel/context_parallel_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {
namespace {

using Words = std::vector<uint16_t>;

constexpr auto kRunHeads = [](const auto& kernel) { return RunAnywhere(kernel, 5); };

// Heads of 16 bytes, and of multiples of 4 and of 2; batches; heads of keys that ranks share.
const HeadsExchangeShape kShapes[] = {
    {.ranks = 1, .batch = 2, .tokens = 3, .heads = 2, .kv_heads = 1, .head_bytes = 16},
    {.ranks = 2, .batch = 1, .tokens = 5, .heads = 4, .kv_heads = 2, .head_bytes = 32},
    {.ranks = 2, .batch = 3, .tokens = 4, .heads = 4, .kv_heads = 4, .head_bytes = 10},
    {.ranks = 3, .batch = 2, .tokens = 5, .heads = 6, .kv_heads = 3, .head_bytes = 128},
    {.ranks = 4, .batch = 2, .tokens = 1, .heads = 4, .kv_heads = 0, .head_bytes = 20},
    {.ranks = 2, .batch = 1, .tokens = 300, .heads = 2, .kv_heads = 2, .head_bytes = 16},
    {.ranks = 4, .batch = 2, .tokens = 3, .heads = 8, .kv_heads = 2, .head_bytes = 48},
    {.ranks = 4, .batch = 1, .tokens = 5, .heads = 4, .kv_heads = 1, .head_bytes = 6},
    {.ranks = 3, .query_parts = 3, .batch = 2, .tokens = 2, .heads = 1, .kv_heads = 1},
    {.ranks = 4, .query_parts = 2, .tokens = 3, .heads = 6, .kv_heads = 2, .head_bytes = 20},
    {.ranks = 8, .query_parts = 2, .tokens = 2, .heads = 4, .kv_heads = 2, .head_bytes = 32}};

Words RandomWords16(int64_t bytes, uint16_t seed) {
  Words words(static_cast<size_t>(bytes / 2));
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = static_cast<uint16_t>(i * 40503 + seed * 977 + (i >> 3));
  }
  return words;
}
Words Untouched(int64_t bytes) { return Words(static_cast<size_t>(bytes / 2), 0xffff); }

char* Bytes(Words& words) { return reinterpret_cast<char*>(words.data()); }
const char* Bytes(const Words& words) { return reinterpret_cast<const char*>(words.data()); }
char* Bytes(HostArray<uint16_t>& words) { return reinterpret_cast<char*>(words.data()); }

// Of the CPU: where the piece of rank `rank` lies, which is rank `own`'s or one of its packed ones.
template <typename Byte>
PieceRows<Byte> RowsFor(const HeadsExchangeShape& shape, Byte* packed, Byte* by_heads, int64_t own,
                        int64_t rank) {
  if (rank == own) return PieceOf(shape, by_heads, own);
  return PackedPiece(shape, packed + (rank - (rank > own ? 1 : 0)) * shape.PieceBytes());
}

// Each kernel on each rank `own` of each shape.
template <typename Check>
void ForRanks(const Check& check) {
  for (const HeadsExchangeShape& shape : kShapes) {
    for (int64_t own = 0; own < shape.ranks; ++own) {
      SCOPED_TRACE(testing::Message() << "rank " << own << " of " << shape.ranks << ", heads of "
                                      << shape.head_bytes << " bytes");
      check(shape, own, shape.PieceRows() * shape.TokenRowBytes(),
            shape.ranks * shape.PieceBytes());
    }
  }
}

TEST(ContextParallelKernels, TakeHeadsAsTheCpu) {
  ForRanks([](const HeadsExchangeShape& shape, int64_t own, int64_t tokens, int64_t heads) {
    const Words x = RandomWords16(tokens, 1);
    Words packed = Untouched(shape.PackedBytes()), by_heads = Untouched(heads);
    for (int64_t rank = 0; rank < shape.ranks; ++rank) {
      kernels::TakeHeads(shape, Bytes(x), rank,
                         RowsFor(shape, Bytes(packed), Bytes(by_heads), own, rank));
    }
    HostArray<uint16_t> from(x), got_packed(Untouched(shape.PackedBytes())),
        got_by_heads(Untouched(heads));
    ASSERT_EQ(
        RunTakeHeads(shape, Bytes(from), {Bytes(got_packed), Bytes(got_by_heads), own}, kRunHeads),
        absl::OkStatus());
    EXPECT_EQ(got_packed.values(), packed);
    EXPECT_EQ(got_by_heads.values(), by_heads);
  });
}

TEST(ContextParallelKernels, PutHeadsAsTheCpu) {
  ForRanks([](const HeadsExchangeShape& shape, int64_t own, int64_t tokens, int64_t heads) {
    const Words packed = RandomWords16(shape.PackedBytes(), 2), by_heads = RandomWords16(heads, 3);
    Words y = Untouched(tokens);
    for (int64_t rank = 0; rank < shape.ranks; ++rank) {
      kernels::PutHeads(shape, RowsFor(shape, Bytes(packed), Bytes(by_heads), own, rank), rank,
                        Bytes(y));
    }
    HostArray<uint16_t> from_packed(packed), from_by_heads(by_heads), got(Untouched(tokens));
    ASSERT_EQ(
        RunPutHeads(shape, {Bytes(from_packed), Bytes(from_by_heads), own}, Bytes(got), kRunHeads),
        absl::OkStatus());
    EXPECT_EQ(got.values(), y);
  });
}

TEST(ContextParallelKernels, PackTheOthersPieces) {
  ForRanks([](const HeadsExchangeShape& shape, int64_t own, int64_t, int64_t heads) {
    const Words x = RandomWords16(heads, 4);
    Words packed = Untouched(shape.PackedBytes()), back = Untouched(heads);
    for (int64_t rank = 0; rank < shape.ranks; ++rank) {
      if (rank == own) continue;
      const PieceRows<char> piece = RowsFor(shape, Bytes(packed), Bytes(back), own, rank);
      CopyPiece(shape, PieceOf(shape, Bytes(x), rank), piece);
      CopyPiece(shape, PieceOf(shape, Bytes(x), rank), PieceOf(shape, Bytes(back), rank));
    }
    HostArray<uint16_t> from(x), got_packed(Untouched(shape.PackedBytes())),
        got_back(Untouched(heads));
    const char* rows = Bytes(from);
    ASSERT_EQ(RunRepackPieces<true>(shape, rows, own, Bytes(got_packed), kRunHeads),
              absl::OkStatus());
    EXPECT_EQ(got_packed.values(), packed);
    const char* pieces = Bytes(got_packed);
    ASSERT_EQ(RunRepackPieces<false>(shape, Bytes(got_back), own, pieces, kRunHeads),
              absl::OkStatus());
    EXPECT_EQ(got_back.values(), back);
  });
}

template <typename T>
void TestSharedHeads(HeadsExchangeShape shape, int64_t width, int64_t own) {
  shape.head_bytes = width * static_cast<int64_t>(sizeof(T));
  const auto elements = [](int64_t bytes) { return bytes / static_cast<int64_t>(sizeof(T)); };
  const auto packed = RandomVector<T>(elements(shape.PackedBytes()), 6);
  const auto by_heads = RandomVector<T>(elements(shape.ranks * shape.PieceBytes()), 7);
  const auto before = RandomVector<T>(elements(shape.PieceRows() * shape.TokenRowBytes()), 8);
  std::vector<T> want = before;
  std::vector<PieceRows<const char>> pieces;
  for (int64_t rank = 0; rank < shape.ranks; ++rank) {
    pieces.push_back(RowsFor(shape, reinterpret_cast<const char*>(packed.data()),
                             reinterpret_cast<const char*>(by_heads.data()), own, rank));
  }
  kernels::SumSharedHeads<T>(shape, pieces, want.data());
  HostArray<T> from_packed(packed), from_by_heads(by_heads), got(before);
  const HeadPieces<const char> from = {reinterpret_cast<const char*>(from_packed.data()),
                                       reinterpret_cast<const char*>(from_by_heads.data()), own};
  ASSERT_EQ(RunSumSharedHeads<T>(shape, from, got.data(), kRunHeads), absl::OkStatus());
  EXPECT_TRUE(SameBits(got.values(), want)) << "heads of " << width << ", rank " << own;
}

TEST(ContextParallelKernels, SumSharedHeadsAsTheCpu) {
  for (const int64_t batch : {1, 2}) {
    for (const int64_t own : {0, 3, 5}) {
      for (const int64_t width : {16, 7, 70}) {
        for (const HeadsExchangeShape& shape :
             {HeadsExchangeShape{
                  .ranks = 6, .batch = batch, .tokens = 3, .heads = 6, .kv_heads = 2},
              {.ranks = 6,
              .query_parts = 3,
              .batch = batch,
              .tokens = 3,
              .heads = 4,
              .kv_heads = 2},
              {.ranks = 6,
              .query_parts = 2,
              .batch = batch,
              .tokens = 2,
              .heads = 3,
              .kv_heads = 1},
              {.ranks = 6, .query_parts = 6, .batch = batch, .tokens = 2, .heads = 1}}) {
          TestSharedHeads<float>(shape, width, own);
          TestSharedHeads<bf16>(shape, width, own);
          TestSharedHeads<f16>(shape, width, own);
        }
      }
    }
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
