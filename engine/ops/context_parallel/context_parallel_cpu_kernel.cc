#include "engine/ops/context_parallel/context_parallel_cpu_kernel.h"

#include <array>
#include <cstring>

#include "engine/kernels/cpu/parallel.h"

namespace milepost::kernels {
namespace {

constexpr int64_t kPieceRowsAtOnce = 16;

// The parts of a row by tokens that a rank has: of its queries, keys and values.
struct HeadRun {
  int64_t begin, bytes;
};

std::array<HeadRun, 3> RunsOf(const HeadsExchangeShape& shape, int64_t part) {
  const int64_t queries = shape.heads * shape.head_bytes, keys = shape.kv_heads * shape.head_bytes;
  const int64_t own = queries / shape.ranks, own_keys = keys / shape.ranks;
  return {{{part * own, own},
           {queries + part * own_keys, own_keys},
           {queries + keys + part * own_keys, own_keys}}};
}

template <typename Byte>
Byte* RowOf(const HeadsExchangeShape& shape, PieceRows<Byte> rows, int64_t row) {
  const int64_t place = row / shape.tokens * rows.sequence_stride + row % shape.tokens;
  return rows.data + place * shape.HeadRowBytes();
}

// move(part of a row by tokens, of the piece's row, bytes).
template <typename Byte, typename OtherByte, typename Move>
void ForRuns(const HeadsExchangeShape& shape, Byte* by_tokens, int64_t part,
             PieceRows<OtherByte> piece, const Move& move) {
  const std::array<HeadRun, 3> runs = RunsOf(shape, part);
  ParallelFor(0, shape.PieceRows(), kPieceRowsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      Byte* tokens = by_tokens + row * shape.TokenRowBytes();
      OtherByte* at = RowOf(shape, piece, row);
      for (const HeadRun& run : runs) {
        move(tokens + run.begin, at, static_cast<size_t>(run.bytes));
        at += run.bytes;
      }
    }
  });
}

}  // namespace

void TakeHeads(const HeadsExchangeShape& shape, const char* by_tokens, int64_t part,
               PieceRows<char> to) {
  ForRuns(shape, by_tokens, part, to,
          [](const char* tokens, char* piece, size_t bytes) { std::memcpy(piece, tokens, bytes); });
}

void PutHeads(const HeadsExchangeShape& shape, PieceRows<const char> from, int64_t part,
              char* by_tokens) {
  ForRuns(shape, by_tokens, part, from,
          [](char* tokens, const char* piece, size_t bytes) { std::memcpy(tokens, piece, bytes); });
}

void CopyPiece(const HeadsExchangeShape& shape, PieceRows<const char> from, PieceRows<char> to) {
  const auto bytes = static_cast<size_t>(shape.tokens * shape.HeadRowBytes());
  for (int64_t row = 0; row < shape.PieceRows(); row += shape.tokens) {
    std::memcpy(RowOf(shape, to, row), RowOf(shape, from, row), bytes);
  }
}

}  // namespace milepost::kernels
